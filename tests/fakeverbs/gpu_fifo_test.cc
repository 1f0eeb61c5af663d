// Proxy connections whose slots lie in memory of a GPU: the process announces chunks there, touches
// none of them, and tells of what came only after the NIC has read it back.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "connection/fifo.h"
#include "lent_memory.h"
#include "proxy/proxy.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSlotBytes = 8192;

// One end's FIFO as a communicator has it: what announces the slots lies in memory of the host.
struct GpuFifo {
  GpuMemory slots{kFifoSlots * kSlotBytes};
  alignas(4096) std::byte headers[kFifoDataOffset] = {};

  FifoPlace Place(bool flush) {
    FifoPlace place;
    place.slot_bytes = kSlotBytes;
    place.memory = headers;
    place.slots = slots.Dmabuf();
    place.flush = flush;
    return place;
  }
  // Returns where a kernel reads and writes a chunk.
  std::byte* Chunk(uint64_t number) const {
    return slots.bytes() + number % kFifoSlots * kSlotBytes;
  }
};

class GpuFifoTest : public ::testing::Test {
 protected:
  ~GpuFifoTest() override {
    send_.reset();
    recv_.reset();
    pair_.reset();
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
  }
  void Connect(bool flush) {
    const auto listener = pair_->receiving().Listen(0).value();
    auto sender = pair_->sending().Connect(0, listener->handle(), net_contract::Bound()).value();
    auto receiver = listener->Accept(net_contract::Bound()).value();
    send_ = proxy_->CreateSendConnection(std::move(sender), from_->Place(false), "rank 1").value();
    recv_ = proxy_->CreateRecvConnection(std::move(receiver), to_->Place(flush), "rank 0").value();
    producer_ = FifoSender(send_->fifo());
    consumer_ = FifoReceiver(recv_->fifo());
  }
  void Begin(uint64_t chunks) {
    send_->Begin(chunks, 7);
    recv_->Begin(chunks, 7);
  }
  // As kernels do, which put small chunks into the slots too.
  bool Produce(size_t bytes) {
    if (producer_.TryAcquire(bytes, /*inline_small=*/false) == nullptr) return false;
    std::memset(from_->Chunk(producer_.published()), static_cast<int>(producer_.published() + 1),
                bytes);
    producer_.Publish(bytes, 7);
    return true;
  }
  template <class Done>
  bool Drive(Done done) {
    for (const Deadline deadline = Deadline::AfterSeconds(20); !deadline.Passed();) {
      if (done()) return true;
      send_->Poll();
      recv_->Poll();
    }
    return false;
  }
  static long Reads() {
    const auto calls = fakeverbs::Calls();
    return std::count_if(calls.begin(), calls.end(), [](const fakeverbs::Call& call) {
      return call.name == "post_send" && call.opcode == IBV_WR_RDMA_READ;
    });
  }

  std::unique_ptr<VerbsNetPair> pair_ = std::make_unique<VerbsNetPair>(Settings{});
  const std::unique_ptr<Proxy> proxy_ = Proxy::Create({}).value();
  const std::unique_ptr<GpuFifo> from_ = std::make_unique<GpuFifo>();
  const std::unique_ptr<GpuFifo> to_ = std::make_unique<GpuFifo>();
  std::unique_ptr<ProxyConnection> send_, recv_;
  FifoSender producer_;
  FifoReceiver consumer_;
};

TEST_F(GpuFifoTest, ChunksOfAllLengthsPassFromGpuToGpu) {
  Connect(/*flush=*/true);
  const size_t lengths[] = {1, kInlineBytes, kInlineBytes + 1, 0, 4097, kSlotBytes};
  constexpr uint64_t kChunks = 30;
  Begin(kChunks);
  uint64_t produced = 0;
  for (uint64_t i = 0; i < kChunks; ++i) {
    const size_t bytes = lengths[i % std::size(lengths)];
    ASSERT_TRUE(Drive([&] {
      while (produced < kChunks && Produce(lengths[produced % std::size(lengths)])) ++produced;
      return consumer_.TryPeek().data != nullptr;
    })) << send_->Describe();
    const FifoChunk chunk = consumer_.TryPeek();
    EXPECT_EQ(chunk.bytes, bytes);
    EXPECT_EQ(chunk.op_tag, 7u);
    EXPECT_EQ(chunk.data, to_->slots.address() + i % kFifoSlots * kSlotBytes);
    const std::byte* const came = to_->Chunk(i);
    EXPECT_EQ(std::count(came, came + bytes, static_cast<std::byte>(i + 1)),
              static_cast<long>(bytes))
        << i;
    consumer_.Release();
  }
  EXPECT_EQ(Reads(), kChunks - kChunks / std::size(lengths)) << "one for each chunk but empty ones";
}

TEST_F(GpuFifoTest, NothingIsAnnouncedBeforeItIsFlushed) {
  Connect(/*flush=*/true);
  Begin(2);
  ASSERT_TRUE(Produce(5000));
  ASSERT_TRUE(Drive([&] { return consumer_.TryPeek().data != nullptr; }));
  // The second chunk arrives without the receiver, which has granted its slot.
  ASSERT_TRUE(Produce(5000));
  for (const Deadline deadline = Deadline::AfterSeconds(20); send_->ChunksDone() < 2;) {
    ASSERT_FALSE(deadline.Passed());
    send_->Poll();
  }
  fakeverbs::HoldSends(true);
  ASSERT_TRUE(Drive([] { return Reads() == 2; }));
  for (int i = 0; i < 100; ++i) recv_->Poll();
  EXPECT_EQ(consumer_.TryPeek(1).data, nullptr);
  EXPECT_EQ(recv_->ChunksDone(), 1u);
  fakeverbs::HoldSends(false);
  ASSERT_TRUE(Drive([&] { return consumer_.TryPeek(1).data != nullptr; }));
  EXPECT_EQ(recv_->ChunksDone(), 2u);
}

TEST_F(GpuFifoTest, AGpuThatOrdersWritesNeedsNoFlush) {
  Connect(/*flush=*/false);
  Begin(1);
  ASSERT_TRUE(Produce(5000));
  ASSERT_TRUE(Drive([&] { return consumer_.TryPeek().data != nullptr; }));
  EXPECT_EQ(Reads(), 0);
}

TEST_F(GpuFifoTest, AFlushThatFailsFailsTheConnection) {
  Connect(/*flush=*/true);
  Begin(1);
  fakeverbs::FailSend({.opcode = IBV_WR_RDMA_READ, .status = IBV_WC_REM_OP_ERR});
  ASSERT_TRUE(Produce(5000));
  ASSERT_TRUE(Drive([&] { return !recv_->status().ok(); }));
  EXPECT_THAT(std::string(recv_->status().message()), HasSubstr("reading back GPU memory"));
  EXPECT_EQ(consumer_.TryPeek().data, nullptr);
}

}  // namespace
}  // namespace tutti
