#include "backend/host/fifo_primitives.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 128;
constexpr size_t kSliceElems = kSlotBytes / sizeof(int);
constexpr uint32_t kTag = 0x2b;

// Ends a wait at its first sleep where `patient` is false.
struct Watcher final : WaitWatcher {
  bool patient = true;
  Status OnLongWait(std::span<const int>, LongWait&) override {
    return patient ? Status::Ok() : Timeout("the peer does not answer");
  }
  Status StopReason() override { return InternalError("nobody stops"); }
  Status OnForeignChunk(int, uint32_t, uint32_t) override {
    return InternalError("a foreign chunk");
  }
};

struct Freed {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// A FIFO each way between two ranks. Rank i sends through FIFO `i`.
class TwoFifos {
 public:
  TwoFifos() {
    for (size_t i = 0; i < 2; ++i) {
      const size_t bytes = FifoView::BytesFor(kSlotBytes);
      memory_[i].reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
      std::memset(memory_[i].get(), 0, bytes);
      senders_[i] = FifoSender({memory_[i].get(), kSlotBytes});
      receivers_[i] = FifoReceiver({memory_[i].get(), kSlotBytes});
    }
  }
  FifoSender& sender(int rank) { return senders_[static_cast<size_t>(rank)]; }
  FifoReceiver& receiver(int rank) { return receivers_[static_cast<size_t>(1 - rank)]; }

 private:
  std::array<std::unique_ptr<std::byte, Freed>, 2> memory_;
  std::array<FifoSender, 2> senders_;
  std::array<FifoReceiver, 2> receivers_;
};

struct LinksOf {
  TwoFifos& fifos;
  int rank;
  SendLink SendTo(int peer) { return {.peer = peer, .fifo = &fifos.sender(rank)}; }
  RecvLink RecvFrom(int peer) { return {.peer = peer, .fifo = &fifos.receiver(rank)}; }
};

// Exchanges a vector of rank `rank` with its peer, and adds the received vector.
Status Exchange(TwoFifos& fifos, int rank, std::vector<int>& vector, Watcher& watcher) {
  const std::atomic<bool> stop = false;
  WaitContext wait(stop, {.spin_ns = 0, .yield_ns = 0}, watcher);
  HostWork work;
  work.output = reinterpret_cast<std::byte*>(vector.data());
  work.elem_bytes = sizeof(int);
  work.slice_elems = kSliceElems;
  work.op_tag = kTag;
  work.reduce.fn = FindReduce(DataType::kInt32, ReduceKind::kSum);
  HostExchangePrimitives p(wait, work, LinksOf{fifos, rank});
  p.ExchangeReduceOutput(1 - rank, rank == 0, vector.size());
  return wait.status();
}

TEST(ExchangePrimitivesTest, SendsSlicesAheadOfWhatComes) {
  TwoFifos fifos;
  std::vector<int> vector(10 * kSliceElems, 1);
  Watcher watcher;
  watcher.patient = false;
  EXPECT_FALSE(Exchange(fifos, 0, vector, watcher).ok());
  EXPECT_EQ(fifos.sender(0).published(), kSlicesPerStep);
}

TEST(ExchangePrimitivesTest, ExchangesMoreThanFifosHold) {
  for (const size_t elems : {size_t{1}, 3 * kSliceElems, 50 * kSliceElems + 1}) {
    TwoFifos fifos;
    std::array<std::vector<int>, 2> vectors;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<int>& mine = vectors[static_cast<size_t>(rank)];
      for (size_t i = 0; i < elems; ++i) mine.push_back(static_cast<int>(i) * (rank + 1));
      threads.emplace_back([&fifos, &mine, rank] {
        Watcher watcher;
        const Status status = Exchange(fifos, rank, mine, watcher);
        EXPECT_TRUE(status.ok()) << status.message();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < elems; ++i) {
      ASSERT_EQ(vectors[0][i], 3 * static_cast<int>(i)) << i;
      ASSERT_EQ(vectors[1][i], 3 * static_cast<int>(i)) << i;
    }
  }
}

}  // namespace
}  // namespace tutti
