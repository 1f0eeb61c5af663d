#include "proxy/kernel_proxy.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tutti {
namespace {

// A connection that moves a chunk at each look, as far as the test lets it.
class StubConnection final : public ProxyConnection {
 public:
  FifoView fifo() const override { return {}; }
  void Begin(uint64_t chunks, uint32_t op_tag) override {
    begun_ += chunks;
    if (beside_) beside_at_begin_.push_back(beside_->ChunksDone());
    most_begun_ = std::max(most_begun_, ++operations_);
    tags_.push_back(op_tag);
    ends_.push_back(begun_);
  }
  bool Poll() override {
    if (done_.load() >= std::min(begun_, let_.load())) {
      if (++idle_looks_ == 1) asleep_before_ = TimesAsleep();
      if (idle_looks_ == kIdleLooks) sleeps_ = TimesAsleep() - asleep_before_;
      return false;
    }
    idle_looks_ = 0;
    sleeps_ = -1;
    ++done_;
    while (!ends_.empty() && ends_.front() <= done_.load()) {
      ends_.erase(ends_.begin());
      --operations_;
    }
    return true;
  }
  SleepAdvice PrepareToSleep(std::vector<pollfd>&) override { return SleepAdvice::kSleep; }
  void HandOver() override {}
  Status Flush(int64_t, const std::atomic<bool>*) override { return Status::Ok(); }
  uint64_t ChunksDone() const override { return done_.load(); }
  void Close(Status reason) override { closed_ = std::move(reason); }
  Status status() const override { return broken_.load() ? RemoteError("broken") : Status::Ok(); }
  std::string Describe() const override { return {}; }

  void Let(uint64_t chunks) { let_ = chunks; }
  void Break() { broken_ = true; }
  // Notes how much another connection has done whenever an operation begins here.
  void Watch(const StubConnection& beside) { beside_ = &beside; }
  const std::vector<uint64_t>& beside_at_begin() const { return beside_at_begin_; }
  // Returns how often the thread slept between the first and the last of kIdleLooks looks since the
  // last progress; -1 before the last of these looks.
  static constexpr int kIdleLooks = 33;
  int64_t sleeps() const { return sleeps_.load(); }
  // For the thread, and for the test after the thread's end.
  size_t operations() const { return operations_; }
  const std::vector<uint32_t>& tags() const { return tags_; }
  size_t most_begun() const { return most_begun_; }
  const Status& closed() const { return closed_; }

 private:
  // Returns how often this thread has given up its processor to wait for something.
  static int64_t TimesAsleep() {
    rusage usage = {};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  }

  std::atomic<uint64_t> let_ = ~uint64_t{0};
  std::atomic<uint64_t> done_ = 0;
  std::atomic<bool> broken_ = false;
  std::atomic<int64_t> sleeps_ = -1;
  int idle_looks_ = 0;
  int64_t asleep_before_ = 0;
  uint64_t begun_ = 0;
  size_t operations_ = 0, most_begun_ = 0;
  std::vector<uint64_t> ends_;
  std::vector<uint32_t> tags_;
  const StubConnection* beside_ = nullptr;
  std::vector<uint64_t> beside_at_begin_;
  Status closed_;
};

class StubConnections final : public KernelConnections {
 public:
  explicit StubConnections(size_t count) : all_(count), open_(count) {}
  Status Open(const KernelOps& ops) override {
    for (const KernelOp& op : ops.ops) {
      // Nothing is under way while connections are made.
      for (const StubConnection& one : all_) opened_while_busy_ |= one.operations() > 0;
      open_[op.connection] = true;
    }
    return refusal_;
  }
  ProxyConnection* Find(size_t connection) override {
    return open_[connection] ? &all_[connection] : nullptr;
  }
  void OnFailure(Status status) override { failure_ = std::move(status); }
  Doorbell* doorbell() override { return announces_ ? &doorbell_ : nullptr; }
  KernelOps Take() override {
    KernelOps ops;
    if (const uint64_t chunks = announced_.exchange(0); chunks > 0) ops.ops = {{0, chunks, chunks}};
    return ops;
  }
  bool MayAnnounce() const override { return announces_.load(); }

  // Has others announce data of connection 0, by the doorbell, until EndAnnouncing. Called before
  // the thread starts.
  void BeginAnnouncing() { announces_ = true; }
  void Announce(uint64_t chunks) {
    announced_ += chunks;
    doorbell_.Ring();
  }
  void EndAnnouncing() {
    announces_ = false;
    doorbell_.Ring();
  }

  StubConnection& at(size_t i) { return all_[i]; }
  void Refuse() { refusal_ = InternalError("refused"); }
  // For the test after the thread has ended.
  const Status& failure() const { return failure_; }
  bool opened_while_busy() const { return opened_while_busy_; }

 private:
  std::vector<StubConnection> all_;
  std::vector<bool> open_;
  Status refusal_, failure_;
  bool opened_while_busy_ = false;
  Doorbell doorbell_;
  std::atomic<bool> announces_ = false;
  std::atomic<uint64_t> announced_ = 0;
};

std::shared_ptr<const KernelOps> Ops(uint32_t tag, std::vector<KernelOp> ops) {
  return std::make_shared<const KernelOps>(KernelOps{tag, std::move(ops)});
}

std::shared_ptr<KernelProxy> Make(StubConnections& connections, int harvest_every = 2) {
  Result<std::shared_ptr<KernelProxy>> made =
      KernelProxy::Create("test", connections, harvest_every);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

TEST(KernelProxyTest, DoesAllThatWasPostedInOrder) {
  StubConnections connections(2);
  const auto proxy = Make(connections);
  constexpr uint32_t kOperations = 200;
  for (uint32_t i = 0; i < kOperations; ++i) proxy->Post(Ops(i, {{0, 1 + i % 3}, {1, i % 2}}));
  proxy->Finish(Deadline::AfterSeconds(20));
  ASSERT_EQ(connections.at(0).tags().size(), kOperations);
  for (uint32_t i = 0; i < kOperations; ++i) EXPECT_EQ(connections.at(0).tags()[i], i);
  EXPECT_EQ(connections.at(1).tags().size(), kOperations / 2);
  EXPECT_EQ(connections.at(1).ChunksDone(), kOperations / 2);
  EXPECT_TRUE(connections.failure().ok());
  EXPECT_FALSE(connections.opened_while_busy());
}

TEST(KernelProxyTest, BeginsNoMoreThanAConnectionHolds) {
  StubConnections connections(1);
  connections.at(0).Let(0);
  const auto proxy = Make(connections);
  for (uint32_t i = 0; i < 100; ++i) proxy->Post(Ops(i, {{0, 1}}));
  connections.at(0).Let(100);
  proxy->Finish(Deadline::AfterSeconds(20));
  EXPECT_EQ(connections.at(0).ChunksDone(), 100u);
  EXPECT_LE(connections.at(0).most_begun(), 8u);
}

// The loads of kernels: much, little, and much in many short steps.
constexpr uint64_t kMuch = 4 << 20;
constexpr KernelOp kLong = {0, 16, kMuch};
constexpr KernelOp kShort = {0, 4, kMuch / 8};
constexpr KernelOp kManySteps = {0, 1024, kMuch};

// Posts the loads of `kernels`, each through a connection of its own, of which none moves. Returns
// how often the thread sleeps between its looks at the last connection.
int64_t SleepsWhileNothingMoves(std::vector<KernelOp> kernels) {
  StubConnections connections(kernels.size());
  const auto proxy = Make(connections);
  // An earlier operation holds them up until all are posted.
  std::vector<KernelOp> first;
  for (size_t i = 0; i < kernels.size(); ++i) {
    connections.at(i).Let(0);
    first.push_back({i, 1, 1});
  }
  proxy->Post(Ops(1, first));
  for (size_t i = 0; i < kernels.size(); ++i) {
    kernels[i].connection = i;
    proxy->Post(Ops(1, {kernels[i]}));
  }
  while (connections.at(0).sleeps() < 0) std::this_thread::yield();
  for (size_t i = 0; i < kernels.size(); ++i) connections.at(i).Let(1);
  const StubConnection& last = connections.at(kernels.size() - 1);
  while (last.ChunksDone() == 0 || last.sleeps() < 0) std::this_thread::yield();
  return last.sleeps();
}

// A nap that is over before the thread has left its processor does not count as a sleep.
constexpr int kHalfOfLooks = StubConnection::kIdleLooks / 2;

TEST(KernelProxyTest, NapsAfterEachLookThatMovesNothingOfALongOperation) {
  EXPECT_GE(SleepsWhileNothingMoves({kLong}), kHalfOfLooks);
}
TEST(KernelProxyTest, LooksAtAShortOperationAgainAtOnce) {
  EXPECT_LT(SleepsWhileNothingMoves({kShort}), 16);
  EXPECT_LT(SleepsWhileNothingMoves({kManySteps}), 16);
}
TEST(KernelProxyTest, TheFirstKernelSaysWhetherToNap) {
  EXPECT_LT(SleepsWhileNothingMoves({kShort, kLong}), 16);
  EXPECT_GE(SleepsWhileNothingMoves({kLong, kShort}), kHalfOfLooks);
}

TEST(KernelProxyTest, DoesWhatOthersAnnounceUntilTheyLeave) {
  StubConnections connections(1);
  connections.BeginAnnouncing();
  const auto proxy = Make(connections);
  for (int i = 0; i < 100; ++i) connections.Announce(3);
  while (connections.at(0).ChunksDone() < 300) std::this_thread::yield();
  std::thread other([&] {
    connections.Announce(5);
    connections.EndAnnouncing();
  });
  proxy->Finish(Deadline::AfterSeconds(20));
  other.join();
  EXPECT_EQ(connections.at(0).ChunksDone(), 305u);
  EXPECT_TRUE(connections.at(0).closed().ok());
}

// Announcements of others do not wait until the present operations are done, which may wait for the
// announced data.
TEST(KernelProxyTest, OpensAnnouncedConnectionsWhileOthersAreStuck) {
  StubConnections connections(2);
  connections.BeginAnnouncing();
  connections.at(1).Let(0);
  const auto proxy = Make(connections);
  proxy->Post(Ops(1, {{1, 1}}));
  while (connections.at(1).sleeps() < 0) std::this_thread::yield();
  connections.Announce(2);
  while (connections.at(0).ChunksDone() < 2) std::this_thread::yield();
  connections.at(1).Let(1);
  connections.EndAnnouncing();
  proxy->Finish(Deadline::AfterSeconds(20));
  EXPECT_EQ(connections.at(1).ChunksDone(), 1u);
}

// A connection that moves a chunk in each round counts the rounds.
TEST(KernelProxyTest, LooksForWhatIsPostedEverySoManyRoundsWhileItIsBusy) {
  constexpr uint64_t kEvery = 1000;
  StubConnections connections(2);
  connections.at(1).Watch(connections.at(0));
  const auto proxy = Make(connections, kEvery);
  proxy->Post(Ops(1, {{0, 1}, {1, 1}}));
  while (connections.at(1).ChunksDone() < 1) std::this_thread::yield();
  proxy->Post(Ops(2, {{0, uint64_t{1} << 50}}));
  for (uint64_t number = 2; number <= 4; ++number) {
    proxy->Post(Ops(3, {{1, 1}}));
    while (connections.at(1).ChunksDone() < number) std::this_thread::yield();
  }
  proxy->Abort(RemoteError("the end of the test"));
  proxy->Finish(Deadline::AfterSeconds(20));
  const std::vector<uint64_t>& rounds = connections.at(1).beside_at_begin();
  ASSERT_EQ(rounds.size(), 4u);
  for (size_t i = 1; i < rounds.size(); ++i) EXPECT_EQ((rounds[i] - 1) % kEvery, 0u) << rounds[i];
}

TEST(KernelProxyTest, AbortBreaksWhatIsUnderWay) {
  StubConnections connections(1);
  connections.at(0).Let(1);
  const auto proxy = Make(connections);
  proxy->Post(Ops(1, {{0, 2}}));
  while (connections.at(0).ChunksDone() == 0) CpuPause();
  proxy->Abort(RemoteError("rank 1 has gone"));
  proxy->Finish(Deadline::AfterSeconds(20));
  EXPECT_EQ(connections.at(0).closed().message(), "rank 1 has gone");
  EXPECT_TRUE(connections.failure().ok());
}

TEST(KernelProxyTest, AFailureIsToldOnceAndEndsTheThread) {
  StubConnections connections(1);
  connections.at(0).Let(1);
  const auto proxy = Make(connections);
  proxy->Post(Ops(1, {{0, 2}}));
  connections.at(0).Break();
  proxy->Finish(Deadline::AfterSeconds(20));
  EXPECT_EQ(connections.failure().message(), "broken");
  proxy->Post(Ops(2, {{0, 1}}));  // The call has no effect.
}

TEST(KernelProxyTest, AConnectionThatCannotBeMadeIsAFailure) {
  StubConnections connections(1);
  connections.Refuse();
  const auto proxy = Make(connections);
  proxy->Post(Ops(1, {{0, 2}}));
  proxy->Finish(Deadline::AfterSeconds(20));
  EXPECT_EQ(connections.failure().message(), "refused");
}

TEST(KernelProxyTest, TheEndDoesNotWaitForEver) {
  StubConnections connections(1);
  connections.at(0).Let(0);
  const auto proxy = Make(connections);
  proxy->Post(Ops(1, {{0, 2}}));
  proxy->Finish(Deadline::After(20'000'000));
  EXPECT_EQ(connections.at(0).closed().code(), Code::kTimeout);
}

}  // namespace
}  // namespace tutti
