#pragma once

// The contract that every transport keeps: the promises of a pair of FIFO ends, over any connection
// between them.
//
// A transport's test supplies a factory of pairs and gets all cases:
//
//   class ShmContract : public TransportContract {};
//   TEST_P(ShmContract, Holds) { Run(); }
//   INSTANTIATE_TEST_SUITE_P(Shm, ShmContract, ContractCasesFor({"Shm", MakeShmPair}),
//   ContractCaseName);

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/wait.h"
#include "connection/fifo.h"
#include "connection/proxy_connection.h"
#include "testing/threads.h"

namespace tutti {

// Two joined ends. The destructor tears both down.
class TransportPair {
 public:
  virtual ~TransportPair() = default;
  FifoSender producer;
  FifoReceiver consumer;
  ProxyConnection* producer_connection = nullptr;  // null: shared memory needs none
  ProxyConnection* consumer_connection = nullptr;
  // How many chunks of 4096 bytes the network holds when both FIFOs are full.
  uint64_t chunks_in_network = 0;

  // Lets one end die as if its process had died, for transports that notice deaths by themselves.
  virtual void KillProducer() {}
  virtual void KillConsumer() {}
};

struct TransportFactory {
  std::string name;
  std::function<std::unique_ptr<TransportPair>(size_t slot_bytes)> make;
  bool notices_deaths = false;  // the connections' status reports deaths
};

namespace contract {

constexpr size_t kSlotBytes = 64 * 1024;
constexpr int64_t kBoundNs = 20'000'000'000;  // generous: machines under sanitizers are slow

// Waits as kernels do: poll, back off, hand over and sleep. Returns false when a connection failed
// or time is up.
template <class Ready, class Sleep>
bool Await(ProxyConnection* connection, Ready ready, Sleep sleep) {
  const WaitPolicy policy;
  const Deadline deadline = Deadline::After(kBoundNs);
  Backoff backoff(policy);
  while (!ready()) {
    if (connection && !connection->status().ok()) return false;
    if (deadline.Passed()) return false;
    if (connection) connection->Poll();
    if (ready()) return true;
    if (backoff.Pause()) continue;
    if (connection) connection->HandOver();
    sleep();
  }
  return true;
}

inline std::byte* AwaitRoom(TransportPair& pair, size_t bytes, int64_t sleep_ns = 100'000'000) {
  std::byte* place = nullptr;
  Await(
      pair.producer_connection,
      [&] { return (place = pair.producer.TryAcquire(bytes)) != nullptr; },
      [&] { pair.producer.SleepForRoom(sleep_ns); });
  return place;
}

inline FifoChunk AwaitChunk(TransportPair& pair, int64_t sleep_ns = 100'000'000) {
  FifoChunk chunk;
  Await(
      pair.consumer_connection, [&] { return (chunk = pair.consumer.TryPeek()).data != nullptr; },
      [&] { pair.consumer.SleepForChunk(sleep_ns); });
  return chunk;
}

// Writes the content of chunk `number`: a function of the number and the place, which reveals a
// shift, a repeat or a swap.
inline void Fill(std::byte* data, size_t bytes, uint64_t number) {
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>((number * 131 + i * 7 + (i >> 8)) & 0xff);
  }
}
inline bool Holds(const FifoChunk& chunk, size_t bytes, uint64_t number) {
  std::vector<std::byte> expected(bytes);
  Fill(expected.data(), bytes, number);
  return chunk.bytes == bytes &&
         (bytes == 0 || std::memcmp(chunk.data, expected.data(), bytes) == 0);
}
inline uint32_t TagOf(uint64_t number) { return static_cast<uint32_t>(number * 2654435761u); }

// Sends chunks of these sizes as one operation; stops at the first failure.
inline void Produce(TransportPair& pair, const std::vector<size_t>& sizes, uint64_t first = 0) {
  if (pair.producer_connection) pair.producer_connection->Begin(sizes.size(), TagOf(first));
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::byte* const place = AwaitRoom(pair, sizes[i]);
    ASSERT_NE(place, nullptr) << "no room for chunk " << first + i;
    Fill(place, sizes[i], first + i);
    pair.producer.Publish(sizes[i], TagOf(first + i));
  }
  if (pair.producer_connection) pair.producer_connection->HandOver();
}

inline void Consume(TransportPair& pair, const std::vector<size_t>& sizes, uint64_t first = 0) {
  if (pair.consumer_connection) pair.consumer_connection->Begin(sizes.size(), TagOf(first));
  for (size_t i = 0; i < sizes.size(); ++i) {
    const FifoChunk chunk = AwaitChunk(pair);
    ASSERT_NE(chunk.data, nullptr)
        << "chunk " << first + i << " did not come: "
        << (pair.consumer_connection ? pair.consumer_connection->status().message() : "");
    ASSERT_TRUE(Holds(chunk, sizes[i], first + i)) << "chunk " << first + i << " is damaged";
    ASSERT_EQ(chunk.op_tag, TagOf(first + i));
    pair.consumer.Release();
  }
  if (pair.consumer_connection) pair.consumer_connection->HandOver();
}

inline void Transfer(TransportPair& pair, const std::vector<size_t>& sizes) {
  std::thread producer([&] { Produce(pair, sizes); });
  Consume(pair, sizes);
  producer.join();
}

// --- cases ---

inline void CarriesSmallChunksInline(const TransportFactory& factory) {
  const auto pair = factory.make(kSlotBytes);
  Transfer(*pair, {0, 1, 2, 7, 8, 31, 47, 48, 0, 48, 49, 1});
}

inline void CarriesFullSlots(const TransportFactory& factory) {
  const auto pair = factory.make(kSlotBytes);
  Transfer(*pair, std::vector<size_t>(50, kSlotBytes));
}

inline void CarriesOddSizes(const TransportFactory& factory) {
  const auto pair = factory.make(kSlotBytes);
  std::vector<size_t> sizes;
  for (const size_t near : {64u, 4096u, 8168u, 8192u, 16384u, 32768u, 65536u}) {
    for (const size_t off : {3u, 1u, 0u}) sizes.push_back(near - off);
    if (near < kSlotBytes) sizes.push_back(near + 1);
  }
  Transfer(*pair, sizes);
}

inline void KeepsOrderOverManyWraps(const TransportFactory& factory) {
  const auto pair = factory.make(4096);
  std::mt19937 random(7);
  std::vector<size_t> sizes(30'000);
  for (size_t& bytes : sizes) bytes = random() % 8 == 0 ? random() % 4097 : random() % 100;
  Transfer(*pair, sizes);
}

inline void CarriesOneOperationAfterAnother(const TransportFactory& factory) {
  const auto pair = factory.make(4096);
  constexpr uint64_t kOperations = 500;
  const std::vector<size_t> sizes = {4096, 5, 100};
  std::thread producer([&] {
    for (uint64_t i = 0; i < kOperations; ++i) Produce(*pair, sizes, i * sizes.size());
  });
  for (uint64_t i = 0; i < kOperations; ++i) Consume(*pair, sizes, i * sizes.size());
  producer.join();
}

inline void HoldsBackAProducerThatIsAhead(const TransportFactory& factory) {
  const auto pair = factory.make(4096);
  constexpr uint64_t kChunks = 64;
  if (pair->producer_connection) pair->producer_connection->Begin(kChunks, 0);
  if (pair->consumer_connection) pair->consumer_connection->Begin(kChunks, 0);
  uint64_t published = 0;
  // Publishes until `end` chunks are out, and then tries in vain for a while.
  const auto fill_up_to = [&](uint64_t end) {
    constexpr int kMoreTries = 1000;
    const Deadline deadline = Deadline::After(kBoundNs);
    for (int more = 0; more < kMoreTries && !deadline.Passed(); more += published >= end) {
      if (pair->producer_connection) pair->producer_connection->Poll();
      if (pair->consumer_connection) pair->consumer_connection->Poll();
      if (std::byte* const place = pair->producer.TryAcquire(4096)) {
        Fill(place, 4096, published);
        pair->producer.Publish(4096, TagOf(published++));
      }
    }
  };
  // Between hosts either end has a FIFO.
  const uint64_t slots =
      (pair->producer_connection ? 2 : 1) * uint64_t{kFifoSlots} + pair->chunks_in_network;
  fill_up_to(slots);
  ASSERT_EQ(published, slots);
  for (uint64_t i = 0; i < kFifoSlots; ++i) {
    ASSERT_TRUE(Holds(AwaitChunk(*pair), 4096, i));
    pair->consumer.Release();
  }
  fill_up_to(slots + kFifoSlots);
  EXPECT_EQ(published, slots + kFifoSlots);  // exactly the released slots
}

inline void WakesASleepingConsumer(const TransportFactory& factory) {
  const auto pair = factory.make(4096);
  if (pair->consumer_connection) pair->consumer_connection->Begin(5, 0);
  std::thread producer([&, consumer = testing::ThisThread()] {
    for (uint64_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(testing::AwaitAsleep(consumer));
      Produce(*pair, {100}, i);
    }
  });
  for (uint64_t i = 0; i < 5; ++i) {
    const int64_t before_ns = NowNs();
    // a lost wake-up sleeps for the whole bound
    const FifoChunk chunk = AwaitChunk(*pair, kBoundNs);
    EXPECT_TRUE(Holds(chunk, 100, i));
    EXPECT_LT(NowNs() - before_ns, kBoundNs / 2);
    if (!chunk.data) break;
    pair->consumer.Release();
    if (pair->consumer_connection) pair->consumer_connection->HandOver();
  }
  producer.join();
}

inline void WakesASleepingProducer(const TransportFactory& factory) {
  const auto pair = factory.make(4096);
  constexpr uint64_t kChunks = 40;
  std::thread consumer([&, producer = testing::ThisThread()] {
    if (pair->consumer_connection) pair->consumer_connection->Begin(kChunks, 0);
    for (uint64_t i = 0; i < kChunks; ++i) {
      if (i % 8 == 0) {
        EXPECT_TRUE(testing::AwaitAsleep(producer));
      }
      const FifoChunk chunk = AwaitChunk(*pair, kBoundNs);
      ASSERT_TRUE(Holds(chunk, 4096, i));
      pair->consumer.Release();
    }
  });
  if (pair->producer_connection) pair->producer_connection->Begin(kChunks, 0);
  const int64_t before_ns = NowNs();
  for (uint64_t i = 0; i < kChunks; ++i) {
    std::byte* const place = AwaitRoom(*pair, 4096, kBoundNs);
    EXPECT_NE(place, nullptr);
    if (!place) break;
    Fill(place, 4096, i);
    pair->producer.Publish(4096, TagOf(i));
  }
  if (pair->producer_connection) pair->producer_connection->HandOver();
  EXPECT_LT(NowNs() - before_ns, kBoundNs / 2);
  consumer.join();
}

// The producer leaves at once. Its published chunks arrive without it.
inline void DeliversWhatAProducerLeftBehind(const TransportFactory& factory) {
  const auto pair = factory.make(kSlotBytes);
  const std::vector<size_t> sizes(kFifoSlots, kSlotBytes);
  Produce(*pair, sizes);
  Consume(*pair, sizes);
}

inline void CarriesBothWaysAtOnce(const TransportFactory& factory) {
  const auto forth = factory.make(kSlotBytes);
  const auto back = factory.make(kSlotBytes);
  constexpr uint64_t kChunks = 200;
  // One thread per side, as a kernel in the middle of a ring: it sends on one connection and
  // receives on the other.
  const auto side = [&](TransportPair& out, TransportPair& in) {
    if (out.producer_connection) out.producer_connection->Begin(kChunks, 0);
    if (in.consumer_connection) in.consumer_connection->Begin(kChunks, 0);
    uint64_t sent = 0;
    uint64_t received = 0;
    for (const Deadline deadline = Deadline::After(kBoundNs);
         (sent < kChunks || received < kChunks) && !deadline.Passed();) {
      std::byte* const place = sent < kChunks ? out.producer.TryAcquire(kSlotBytes) : nullptr;
      if (place) {
        Fill(place, kSlotBytes, sent);
        out.producer.Publish(kSlotBytes, TagOf(sent++));
      }
      if (out.producer_connection) out.producer_connection->Poll();
      if (in.consumer_connection) in.consumer_connection->Poll();
      const FifoChunk chunk = received < kChunks ? in.consumer.TryPeek() : FifoChunk{};
      if (!chunk.data && !place) std::this_thread::yield();
      if (!chunk.data) continue;
      ASSERT_TRUE(Holds(chunk, kSlotBytes, received));
      ++received;
      in.consumer.Release();
    }
    if (out.producer_connection) out.producer_connection->HandOver();
    EXPECT_EQ(sent, kChunks);
    EXPECT_EQ(received, kChunks);
  };
  std::thread other([&] { side(*back, *forth); });
  side(*forth, *back);
  other.join();
}

inline void TellsAConsumerThatItsPeerDied(const TransportFactory& factory) {
  const auto pair = factory.make(4096);
  Transfer(*pair, {10, 20, 30});
  pair->consumer_connection->Begin(1, 0x77);
  std::thread killer([&, consumer = testing::ThisThread()] {
    EXPECT_TRUE(testing::AwaitAsleep(consumer));
    pair->KillProducer();
  });
  const int64_t before_ns = NowNs();
  EXPECT_EQ(AwaitChunk(*pair, kBoundNs).data, nullptr);  // a connection that wakes nobody sleeps on
  EXPECT_LT(NowNs() - before_ns, kBoundNs / 2);
  killer.join();
  EXPECT_EQ(pair->consumer_connection->status().code(), Code::kRemoteError);
  EXPECT_NE(pair->consumer_connection->status().message().find("chunk 1 of 1 of operation 0x77"),
            std::string::npos)
      << pair->consumer_connection->status().message();
}

inline void TellsAProducerThatItsPeerDied(const TransportFactory& factory) {
  const auto pair = factory.make(4096);
  Transfer(*pair, {10, 20, 30});
  pair->producer_connection->Begin(1000, 0x77);
  std::thread killer([&, producer = testing::ThisThread()] {
    EXPECT_TRUE(testing::AwaitAsleep(producer));
    pair->KillConsumer();
  });
  const int64_t before_ns = NowNs();
  uint64_t sent = 0;
  for (; sent < 1000; ++sent) {
    std::byte* const place = AwaitRoom(*pair, 4096, kBoundNs);
    if (!place) break;
    Fill(place, 4096, sent);
    pair->producer.Publish(4096, 0x77);
  }
  EXPECT_LT(NowNs() - before_ns, kBoundNs / 2);
  killer.join();
  EXPECT_LE(sent, uint64_t{2 * kFifoSlots} + pair->chunks_in_network);
  EXPECT_EQ(pair->producer_connection->status().code(), Code::kRemoteError)
      << pair->producer_connection->status().message();
}

struct Case {
  const char* name;
  void (*run)(const TransportFactory&);
};

inline std::vector<Case> Cases(bool notices_deaths) {
  std::vector<Case> cases = {{"CarriesSmallChunksInline", CarriesSmallChunksInline},
                             {"CarriesFullSlots", CarriesFullSlots},
                             {"CarriesOddSizes", CarriesOddSizes},
                             {"KeepsOrderOverManyWraps", KeepsOrderOverManyWraps},
                             {"CarriesOneOperationAfterAnother", CarriesOneOperationAfterAnother},
                             {"HoldsBackAProducerThatIsAhead", HoldsBackAProducerThatIsAhead},
                             {"WakesASleepingConsumer", WakesASleepingConsumer},
                             {"WakesASleepingProducer", WakesASleepingProducer},
                             {"DeliversWhatAProducerLeftBehind", DeliversWhatAProducerLeftBehind},
                             {"CarriesBothWaysAtOnce", CarriesBothWaysAtOnce}};
  if (notices_deaths) {
    cases.push_back({"TellsAConsumerThatItsPeerDied", TellsAConsumerThatItsPeerDied});
    cases.push_back({"TellsAProducerThatItsPeerDied", TellsAProducerThatItsPeerDied});
  }
  return cases;
}

}  // namespace contract

using ContractParam = std::tuple<TransportFactory, contract::Case>;

class TransportContract : public ::testing::TestWithParam<ContractParam> {
 protected:
  void Run() { std::get<1>(GetParam()).run(std::get<0>(GetParam())); }
};

inline auto ContractCasesFor(TransportFactory factory) {
  const bool notices_deaths = factory.notices_deaths;
  return ::testing::Combine(::testing::Values(std::move(factory)),
                            ::testing::ValuesIn(contract::Cases(notices_deaths)));
}

inline std::string ContractCaseName(const ::testing::TestParamInfo<ContractParam>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
}

}  // namespace tutti
