// Proxy connections: whom they wake, who drives them, how they fail and close.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "proxy/connection_ends.h"
#include "proxy/fifo_memory.h"
#include "proxy/op_pool.h"
#include "proxy/testing/pair.h"
#include "testing/threads.h"

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 4096;

std::unique_ptr<TestPair> MakePair() {
  Settings settings;
  settings.socket_nthreads = 1;
  settings.nsocks_perthread = 1;
  return TestPair::Create(kSlotBytes, settings).value();
}

void Publish(FifoSender& fifo, size_t bytes = 100) {
  std::byte* const place = fifo.TryAcquire(bytes);
  ASSERT_NE(place, nullptr);
  std::memset(place, 1, bytes);
  fifo.Publish(bytes, 0x2a);
}

// Both ends of a pair have a proxy, and so a progress thread.
std::vector<pid_t> ProgressThreads() { return testing::ThreadsCalled("tutti-proxy"); }

TEST(ProxyConnectionTest, WakesNobodyWhileIdle) {
  const auto pair = MakePair();
  FifoSender out(pair->send_connection->fifo());
  FifoReceiver in(pair->recv_connection->fifo());
  // The same holds after use, and while an operation waits for a peer that does not come.
  pair->send_connection->Begin(1, 0x2a);
  pair->recv_connection->Begin(2, 0x2a);
  Publish(out);
  pair->send_connection->HandOver();
  pair->recv_connection->HandOver();
  for (const Deadline deadline = Deadline::AfterSeconds(20); !in.TryPeek().data;) {
    ASSERT_FALSE(deadline.Passed());
    in.SleepForChunk(10'000'000);
  }
  for (const pid_t thread : ProgressThreads()) EXPECT_TRUE(testing::StaysAsleep(thread, 200));
}

// Announces a chunk that lies in a buffer of the user, as kernels do.
void PublishLent(FifoView fifo, uint64_t number, const std::byte* chunk, size_t bytes) {
  SlotHeader& header = fifo.header(number);
  header.bytes = static_cast<uint32_t>(bytes) | kInDataArea | kIsLent;
  header.op_tag = 0x2a;
  std::memcpy(header.inline_data, &chunk, sizeof(chunk));
  header.seq.store(number + 1, std::memory_order_release);
}

TEST(ProxyConnectionTest, SendsWhatIsLentFromWhereItLies) {
  std::vector<std::byte> buffer(20 * kSlotBytes);
  for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<std::byte>(i * 7 >> 3);
  const auto lent = std::make_unique<LentBuffers>();
  const void* const token =
      lent->Add(std::make_shared<NetRegion>(NetRegion{buffer.data(), buffer.size()}));
  const auto pair =
      TestPair::Create(kSlotBytes, Settings(), /*ipv6=*/false, /*polled=*/false, lent.get())
          .value();
  const FifoView out = pair->send_connection->fifo();
  FifoReceiver in(pair->recv_connection->fifo());
  const auto drive = [&] {
    pair->send_connection->Poll();
    pair->recv_connection->Poll();
  };
  // A length with room in the slot, a length with room in a line of the header, and a length with
  // neither.
  const size_t lengths[] = {kSlotBytes, 3, 0};
  uint64_t number = 0;
  for (size_t at = 0; at < buffer.size(); at += kSlotBytes, ++number) {
    const size_t bytes = lengths[number % 3];
    pair->send_connection->Begin(1, 0x2a);
    pair->recv_connection->Begin(1, 0x2a);
    PublishLent(out, number, buffer.data() + at, bytes);
    while (in.TryPeek().data == nullptr) drive();
    const FifoChunk chunk = in.TryPeek();
    ASSERT_EQ(chunk.bytes, bytes);
    EXPECT_TRUE(std::equal(chunk.data, chunk.data + bytes, buffer.data() + at));
    EXPECT_EQ(chunk.op_tag, 0x2au);
    in.Release();
  }
  // Only then is the kernel told that the buffer belongs to its caller again.
  while (out.control().head.load() != number) drive();
  lent->Remove(token);
  EXPECT_EQ(lent->Find(buffer.data(), 1), nullptr);
  pair->send_connection->Begin(1, 0x2a);
  PublishLent(out, number, buffer.data(), kSlotBytes);
  while (pair->send_connection->status().ok()) drive();
  EXPECT_NE(pair->send_connection->status().message().find("whose registration has ended"),
            std::string::npos);
}

TEST(LentBuffersTest, HoldWhatLiesInOneOfThem) {
  std::array<std::byte, 100> memory;
  LentBuffers lent;
  const void* const first = lent.Add(std::make_shared<NetRegion>(NetRegion{memory.data(), 50}));
  lent.Add(std::make_shared<NetRegion>(NetRegion{memory.data() + 50, 50}));
  EXPECT_EQ(lent.Find(memory.data(), 50)->address, memory.data());
  EXPECT_EQ(lent.Find(memory.data() + 99, 1)->address, memory.data() + 50);
  EXPECT_EQ(lent.Find(memory.data() + 49, 2), nullptr) << "it lies in two";
  EXPECT_EQ(lent.Find(memory.data() + 60, SIZE_MAX), nullptr);
  lent.Remove(first);
  EXPECT_EQ(lent.Find(memory.data(), 1), nullptr);
  EXPECT_NE(lent.Find(memory.data() + 50, 1), nullptr);
}

TEST(ProxyConnectionTest, APolledConnectionDoesNotWakeTheProgressThread) {
  const auto pair = MakePair();
  FifoSender out(pair->send_connection->fifo());
  FifoReceiver in(pair->recv_connection->fifo());
  constexpr uint64_t kChunks = 2000;
  pair->recv_connection->Begin(kChunks, 0x2a);
  pair->recv_connection->HandOver();  // once, like a kernel that slept before its first chunk
  const auto sleeps = [] {
    int64_t all = 0;
    for (const pid_t thread : ProgressThreads()) all += testing::SleepsOf(thread);
    return all;
  };
  const int64_t before = sleeps();
  const int64_t before_ns = NowNs();
  for (uint64_t i = 0; i < kChunks; ++i) {
    pair->send_connection->Begin(1, 0x2a);
    Publish(out);
    pair->send_connection->HandOver();
    while (!in.TryPeek().data) {
      pair->recv_connection->Poll();
      ASSERT_TRUE(pair->recv_connection->status().ok());
    }
    in.Release();
  }
  // A few wake-ups for each look, and a single look per millisecond. The sender's thread also wakes
  // for a grant where the polling thread was kept from running. Not a wake-up per chunk.
  const int64_t allowed = (NowNs() - before_ns) / 1'000'000 * 4 + kChunks * 3 / 4;
  EXPECT_LE(sleeps() - before, allowed);
}

TEST(ProxyConnectionTest, TheProgressThreadFinishesWhatIsHandedOver) {
  const auto pair = MakePair();
  FifoSender out(pair->send_connection->fifo());
  FifoReceiver in(pair->recv_connection->fifo());
  // The sender runs dry of grants, then leaves; nobody polls on either side from here on.
  constexpr uint64_t kChunks = 3 * kFifoSlots;
  pair->send_connection->Begin(kChunks, 0x2a);
  pair->recv_connection->Begin(kChunks, 0x2a);
  uint64_t published = 0;
  uint64_t received = 0;
  for (const Deadline deadline = Deadline::AfterSeconds(20); received < kChunks;) {
    ASSERT_FALSE(deadline.Passed()) << pair->send_connection->Describe();
    while (published < kChunks && out.TryAcquire(100)) {
      Publish(out);
      ++published;
    }
    pair->send_connection->HandOver();
    pair->recv_connection->HandOver();
    in.SleepForChunk(50'000'000);
    for (; in.TryPeek().data; ++received) in.Release();
  }
  // The progress thread counts the last chunk after it has published it.
  const std::string idle = "receiving from rank 0 on host a: nothing under way";
  const Deadline deadline = Deadline::AfterSeconds(20);
  while (pair->recv_connection->Describe() != idle && !deadline.Passed()) std::this_thread::yield();
  EXPECT_EQ(pair->recv_connection->Describe(), idle);
}

TEST(ProxyConnectionTest, AKernelSleepsOnTheDescriptorsOfWhatItTakesBack) {
  const auto pair = MakePair();
  FifoSender out(pair->send_connection->fifo());
  FifoReceiver in(pair->recv_connection->fifo());
  std::vector<pollfd> descriptors;
  EXPECT_EQ(pair->recv_connection->PrepareToSleep(descriptors), SleepAdvice::kSleep);
  EXPECT_TRUE(descriptors.empty());  // nothing is under way

  pair->recv_connection->Begin(2, 0x2a);
  pair->recv_connection->HandOver();
  ASSERT_EQ(pair->recv_connection->PrepareToSleep(descriptors), SleepAdvice::kSleep);
  ASSERT_EQ(descriptors.size(), 1U);
  pair->send_connection->Begin(2, 0x2a);
  Publish(out);
  pair->send_connection->Poll();
  EXPECT_EQ(poll(descriptors.data(), 1, 20'000), 1);
  // The progress thread has given the connection back: arrived data waits until this thread looks.
  for (const pid_t thread : ProgressThreads()) EXPECT_TRUE(testing::StaysAsleep(thread, 50));
  EXPECT_EQ(in.TryPeek().data, nullptr);
  descriptors.clear();
  EXPECT_EQ(pair->recv_connection->PrepareToSleep(descriptors), SleepAdvice::kGoOn);
  EXPECT_NE(in.TryPeek().data, nullptr);
  in.Release();

  // A connection that is handed over again goes to the progress thread again.
  pair->recv_connection->HandOver();
  Publish(out);
  pair->send_connection->Poll();
  for (const Deadline deadline = Deadline::AfterSeconds(20); !in.TryPeek().data;) {
    ASSERT_FALSE(deadline.Passed());
    in.SleepForChunk(10'000'000);
  }
}

TEST(ProxyConnectionTest, AKernelDoesNotSleepOnABrokenConnection) {
  const auto pair = MakePair();
  pair->recv_connection->Begin(1, 0x2a);
  pair->recv_connection->Close(InternalError("closed by the test"));
  std::vector<pollfd> descriptors;
  EXPECT_EQ(pair->recv_connection->PrepareToSleep(descriptors), SleepAdvice::kGoOn);
  EXPECT_FALSE(pair->recv_connection->status().ok());
}

TEST(ProxyConnectionTest, ABeginningThatIsForgottenIsDescribed) {
  const auto pair = MakePair();
  pair->recv_connection->Begin(8, 0x2a);
  pair->recv_connection->Poll();
  EXPECT_EQ(pair->recv_connection->Describe(),
            "receiving from rank 0 on host a: operation 0x2a, 0 of 8 chunks done, 8 posted");
}

TEST(ProxyConnectionTest, TheErrorNamesPeerAddressOperationChunkAndErrno) {
  auto pair = MakePair();
  FifoSender out(pair->send_connection->fifo());
  pair->recv_connection->Begin(3, 0x2a);
  pair->send_connection->Begin(3, 0x2a);
  Publish(out);
  ASSERT_TRUE(pair->send_connection->Flush(20'000'000'000, nullptr).ok());
  pair->send_connection->Close(InternalError("gone"));
  for (const Deadline deadline = Deadline::AfterSeconds(20);
       pair->recv_connection->status().ok();) {
    ASSERT_FALSE(deadline.Passed());
    pair->recv_connection->Poll();
  }
  const std::string message(pair->recv_connection->status().message());
  for (const char* part : {"receiving chunk 2 of 3 of operation 0x2a from rank 0 on host a",
                           "127.0.0.1:", "over lo", "the peer closed the connection", "log"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_EQ(pair->recv_connection->status().code(), Code::kRemoteError);
  EXPECT_EQ(pair->send_connection->status().message(), "gone");
}

TEST(ProxyConnectionTest, ClosesFromAnotherThreadWhileOneSleepsAndOnePolls) {
  constexpr int64_t kNapNs = 60'000'000'000;
  for (int round = 0; round < 20; ++round) {
    const auto pair = MakePair();
    FifoReceiver in(pair->recv_connection->fifo());
    pair->recv_connection->Begin(1, 0x2a);
    std::promise<pid_t> who;
    std::thread sleeper([&] {
      pair->recv_connection->HandOver();
      who.set_value(testing::ThisThread());
      while (pair->recv_connection->status().ok()) in.SleepForChunk(kNapNs);
    });
    std::thread poller([&] {
      while (pair->recv_connection->status().ok()) pair->recv_connection->Poll();
    });
    EXPECT_TRUE(testing::AwaitAsleep(who.get_future().get()));
    const int64_t before_ns = NowNs();
    pair->recv_connection->Close(InternalError("aborted"));
    sleeper.join();
    poller.join();
    EXPECT_LT(NowNs() - before_ns, kNapNs / 2);  // a wake-up ended the nap
    EXPECT_EQ(pair->recv_connection->status().message(), "aborted");
    EXPECT_FALSE(pair->recv_connection->Poll());
  }
}

TEST(ProxyConnectionTest, SendsWhatWasPublishedBeforeItGoes) {
  const auto pair = MakePair();
  FifoSender out(pair->send_connection->fifo());
  FifoReceiver in(pair->recv_connection->fifo());
  pair->send_connection->Begin(kFifoSlots, 0x2a);
  for (int i = 0; i < kFifoSlots; ++i) Publish(out, kSlotBytes);
  pair->send_connection.reset();
  pair->recv_connection->Begin(kFifoSlots, 0x2a);
  int received = 0;
  for (const Deadline deadline = Deadline::AfterSeconds(20);
       received < kFifoSlots && !deadline.Passed();) {
    pair->recv_connection->Poll();
    for (; in.TryPeek().data; ++received) in.Release();
  }
  EXPECT_EQ(received, kFifoSlots) << pair->recv_connection->status().message();
}

// A flush waits for as long as its peer goes on taking, however slowly.
TEST(FlushPatienceTest, EachDeliveryBeginsItAnew) {
  FlushPatience patience(100, 0);
  int64_t now_ns = 0;
  for (int chunk = 0; chunk < 50; ++chunk) {
    now_ns += 99;
    EXPECT_FALSE(patience.IsOver(now_ns)) << chunk;
    patience.Note(true, now_ns);
  }
  patience.Note(false, now_ns + 50);
  EXPECT_FALSE(patience.IsOver(now_ns + 99));
  EXPECT_TRUE(patience.IsOver(now_ns + 100));
}

TEST(ProxyConnectionTest, AFlushWaitsForItsPeer) {
  constexpr size_t kBytes = 64 * 1024;  // too much to travel ahead of a grant
  const auto pair = TestPair::Create(kBytes, Settings()).value();
  FifoSender out(pair->send_connection->fifo());
  FifoReceiver in(pair->recv_connection->fifo());
  pair->recv_connection->Begin(2 * kFifoSlots, 0x2a);
  pair->send_connection->Begin(2 * kFifoSlots, 0x2a);
  // The receiver's slots are full; the next chunks go when the receiver takes some.
  int published = 0;
  for (const Deadline deadline = Deadline::AfterSeconds(20); published < 2 * kFifoSlots;) {
    ASSERT_FALSE(deadline.Passed());
    pair->recv_connection->Poll();
    pair->send_connection->Poll();
    for (; published < 2 * kFifoSlots && out.TryAcquire(kBytes) != nullptr; ++published)
      Publish(out, kBytes);
  }
  const pid_t flusher = testing::ThisThread();
  std::thread receiver([&, before = testing::SleepsOf(flusher)] {
    // The flush naps when nothing moves.
    for (const Deadline bound = Deadline::AfterSeconds(20);
         testing::SleepsOf(flusher) == before && !bound.Passed();)
      std::this_thread::yield();
    for (int received = 0; received < 2 * kFifoSlots;) {
      pair->recv_connection->Poll();
      if (in.TryPeek().data == nullptr) continue;
      in.Release();
      ++received;
      pair->recv_connection->Poll();
    }
  });
  const Status flushed = pair->send_connection->Flush(60'000'000'000, nullptr);
  EXPECT_TRUE(flushed.ok()) << flushed.message();
  receiver.join();
}

TEST(ProxyConnectionTest, AFlushEndsWhenItIsStopped) {
  const auto pair = MakePair();
  FifoSender out(pair->send_connection->fifo());
  pair->send_connection->Begin(1, 0x2a);
  Publish(out);
  const std::atomic<bool> stop = true;
  EXPECT_EQ(pair->send_connection->Flush(kFlushNs, &stop).code(), Code::kTimeout);
  pair->send_connection->Close(InternalError("stopped"));
}

// Its peer takes nothing, so the sent bytes lie in this host's socket buffer.
TEST(ProxyConnectionTest, AClosedConnectionGoesAtOnce) {
  Settings settings;
  settings.socket_nthreads = 1;
  settings.nsocks_perthread = 1;
  for (const bool closed : {true, false}) {
    const auto pair = TestPair::Create(64 * 1024, settings).value();
    FifoSender out(pair->send_connection->fifo());
    pair->send_connection->Begin(kFifoSlots, 0x2a);
    for (int i = 0; i < kFifoSlots; ++i) Publish(out, 64 * 1024);
    pair->send_connection->HandOver();
    EXPECT_EQ(pair->send_connection->Flush(20'000'000, nullptr).code(), Code::kTimeout);
    const int64_t before_ns = NowNs();
    if (closed) {
      pair->send_connection->Close(InternalError("aborted"));
    } else {
      pair->recv_connection.reset();  // the flush ends with the connection, too
    }
    pair->send_connection.reset();
    EXPECT_LT(NowNs() - before_ns, kFlushNs / 2) << closed;
  }
}

TEST(FifoMemoryTest, RefusesSlotsOfImpossibleSizes) {
  for (const size_t slot_bytes : {size_t{0}, size_t{100}, size_t{1} << 40}) {
    EXPECT_FALSE(FifoMemory::Create(slot_bytes, 0, true).ok());
  }
  EXPECT_FALSE(FifoMemory::Create(4096, 4, true).ok());
}

TEST(FifoMemoryTest, IsZeroedAlignedAndAsLargeAsTheFifo) {
  for (const size_t slot_bytes : {size_t{64}, size_t{4096}, size_t{512} * 1024}) {
    const FifoMemory memory = FifoMemory::Create(slot_bytes, 0, true).value();
    const FifoView view = memory.view();
    const auto address = reinterpret_cast<size_t>(view.base);
    EXPECT_EQ(address % (slot_bytes >= 512 * 1024 ? size_t{2} << 20 : size_t{4096}), 0u);
    for (size_t i = 0; i < FifoView::BytesFor(slot_bytes); i += 512) {
      ASSERT_EQ(view.base[i], std::byte{0});
    }
    view.base[FifoView::BytesFor(slot_bytes) - 1] = std::byte{1};
  }
}

TEST(OpPoolTest, FindsTheOperationOfAChunkUntilItIsDone) {
  OpPool pool;
  ASSERT_TRUE(pool.Add(3, 0xa));
  ASSERT_TRUE(pool.Add(0, 0xb));  // nothing to do, nothing to remember
  ASSERT_TRUE(pool.Add(2, 0xc));
  EXPECT_EQ(pool.end(), 5u);
  EXPECT_EQ(pool.Find(2).op_tag, 0xau);
  EXPECT_EQ(pool.Find(3).op_tag, 0xcu);
  EXPECT_EQ(pool.Find(3).first_chunk, 3u);
  EXPECT_EQ(pool.Find(5).chunks, 0u);
  pool.Retire(2);
  EXPECT_EQ(pool.Find(0).op_tag, 0xau);
  pool.Retire(3);
  EXPECT_EQ(pool.Find(0).op_tag, 0xcu);
  pool.Retire(5);
  EXPECT_EQ(pool.Find(4).chunks, 0u);
}

TEST(OpPoolTest, IsBounded) {
  OpPool pool;
  for (uint64_t i = 0; i < OpPool::kOps; ++i) ASSERT_TRUE(pool.Add(1, 0));
  EXPECT_FALSE(pool.Add(1, 0));
  pool.Retire(1);
  EXPECT_TRUE(pool.Add(1, 0));
}

TEST(ProxyConnectionTest, TooManyOperationsAtOnceAreAnErrorNotAnOverflow) {
  const auto pair = MakePair();
  for (uint64_t i = 0; i <= OpPool::kOps; ++i) pair->recv_connection->Begin(1, 0);
  EXPECT_EQ(pair->recv_connection->status().code(), Code::kInternalError);
}

}  // namespace
}  // namespace tutti
