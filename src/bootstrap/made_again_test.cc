// Links that break between ranks that live: they are made again, every message comes once and in
// order, and no rank is called lost.

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/testing/thread_ranks.h"
#include "bootstrap/testing/witness.h"
#include "testing/connections.h"

namespace tutti {
namespace {

using testing::Connections;
using testing::Job;
using testing::Soon;
using testing::Swallow;
using testing::ToBytes;
using testing::ToText;
using testing::Witness;

// A job whose links a test can break.
struct BreakableJob {
  explicit BreakableJob(int num_ranks, const Settings& settings = testing::LocalSettings())
      : before(Connections()), job(num_ranks, 1, settings), ranks(job.CreateAll()) {
    witnesses = std::vector<Witness>(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i]->SetEvents(witnesses[i].Events());
  }
  // Returns both ends of all links.
  std::vector<int> Links() const {
    std::vector<int> links;
    for (const int fd : Connections())
      if (!before.contains(fd)) links.push_back(fd);
    return links;
  }
  // Exchanges `rounds` messages between every two ranks; `between` is called before each round.
  template <class Between>
  void Talk(int rounds, Between between) {
    const auto count = static_cast<int>(ranks.size());
    for (int round = 0; round < rounds; ++round) {
      between(round);
      for (int from = 0; from < count; ++from)
        for (int to = 0; to < count; ++to)
          ASSERT_TRUE(ranks[static_cast<size_t>(from)]
                          ->Send(to, 7, ToBytes(fmt::format("{} {}", from, round)))
                          .ok());
      for (int from = 0; from < count; ++from) {
        for (int to = 0; to < count; ++to) {
          const auto message = ranks[static_cast<size_t>(to)]->Recv(from, 7, Soon());
          ASSERT_TRUE(message.ok()) << message.status().message();
          ASSERT_EQ(ToText(*message), fmt::format("{} {}", from, round));
        }
      }
    }
  }
  void ExpectNobodyLost() {
    for (const auto& rank : ranks) EXPECT_TRUE(rank->LostRanks().empty());
    testing::ForEach(static_cast<int>(ranks.size()), [&](int rank) {
      const Status met = ranks[static_cast<size_t>(rank)]->Barrier(Soon());
      EXPECT_TRUE(met.ok()) << met.message();
    });
  }

  const std::set<int> before;
  Job job;
  std::vector<Witness> witnesses;
  std::vector<std::unique_ptr<Bootstrap>> ranks;
};

TEST(LinkMadeAgain, AfterAResetOfOneLink) {
  for (const int num_ranks : {2, 3, 5, 8}) {
    SCOPED_TRACE(fmt::format("{} ranks", num_ranks));
    BreakableJob job(num_ranks);
    job.Talk(20, [&](int round) {
      const std::vector<int> links = job.Links();
      ASSERT_FALSE(links.empty());
      ResetConnection(links[static_cast<size_t>(round) % links.size()]);
    });
    job.ExpectNobodyLost();
  }
}

TEST(LinkMadeAgain, AfterAResetOfAllLinks) {
  BreakableJob job(4);
  job.Talk(10, [&](int) {
    for (const int fd : job.Links()) ResetConnection(fd);
  });
  job.ExpectNobodyLost();
}

// The messages fill the sockets of the link, so many are under way when the link breaks.
TEST(LinkMadeAgain, WithTheMessagesThatWereUnderWay) {
  BreakableJob job(2);
  constexpr int kMessages = 200;
  std::thread sending([&] {
    for (int i = 0; i < kMessages; ++i) {
      Bytes message(40'000, std::byte(i));
      ASSERT_TRUE(job.ranks[0]->Send(1, 1, message).ok());
    }
  });
  for (int i = 0; i < kMessages; ++i) {
    if (i % 40 == 20)
      for (const int fd : job.Links()) ResetConnection(fd);
    const auto message = job.ranks[1]->Recv(0, 1, Soon());
    ASSERT_TRUE(message.ok()) << message.status().message();
    ASSERT_EQ(message->size(), 40'000u);
    ASSERT_EQ(message->front(), std::byte(i));
    ASSERT_EQ(message->back(), std::byte(i));
  }
  sending.join();
  job.ExpectNobodyLost();
}

// Foreign bytes in the stream are damage on the way: the record behind them does not open.
TEST(LinkMadeAgain, AfterDamageOnTheWay) {
  BreakableJob job(3);
  job.Talk(10, [&](int round) {
    const std::vector<int> links = job.Links();
    const std::array<std::byte, 100> foreign = {};
    EXPECT_TRUE(TrySend(links[static_cast<size_t>(round) % links.size()], foreign).ok());
  });
  job.ExpectNobodyLost();
}

// The link of a rank breaks while the rank leaves. The remaining rank hears that the rank has left,
// and not that the rank is lost.
TEST(LinkMadeAgain, ForTheLastMessagesOfARankThatLeaves) {
  for (int round = 0; round < 10; ++round) {
    BreakableJob job(2);
    ASSERT_TRUE(job.ranks[1]->Send(0, 5, ToBytes("last")).ok());
    for (const int fd : job.Links()) ResetConnection(fd);
    job.ranks[1].reset();
    EXPECT_EQ(job.witnesses[0].Await(1), std::vector<std::string>{"left 1"})
        << job.witnesses[0].reason();
    const auto message = job.ranks[0]->Recv(1, 5, Soon());
    ASSERT_TRUE(message.ok()) << message.status().message();
    EXPECT_EQ(ToText(*message), "last");
  }
}

Settings Impatient() {
  Settings settings = testing::LocalSettings();
  settings.host_timeout_s = 1;
  return settings;
}

// As behind a firewall that has forgotten the connections.
TEST(LinkMadeAgain, WhenOnlyNewConnectionsComeThrough) {
  BreakableJob job(3, Impatient());
  job.Talk(2, [&](int round) {
    if (round == 1) Swallow(job.Links());
  });
  job.ExpectNobodyLost();
}

// Links break, and for a while no new connection comes through. The kernel alone would try again
// after 7 s, when the patience with the silent host is over.
TEST(LinkMadeAgain, AsSoonAsTheWayIsFree) {
  Settings settings = testing::LocalSettings();
  settings.host_timeout_s = 5;
  BreakableJob job(2, settings);
  const std::vector<int> listeners = testing::Listeners();
  Swallow(listeners);
  for (const int fd : job.Links()) ResetConnection(fd);
  std::this_thread::sleep_for(std::chrono::milliseconds(3200));
  testing::StopSwallowing(listeners);
  job.Talk(1, [](int) {});
  job.ExpectNobodyLost();
}

// The link of a stopped process is reset, and its kernel accepts the new connection. The process
// goes on after many times the patience with a silent host.
TEST(LinkMadeAgain, WithAProcessThatIsStopped) {
  Settings settings = Impatient();
  settings.comm_id = fmt::format("127.0.0.1:{}", testing::FreePort());
  settings.comm_key = "the key of this test";
  const auto create = [&](EventLoop& loop, int rank) {
    Bootstrap::Options options;
    options.rank = rank;
    options.num_ranks = 2;
    options.ids = {Root::Create(loop, settings).value()};
    options.deadline = Deadline::AfterSeconds(60);
    auto bootstrap = Bootstrap::Create(loop, settings, options).value();
    EXPECT_TRUE(bootstrap->Complete().ok());
    return bootstrap;
  };
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto loop = EventLoop::Create("stopped").value();
    const auto one = create(*loop, 1);
    for (;;) {
      const auto message = one->Recv(0, 1, Soon());
      if (!message.ok() || !one->Send(0, 1, *message).ok()) _exit(1);
    }
  }
  const auto loop = testing::NewLoop();
  const std::set<int> before = Connections();
  const auto zero = create(*loop, 0);
  const auto echo = [&](const char* text) {
    const auto message = zero->Recv(1, 1, Soon());
    ASSERT_TRUE(message.ok()) << message.status().message();
    EXPECT_EQ(ToText(*message), text);
  };
  ASSERT_TRUE(zero->Send(1, 1, ToBytes("one")).ok());
  echo("one");
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  ASSERT_TRUE(zero->Send(1, 1, ToBytes("two")).ok());
  for (const int fd : Connections())
    if (!before.contains(fd)) ResetConnection(fd);
  const auto none = zero->Recv(1, 1, Deadline::After(2'500'000'000));
  EXPECT_EQ(none.status().code(), Code::kTimeout) << none.status().message();
  ASSERT_EQ(kill(child, SIGCONT), 0);
  echo("two");
  EXPECT_TRUE(zero->LostRanks().empty());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace tutti
