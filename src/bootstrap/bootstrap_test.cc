#include "bootstrap/bootstrap.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "bootstrap/frame.h"
#include "bootstrap/testing/thread_ranks.h"
#include "sys/host.h"

namespace tutti {
namespace {

using testing::Job;
using testing::ToBytes;
using testing::ToText;

Deadline Soon() { return Deadline::AfterSeconds(60); }

class BootstrapRanks : public ::testing::TestWithParam<int> {};

TEST_P(BootstrapRanks, EveryExchangeGivesEveryRankEveryPart) {
  const Job job(GetParam());
  std::mutex mutex;
  std::set<uint64_t> ids;
  job.Run([&](Bootstrap& bootstrap) {
    const int n = bootstrap.num_ranks();
    for (int round = 0; round < 3; ++round) {
      std::vector<int> data(static_cast<size_t>(n), -1);
      data[static_cast<size_t>(bootstrap.rank())] = bootstrap.rank() * 10 + round;
      ASSERT_TRUE(bootstrap.AllGather(data.data(), sizeof(int), Soon()).ok());
      for (int i = 0; i < n; ++i) EXPECT_EQ(data[static_cast<size_t>(i)], i * 10 + round);
    }
    const std::string mine(static_cast<size_t>(bootstrap.rank()) * 7, 'x');
    auto parts = bootstrap.AllGatherV(ToBytes(mine), Soon());
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    for (size_t i = 0; i < parts->size(); ++i) EXPECT_EQ((*parts)[i].size(), i * 7);
    EXPECT_TRUE(bootstrap.Barrier(Soon()).ok());
    const std::lock_guard lock(mutex);
    ids.insert(bootstrap.id());
  });
  EXPECT_EQ(ids.size(), 1u);
}

TEST_P(BootstrapRanks, EveryPairExchangesMessagesInOrder) {
  const Job job(GetParam());
  job.Run([&](Bootstrap& bootstrap) {
    const int n = bootstrap.num_ranks();
    for (int peer = 0; peer < n; ++peer) {
      for (int i = 0; i < 3; ++i) {
        const std::string text = fmt::format("{}>{}#{}", bootstrap.rank(), peer, i);
        ASSERT_TRUE(bootstrap.Send(peer, 5, ToBytes(text)).ok());
      }
      ASSERT_TRUE(bootstrap.Send(peer, 6, ToBytes("other tag")).ok());
    }
    for (int peer = 0; peer < n; ++peer) {
      auto other = bootstrap.Recv(peer, 6, Soon());
      ASSERT_TRUE(other.ok()) << other.status().message();
      for (int i = 0; i < 3; ++i) {
        auto message = bootstrap.Recv(peer, 5, Soon());
        ASSERT_TRUE(message.ok()) << message.status().message();
        EXPECT_EQ(ToText(*message), fmt::format("{}>{}#{}", peer, bootstrap.rank(), i));
      }
    }
    EXPECT_TRUE(bootstrap.Barrier(Soon()).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BootstrapRanks, ::testing::Range(1, 18));

// An exchange of every rank's number, the least that most tests below need to see working.
void ExpectGathers(Bootstrap& bootstrap) {
  std::vector<int> data(static_cast<size_t>(bootstrap.num_ranks()), -1);
  data[static_cast<size_t>(bootstrap.rank())] = bootstrap.rank();
  const Status status = bootstrap.AllGather(data.data(), sizeof(int), Soon());
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < data.size(); ++i) EXPECT_EQ(data[i], static_cast<int>(i));
}

TEST(Bootstrap, JoinsHundredsOfRanksInOneProcess) {
  ASSERT_TRUE(RaiseDescriptorLimit().ok());
  const Job job(256);
  job.Run(ExpectGathers);
}

TEST(Bootstrap, RaisesTheLimitOfDescriptorsWhenItRunsOut) {
  const testing::DescriptorLimit low(64);
  const Job job(16);
  job.Run(ExpectGathers);
  rlimit after = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, after.rlim_max);
}

TEST(Bootstrap, SpreadsOutArrivalsAboveTheThreshold) {
  Settings settings = testing::LocalSettings();
  settings.uid_stagger_threshold = 4;
  settings.uid_stagger_rate = 40;  // rank 7 waits 175 ms
  const Job job(8, 1, settings);
  const int64_t start_ns = NowNs();
  job.Run(ExpectGathers);
  EXPECT_GE(NowNs() - start_ns, 170'000'000);
}

class BootstrapRoots : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(BootstrapRoots, SharesTheRanksAmongSeveralRoots) {
  const Job job(GetParam().first, GetParam().second);
  job.Run(ExpectGathers);
}

INSTANTIATE_TEST_SUITE_P(RanksAndRoots, BootstrapRoots,
                         ::testing::Values(std::pair(2, 2), std::pair(7, 3), std::pair(16, 4),
                                           std::pair(33, 5), std::pair(9, 9)));

TEST(Bootstrap, UsesIpv6) {
  Settings settings = testing::LocalSettings();
  settings.socket_family = "AF_INET6";
  const Job job(4, 1, settings);
  EXPECT_EQ(job.ids[0].root.family, 6);
  job.Run(ExpectGathers);
}

TEST(Bootstrap, ListensWithinThePortRange) {
  Settings settings = testing::LocalSettings();
  settings.port_range = testing::FreePorts(40);
  const Job job(5, 1, settings);
  EXPECT_GE(job.ids[0].root.port, settings.port_range.low);
  EXPECT_LE(job.ids[0].root.port, settings.port_range.high);
  job.Run(ExpectGathers);
}

TEST(Bootstrap, SaysWhenThePortRangeIsUsedUp) {
  Settings settings = testing::LocalSettings();
  settings.port_range = testing::FreePorts(2);  // one for the root, one for a rank
  const std::string range =
      fmt::format("{} to {}", settings.port_range.low, settings.port_range.high);
  Job job(2, 1, settings);
  const int64_t start_ns = NowNs();
  int full = 0;
  std::mutex mutex;
  testing::ForEach(2, [&](int rank) {
    const auto bootstrap = job.Create(rank);
    ASSERT_FALSE(bootstrap.ok());
    const std::lock_guard lock(mutex);
    full += bootstrap.status().message().find(range) != std::string_view::npos;
  });
  // The other rank is told, and does not wait until the deadline.
  EXPECT_EQ(full, 2);
  EXPECT_LT(NowNs() - start_ns, 30'000'000'000);
}

TEST(Bootstrap, KeepsEarlyMessagesUntilTheyAreAskedFor) {
  const Job job(3);
  job.Run([](Bootstrap& bootstrap) {
    for (int peer = 0; peer < 3; ++peer) {
      for (uint32_t tag = 0; tag < 20; ++tag) {
        ASSERT_TRUE(bootstrap.Send(peer, tag, ToBytes(fmt::format("{}", tag))).ok());
      }
    }
    ASSERT_TRUE(bootstrap.Barrier(Soon()).ok());
    for (uint32_t tag = 20; tag-- > 0;) {
      for (int peer = 2; peer >= 0; --peer) {
        auto message = bootstrap.Recv(peer, tag, Soon());
        ASSERT_TRUE(message.ok()) << message.status().message();
        EXPECT_EQ(ToText(*message), fmt::format("{}", tag));
      }
    }
    ASSERT_TRUE(bootstrap.Barrier(Soon()).ok());
  });
}

TEST(Bootstrap, CarriesLargeMessagesBothWaysAtOnce) {
  const Job job(2);
  job.Run([](Bootstrap& bootstrap) {
    const int other = 1 - bootstrap.rank();
    Bytes large(20 << 20);
    for (size_t i = 0; i < large.size(); ++i) {
      large[i] = std::byte(i * 31 + static_cast<size_t>(bootstrap.rank()));
    }
    ASSERT_TRUE(bootstrap.Send(other, 1, large).ok());
    auto message = bootstrap.Recv(other, 1, Soon());
    ASSERT_TRUE(message.ok()) << message.status().message();
    ASSERT_EQ(message->size(), large.size());
    for (size_t i = 0; i < large.size(); ++i) {
      ASSERT_EQ((*message)[i], std::byte(i * 31 + static_cast<size_t>(other))) << i;
    }
    EXPECT_FALSE(bootstrap.Send(other, 1, Bytes(kMaxFrameBytes + 1)).ok());
    ASSERT_TRUE(bootstrap.Barrier(Soon()).ok());
  });
}

TEST(Bootstrap, LastMessageOutlivesItsSender) {
  const Job job(2);
  std::atomic<bool> sender_is_gone{false};
  testing::ForEach(2, [&](int rank) {
    auto bootstrap = job.Create(rank);
    ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
    ASSERT_TRUE((*bootstrap)->Complete().ok());
    if (rank == 0) {
      ASSERT_TRUE((*bootstrap)->Send(1, 1, Bytes(8 << 20)).ok());
      bootstrap->reset();  // Most of the message is still in the queue.
      sender_is_gone = true;
      return;
    }
    for (const Deadline bound = Soon(); !sender_is_gone && !bound.Passed();)
      std::this_thread::yield();
    auto message = (*bootstrap)->Recv(0, 1, Soon());
    ASSERT_TRUE(message.ok()) << message.status().message();
    EXPECT_EQ(message->size(), size_t{8 << 20});
  });
}

TEST(Bootstrap, ShowsBothSidesOfAnUnequalExchange) {
  const Job job(2);
  job.Run([](Bootstrap& bootstrap) {
    std::array<char, 64> data = {};
    const size_t bytes = bootstrap.rank() == 0 ? 8 : 16;
    const Status status = bootstrap.AllGather(data.data(), bytes, Soon());
    EXPECT_EQ(status.code(), Code::kInvalidUsage);
    EXPECT_EQ(status.message(),
              bootstrap.rank() == 0
                  ? "rank 1 brought 16 bytes to an exchange where rank 0 brought 8"
                  : "rank 0 brought 8 bytes to an exchange where rank 1 brought 16");
    ASSERT_TRUE(bootstrap.Barrier(Soon()).ok());
  });
}

TEST(Bootstrap, RecvEndsAtItsDeadlineAndNamesThePeer) {
  const Job job(2);
  job.Run([](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 1) {
      const auto message = bootstrap.Recv(0, 9, Deadline::AfterSeconds(0.1));
      EXPECT_EQ(message.status().code(), Code::kTimeout);
      EXPECT_NE(message.status().message().find("rank 0 (pid"), std::string_view::npos)
          << message.status().message();
    }
    ASSERT_TRUE(bootstrap.Barrier(Soon()).ok());
  });
}

TEST(Bootstrap, RefusesRanksOutsideTheCommunicator) {
  const Job job(1);
  auto bootstrap = job.Create(0);
  ASSERT_TRUE(bootstrap.ok());
  EXPECT_EQ((*bootstrap)->Send(1, 0, {}).code(), Code::kInvalidArgument);
  EXPECT_EQ((*bootstrap)->Recv(-1, 0, Soon()).status().code(), Code::kInvalidArgument);
}

TEST(Bootstrap, LinkedRanksReachEveryoneByFlooding) {
  const Job job(13);
  std::mutex mutex;
  std::vector<std::vector<int>> linked(13);
  job.Run([&](Bootstrap& bootstrap) {
    const std::lock_guard lock(mutex);
    linked[static_cast<size_t>(bootstrap.rank())] = bootstrap.LinkedRanks();
  });
  for (int rank = 0; rank < 13; ++rank) {
    for (const int peer : linked[static_cast<size_t>(rank)]) {
      const auto& back = linked[static_cast<size_t>(peer)];
      EXPECT_TRUE(std::find(back.begin(), back.end(), rank) != back.end());
    }
  }
  EXPECT_EQ(linked[0], (std::vector<int>{1, 2, 4, 5, 8, 9, 11, 12}));
}

// The kernel has measured the links that were made, and knows nothing of other ranks.
TEST(Bootstrap, LinkedRanksHaveARoundTrip) {
  const Job job(13);
  job.Run([&](Bootstrap& bootstrap) {
    for (const int peer : bootstrap.LinkedRanks()) {
      EXPECT_GT(bootstrap.RoundTripNs(peer), 0) << bootstrap.rank() << " to " << peer;
      EXPECT_LT(bootstrap.RoundTripNs(peer), 1'000'000'000);
    }
    EXPECT_EQ(bootstrap.RoundTripNs((bootstrap.rank() + 6) % 13), 0);
    // Nobody closes its links before all have looked.
    EXPECT_TRUE(bootstrap.Barrier(Deadline::AfterSeconds(20)).ok());
  });
}

}  // namespace
}  // namespace tutti
