// How communicators live and end: events, children, cancelling, aborting, ranks that leave or die.

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/testing/thread_ranks.h"
#include "bootstrap/testing/witness.h"
#include "testing/connections.h"
#include "testing/threads.h"

namespace tutti {
namespace {

using testing::Connections;
using testing::Job;
using testing::kSoonNs;
using testing::Soon;
using testing::Swallow;
using testing::ToBytes;
using testing::ToText;
using testing::Witness;

TEST(BootstrapLife, TellsEventsThatCameBeforeAnyoneListened) {
  const Job job(2);
  Witness witness;
  auto ranks = job.CreateAll();
  ranks[0]->SendControl(1, ToBytes("one"));
  ranks[0]->SendControl(1, ToBytes("two"));
  ASSERT_TRUE(ranks[0]->Send(1, 1, {}).ok());
  ASSERT_TRUE(ranks[1]->Recv(0, 1, Soon()).ok());  // the controls have arrived as well
  ranks[1]->SetEvents(witness.Events());
  EXPECT_EQ(witness.Await(2), (std::vector<std::string>{"control 0 one", "control 0 two"}));
  ranks[0].reset();
  EXPECT_EQ(witness.Await(3).back(), "left 0");
  EXPECT_NE(ranks[1]->Recv(0, 2, Soon()).status().message().find("has left"),
            std::string_view::npos);
  EXPECT_FALSE(ranks[1]->Send(0, 2, {}).ok());
  ranks[1].reset();
}

TEST(BootstrapLife, SendsControlToItselfAndToUnlinkedRanks) {
  const Job job(8);
  Witness self;
  Witness far;
  auto ranks = job.CreateAll();
  ranks[2]->SetEvents(self.Events());
  ranks[5]->SetEvents(far.Events());  // distance 3: no standing link
  ranks[2]->SendControl(2, ToBytes("self"));
  EXPECT_FALSE(ranks[2]->SendControlIfLinked(5, ToBytes("no link is made")));
  ranks[2]->SendControl(5, ToBytes("far"));
  EXPECT_TRUE(ranks[2]->SendControlIfLinked(5, ToBytes("linked")));
  EXPECT_EQ(self.Await(1), std::vector<std::string>{"control 2 self"});
  EXPECT_EQ(far.Await(2), (std::vector<std::string>{"control 2 far", "control 2 linked"}));
}

TEST(BootstrapLife, NoEventIsToldAfterDestruction) {
  for (int round = 0; round < 20; ++round) {
    const Job fresh(2);
    auto ranks = fresh.CreateAll();
    auto alive = std::make_shared<std::atomic<bool>>(true);
    std::atomic<int> told{0}, late{0};
    Bootstrap::Events events;
    events.control = [&](int, std::span<const std::byte>) {
      ++told;
      late += alive->load() ? 0 : 1;
    };
    ranks[1]->SetEvents(events);
    std::atomic<bool> stop{false};
    std::thread sender([&] {
      while (!stop) ranks[0]->SendControl(1, ToBytes("x"));
    });
    while (told == 0) std::this_thread::yield();
    ranks[1].reset();
    alive->store(false);
    fresh.loop->RunSync([] {});  // The loop tells events that are on their way before it returns.
    stop = true;
    sender.join();
    EXPECT_EQ(late.load(), 0);
  }
}

TEST(BootstrapLife, ChildrenShareTheEndpointAndKeepTheirMessagesApart) {
  const Job job(6);
  job.Run([](Bootstrap& parent) {
    // Even ranks in reverse order, odd ranks in order; both at once with the parent.
    const bool even = parent.rank() % 2 == 0;
    const std::vector<int> members = even ? std::vector{4, 2, 0} : std::vector{1, 3, 5};
    auto child = parent.CreateChild(even ? 111 : 222, members, nullptr);
    EXPECT_EQ(child->num_ranks(), 3);
    EXPECT_EQ(members[static_cast<size_t>(child->rank())], parent.rank());
    EXPECT_EQ(child->id(), even ? 111u : 222u);
    std::vector<int> gathered(3, -1);
    gathered[static_cast<size_t>(child->rank())] = parent.rank();
    ASSERT_TRUE(child->AllGather(gathered.data(), sizeof(int), Soon()).ok());
    EXPECT_EQ(gathered, members);
    const int next = (child->rank() + 1) % 3;
    ASSERT_TRUE(child->Send(next, 1, ToBytes("child")).ok());
    ASSERT_TRUE(parent.Send(members[static_cast<size_t>(next)], 1, ToBytes("parent")).ok());
    const int before = (child->rank() + 2) % 3;
    auto of_parent = parent.Recv(members[static_cast<size_t>(before)], 1, Soon());
    auto of_child = child->Recv(before, 1, Soon());
    ASSERT_TRUE(of_parent.ok() && of_child.ok());
    EXPECT_EQ(ToText(*of_parent), "parent");
    EXPECT_EQ(ToText(*of_child), "child");
    ASSERT_TRUE(parent.Barrier(Soon()).ok());
  });
}

TEST(BootstrapLife, ChildOutlivesItsParentAndHearsEarlyMessages) {
  const Job job(3);
  Witness witness;
  auto ranks = job.CreateAll();
  auto early = ranks[0]->CreateChild(7, {0, 2}, nullptr);
  ASSERT_TRUE(early->Send(1, 3, ToBytes("before you were born")).ok());
  ASSERT_TRUE(ranks[0]->Send(2, 1, {}).ok());
  ASSERT_TRUE(ranks[2]->Recv(0, 1, Soon()).ok());
  auto late = ranks[2]->CreateChild(7, {0, 2}, nullptr);
  ranks.clear();
  auto message = late->Recv(0, 3, Soon());
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(ToText(*message), "before you were born");
  testing::ForEach(2, [&](int i) { EXPECT_TRUE((i == 0 ? early : late)->Barrier(Soon()).ok()); });
  early->SetEvents(witness.Events());
  late.reset();
  EXPECT_EQ(witness.Await(1), std::vector<std::string>{"left 1"});
}

TEST(BootstrapLife, CancelEndsAWaitFromAnyThread) {
  const Job job(2);
  auto ranks = job.CreateAll();
  const pid_t waiter = testing::ThisThread();
  std::thread canceller([&, waiter] {
    EXPECT_TRUE(testing::AwaitAsleep(waiter));
    ranks[0]->Cancel(RemoteError("because of the test"));
  });
  const auto message = ranks[0]->Recv(1, 1, Soon());
  canceller.join();
  EXPECT_EQ(message.status().message(), "because of the test");
  EXPECT_EQ(ranks[0]->Barrier(Soon()).message(), "because of the test");
}

TEST(BootstrapLife, AbortFlagEndsCreateAndRecv) {
  Job job(2);
  std::atomic<bool> abort{false};
  Bootstrap::Options options = job.OptionsFor(0);
  options.abort_flag = &abort;
  const pid_t waiter = testing::ThisThread();
  std::thread aborter([&, waiter] {
    EXPECT_TRUE(testing::AwaitAsleep(waiter));
    abort = true;
  });
  const auto alone = Bootstrap::Create(*job.loop, job.settings, options);
  aborter.join();
  EXPECT_FALSE(alone.ok());
  EXPECT_NE(alone.status().message().find("abort"), std::string_view::npos)
      << alone.status().message();
}

TEST(BootstrapLife, ChildOutlivesTheAbortOfItsParentAndHasItsOwn) {
  Job job(3);
  std::array<std::atomic<bool>, 3> parent_abort{};
  std::array<std::atomic<bool>, 3> child_abort{};
  std::array<std::unique_ptr<Bootstrap>, 3> parents;
  testing::ForEach(3, [&](int rank) {
    Bootstrap::Options options = job.OptionsFor(rank);
    options.abort_flag = &parent_abort[static_cast<size_t>(rank)];
    auto bootstrap = Bootstrap::Create(*job.loop, job.settings, options);
    ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
    parents[static_cast<size_t>(rank)] = std::move(bootstrap).value();
  });
  std::array<std::unique_ptr<Bootstrap>, 3> children;
  for (size_t i = 0; i < 3; ++i) {
    children[i] = parents[i]->CreateChild(5, {0, 1, 2}, &child_abort[i]);
    parent_abort[i] = true;
  }
  EXPECT_FALSE(parents[0]->Send(1, 1, {}).ok());
  testing::ForEach(3, [&](int rank) {
    const Status met = children[static_cast<size_t>(rank)]->Barrier(Soon());
    EXPECT_TRUE(met.ok()) << met.message();
  });
  child_abort[0] = true;
  const Status aborted = children[0]->Recv(1, 1, Soon()).status();
  EXPECT_NE(aborted.message().find("abort"), std::string_view::npos) << aborted.message();
}

TEST(BootstrapLife, AnExchangeEndsByTheFlagGivenWithIt) {
  const Job job(2);
  auto ranks = job.CreateAll();
  std::atomic<bool> abort{false};
  const pid_t waiter = testing::ThisThread();
  std::thread aborter([&, waiter] {
    EXPECT_TRUE(testing::AwaitAsleep(waiter));
    abort = true;
  });
  std::array<int, 2> data{};
  const Status status = ranks[0]->AllGather(data.data(), sizeof(int), Soon(), &abort);
  aborter.join();
  EXPECT_NE(status.message().find("abort"), std::string_view::npos) << status.message();
  // The flag was for the ended exchange alone.
  EXPECT_TRUE(ranks[1]->Send(0, 3, {}).ok());
  EXPECT_TRUE(ranks[0]->Recv(1, 3, Soon()).ok());
}

// All links break that other ranks have opened to rank number 1 of the listeners, and no rank can
// connect again. Each live end of a broken link could call the other end lost.
TEST(BootstrapLife, AConnectionThatCannotBeMadeAgainEndsInOneAnswerForAll) {
  for (const int num_ranks : {4, 5, 8}) {
    SCOPED_TRACE(fmt::format("{} ranks", num_ranks));
    const std::set<int> before = Connections();
    std::vector<Witness> witnesses(static_cast<size_t>(num_ranks));
    const Job job(num_ranks);
    auto ranks = job.CreateAll();
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i]->SetEvents(witnesses[i].Events());
    const std::vector<int> listeners = testing::Listeners();
    ASSERT_EQ(listeners.size(), static_cast<size_t>(num_ranks));
    Swallow(listeners);
    const Result<SocketAddress> cut_off = LocalAddress(listeners[1]);
    for (const int fd : Connections())
      if (!before.contains(fd) && LocalAddress(fd)->port == cut_off->port) shutdown(fd, SHUT_RDWR);
    const std::vector<std::string> first = witnesses[0].Await(1);
    EXPECT_EQ(first.size(), 1u);
    for (size_t i = 0; i < ranks.size(); ++i) {
      EXPECT_EQ(witnesses[i].Await(1), first) << "rank " << i;
      const std::vector<LostRank> lost = ranks[i]->LostRanks();
      ASSERT_EQ(lost.size(), 1u) << "rank " << i;
      EXPECT_EQ(fmt::format("lost {}", lost[0].rank), first[0]);
      EXPECT_NE(witnesses[i].reason().find("one of them has to go"), std::string::npos)
          << witnesses[i].reason();
    }
    testing::StopSwallowing(listeners);
    // The others go on; who was excluded cannot.
    const int excluded = ranks[0]->LostRanks()[0].rank;
    std::vector<int> left;
    for (int rank = 0; rank < num_ranks; ++rank)
      if (rank != excluded) left.push_back(rank);
    testing::ForEach(static_cast<int>(left.size()), [&](int i) {
      auto child =
          ranks[static_cast<size_t>(left[static_cast<size_t>(i)])]->CreateChild(99, left, nullptr);
      EXPECT_TRUE(child->Barrier(Soon()).ok());
    });
    const auto alone = ranks[static_cast<size_t>(excluded)]->CreateChild(98, {excluded}, nullptr);
    EXPECT_NE(alone->CancelReason().message().find("excluded by the others"),
              std::string_view::npos)
        << alone->CancelReason().message();
  }
}

// A rank that waits for a third rank hears of the loss as well.
TEST(BootstrapLife, ARankThatGivesUpEndsTheMakingOnAll) {
  constexpr int kRanks = 6;
  const Job job(kRanks);
  auto ranks = job.CreateAll();
  std::vector<int> all(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) all[static_cast<size_t>(rank)] = rank;
  testing::ForEach(kRanks, [&](int rank) {
    const auto child = ranks[static_cast<size_t>(rank)]->CreateChild(7, all, nullptr);
    if (rank == 4) {
      child->GiveUp(SystemError("there is no room for rank 4"));
      return;
    }
    const Status met = child->Barrier(Soon());
    EXPECT_EQ(met.message(), "there is no room for rank 4") << "rank " << rank;
    EXPECT_EQ(met.code(), Code::kSystemError);
    child->GiveUp(met);
  });
  // The parent is as before.
  testing::ForEach(kRanks, [&](int rank) {
    EXPECT_TRUE(ranks[static_cast<size_t>(rank)]->Barrier(Soon()).ok());
  });
}

// A rank in a process of its own, which is killed: forked before this test has any thread.
TEST(BootstrapLife, KilledRankIsLostToAllItsNeighbours) {
  Settings settings = testing::LocalSettings();
  settings.comm_id = fmt::format("127.0.0.1:{}", testing::FreePort());
  settings.comm_key = "the key of this test";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  const auto options = [&](int rank, const UniqueId& id) {
    Bootstrap::Options result;
    result.rank = rank;
    result.num_ranks = 3;
    result.ids = {id};
    result.deadline = Deadline::AfterSeconds(60);
    return result;
  };
  if (child == 0) {
    auto loop = EventLoop::Create("victim");
    auto id = Root::Create(**loop, settings);
    auto bootstrap = Bootstrap::Create(**loop, settings, options(2, *id));
    if (!bootstrap.ok()) _exit(1);
    [[maybe_unused]] const Status sent = (*bootstrap)->Send(0, 1, ToBytes("here"));
    for (;;) pause();
  }
  auto loop = testing::NewLoop();
  std::array<Witness, 2> witnesses;
  std::array<std::unique_ptr<Bootstrap>, 2> ranks;
  testing::ForEach(2, [&](int rank) {
    auto id = Root::Create(*loop, settings);
    ASSERT_TRUE(id.ok()) << id.status().message();
    auto bootstrap = Bootstrap::Create(*loop, settings, options(rank, *id));
    ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
    ranks[static_cast<size_t>(rank)] = std::move(bootstrap).value();
  });
  ASSERT_TRUE(ranks[0]->Recv(2, 1, Soon()).ok());
  for (size_t i = 0; i < 2; ++i) ranks[i]->SetEvents(witnesses[i].Events());
  const int64_t killed_ns = NowNs();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (Witness& witness : witnesses) {
    EXPECT_EQ(witness.Await(1), std::vector<std::string>{"lost 2"}) << witness.reason();
  }
  EXPECT_LT(NowNs() - killed_ns, kSoonNs / 3);
  const auto message = ranks[1]->Recv(2, 5, Soon());
  EXPECT_EQ(message.status().code(), Code::kRemoteError);
  EXPECT_NE(message.status().message().find(fmt::format("rank 2 (pid {}", child)),
            std::string_view::npos)
      << message.status().message();
  // The survivors go on without the killed rank.
  testing::ForEach(2, [&](int i) {
    auto shrunk = ranks[static_cast<size_t>(i)]->CreateChild(99, {0, 1}, nullptr);
    EXPECT_TRUE(shrunk->Barrier(Soon()).ok());
  });
}

}  // namespace
}  // namespace tutti
