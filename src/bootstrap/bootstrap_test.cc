#include "bootstrap/bootstrap.h"

#include <mutex>
#include <set>

#include "bootstrap/testing.h"

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

}  // namespace
}  // namespace tutti
