// Ports: what they cost while idle, who drives them, how they fail and close.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "proxy/fifo_memory.h"
#include "proxy/op_pool.h"
#include "proxy/test_pair.h"

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

int64_t ProcessCpuNs() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// How often the kernel has let the threads named "tutti-proxy" go to sleep: each wake-up ends in
// one more.
int64_t ProxySleeps() {
  int64_t sleeps = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name != "tutti-proxy") continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("voluntary_ctxt_switches:")) sleeps += std::stoll(line.substr(24));
    }
  }
  return sleeps;
}

TEST(PortTest, CostsNothingWhileIdle) {
  const auto pair = MakePair();
  FifoSender out(pair->send_port->fifo());
  FifoReceiver in(pair->recv_port->fifo());
  // Also after use, and while an operation waits for a peer that does not come.
  pair->send_port->Begin(1, 0x2a);
  pair->recv_port->Begin(2, 0x2a);
  Publish(out);
  pair->send_port->HandOver();
  pair->recv_port->HandOver();
  for (const Deadline deadline = Deadline::AfterSeconds(20); !in.TryPeek().data;) {
    ASSERT_FALSE(deadline.Passed());
    in.SleepForChunk(10'000'000);
  }
  // What wakes now and then does so in each of these; what a busy machine does late, in few of
  // them.
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (int window = 0; window < 10 && least_ns >= 2'000'000; ++window) {
    const int64_t before_ns = ProcessCpuNs();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    least_ns = std::min(least_ns, ProcessCpuNs() - before_ns);
  }
  EXPECT_LT(least_ns, 2'000'000);
}

TEST(PortTest, APolledPortDoesNotWakeTheProgressThread) {
  const auto pair = MakePair();
  FifoSender out(pair->send_port->fifo());
  FifoReceiver in(pair->recv_port->fifo());
  constexpr uint64_t kChunks = 2000;
  pair->recv_port->Begin(kChunks, 0x2a);
  pair->recv_port->HandOver();  // once, as a kernel does that slept before its first chunk
  const int64_t before = ProxySleeps();
  const int64_t before_ns = NowNs();
  for (uint64_t i = 0; i < kChunks; ++i) {
    pair->send_port->Begin(1, 0x2a);
    Publish(out);
    pair->send_port->HandOver();
    while (!in.TryPeek().data) {
      pair->recv_port->Poll();
      ASSERT_TRUE(pair->recv_port->status().ok());
    }
    in.Release();
  }
  // A few wake-ups for each look, one look per millisecond; not one per chunk.
  const int64_t allowed = (NowNs() - before_ns) / 1'000'000 * 4 + 100;
  EXPECT_LE(ProxySleeps() - before, allowed);
}

TEST(PortTest, TheProgressThreadFinishesWhatIsHandedOver) {
  const auto pair = MakePair();
  FifoSender out(pair->send_port->fifo());
  FifoReceiver in(pair->recv_port->fifo());
  // The sender runs dry of grants, then leaves; nobody polls on either side from here on.
  constexpr uint64_t kChunks = 3 * kFifoSlots;
  pair->send_port->Begin(kChunks, 0x2a);
  pair->recv_port->Begin(kChunks, 0x2a);
  uint64_t published = 0;
  uint64_t received = 0;
  for (const Deadline deadline = Deadline::AfterSeconds(20); received < kChunks;) {
    ASSERT_FALSE(deadline.Passed()) << pair->send_port->Describe();
    while (published < kChunks && out.TryAcquire(100)) {
      Publish(out);
      ++published;
    }
    pair->send_port->HandOver();
    pair->recv_port->HandOver();
    in.SleepForChunk(50'000'000);
    for (; in.TryPeek().data; ++received) in.Release();
  }
  EXPECT_EQ(pair->recv_port->Describe(), "receiving from rank 0 on host a: nothing under way");
}

TEST(PortTest, ABeginningThatIsForgottenIsDescribed) {
  const auto pair = MakePair();
  pair->recv_port->Begin(8, 0x2a);
  pair->recv_port->Poll();
  EXPECT_EQ(pair->recv_port->Describe(),
            "receiving from rank 0 on host a: operation 0x2a, 0 of 8 chunks done, 8 posted");
}

TEST(PortTest, TheErrorNamesPeerAddressOperationChunkAndErrno) {
  auto pair = MakePair();
  FifoSender out(pair->send_port->fifo());
  pair->recv_port->Begin(3, 0x2a);
  pair->send_port->Begin(3, 0x2a);
  Publish(out);
  ASSERT_TRUE(pair->send_port->Flush(Deadline::AfterSeconds(20)).ok());
  pair->send_port->Close(InternalError("gone"));
  for (const Deadline deadline = Deadline::AfterSeconds(20); pair->recv_port->status().ok();) {
    ASSERT_FALSE(deadline.Passed());
    pair->recv_port->Poll();
  }
  const std::string message(pair->recv_port->status().message());
  for (const char* part : {"receiving chunk 2 of 3 of operation 0x2a from rank 0 on host a",
                           "127.0.0.1:", "over lo", "the peer closed the connection", "log"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_EQ(pair->recv_port->status().code(), Code::kRemoteError);
  EXPECT_EQ(pair->send_port->status().message(), "gone");
}

TEST(PortTest, ClosesFromAnotherThreadWhileOneSleepsAndOnePolls) {
  constexpr int kRounds = 20;
  constexpr int64_t kNapNs = 1'000'000'000;
  int woken = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto pair = MakePair();
    FifoReceiver in(pair->recv_port->fifo());
    pair->recv_port->Begin(1, 0x2a);
    std::thread sleeper([&] {
      pair->recv_port->HandOver();
      while (pair->recv_port->status().ok()) in.SleepForChunk(kNapNs);
    });
    std::thread poller([&] {
      while (pair->recv_port->status().ok()) pair->recv_port->Poll();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const int64_t before_ns = NowNs();
    pair->recv_port->Close(InternalError("aborted"));
    sleeper.join();
    poller.join();
    woken += NowNs() - before_ns < kNapNs / 2;
    EXPECT_EQ(pair->recv_port->status().message(), "aborted");
    EXPECT_FALSE(pair->recv_port->Poll());
  }
  // Who has looked at the status but does not sleep yet is not woken, and sees the end after its
  // nap.
  EXPECT_GE(woken, kRounds / 2);
}

TEST(PortTest, SendsWhatWasPublishedBeforeItGoes) {
  const auto pair = MakePair();
  FifoSender out(pair->send_port->fifo());
  FifoReceiver in(pair->recv_port->fifo());
  pair->send_port->Begin(kFifoSlots, 0x2a);
  for (int i = 0; i < kFifoSlots; ++i) Publish(out, kSlotBytes);
  pair->send_port.reset();
  pair->recv_port->Begin(kFifoSlots, 0x2a);
  int received = 0;
  for (const Deadline deadline = Deadline::AfterSeconds(20);
       received < kFifoSlots && !deadline.Passed();) {
    pair->recv_port->Poll();
    for (; in.TryPeek().data; ++received) in.Release();
  }
  EXPECT_EQ(received, kFifoSlots) << pair->recv_port->status().message();
}

// Its peer takes nothing, so what was sent lies in this host's socket buffer.
TEST(PortTest, AClosedPortGoesAtOnce) {
  Settings settings;
  settings.socket_nthreads = 1;
  settings.nsocks_perthread = 1;
  for (const bool closed : {true, false}) {
    const auto pair = TestPair::Create(64 * 1024, settings).value();
    FifoSender out(pair->send_port->fifo());
    pair->send_port->Begin(kFifoSlots, 0x2a);
    for (int i = 0; i < kFifoSlots; ++i) Publish(out, 64 * 1024);
    pair->send_port->HandOver();
    EXPECT_EQ(pair->send_port->Flush(Deadline::After(20'000'000)).code(), Code::kTimeout);
    const int64_t before_ns = NowNs();
    if (closed) {
      pair->send_port->Close(InternalError("aborted"));
    } else {
      pair->recv_port.reset();  // the flush ends with the connection, too
    }
    pair->send_port.reset();
    EXPECT_LT(NowNs() - before_ns, kFlushNs / 2) << closed;
  }
}

TEST(PortTest, RefusesSlotsOfImpossibleSizes) {
  const auto proxy = Proxy::Create({}).value();
  for (const size_t slot_bytes : {size_t{0}, size_t{100}, size_t{1} << 40}) {
    EXPECT_FALSE(proxy->CreateSendPort(nullptr, slot_bytes, "rank 1").ok());
  }
}

TEST(FifoMemoryTest, IsZeroedAlignedAndAsLargeAsTheRing) {
  for (const size_t slot_bytes : {size_t{64}, size_t{4096}, size_t{512} * 1024}) {
    const FifoMemory memory = FifoMemory::Create(slot_bytes, true).value();
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

TEST(PortTest, TooManyOperationsAtOnceAreAnErrorNotAnOverflow) {
  const auto pair = MakePair();
  for (uint64_t i = 0; i <= OpPool::kOps; ++i) pair->recv_port->Begin(1, 0);
  EXPECT_EQ(pair->recv_port->status().code(), Code::kInternalError);
}

}  // namespace
}  // namespace tutti
