#include "operations/peer_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

PeerInfo RankOn(uint64_t host, uint64_t cpu_set, int cpus) {
  PeerInfo peer;
  peer.host_hash = host;
  peer.cpu_set = cpu_set;
  peer.cpus = cpus;
  return peer;
}

PeerInfo RankWithGpu(uint64_t identity, bool shares) {
  PeerInfo peer;
  peer.device = 0x100;
  peer.device_identity = identity;
  peer.multiprocessors = 132;
  peer.multi_rank_gpu = shares;
  return peer;
}

TEST(PeerInfoTest, RanksWithOneSetOfProcessorsShareIt) {
  // The last two ranks report hosts of their own, but run on the machine of the first rank.
  const std::vector<PeerInfo> peers = {RankOn(1, 7, 12), RankOn(1, 8, 6), RankOn(2, 7, 12),
                                       RankOn(3, 7, 12)};
  EXPECT_EQ(FewestCpusOfARank(peers), 4);
  EXPECT_EQ(FewestCpusOfARank(std::vector{RankOn(1, 7, 1), RankOn(2, 7, 1)}), 0.5);
}

TEST(PeerInfoTest, OneGpuHasOneRankUnlessAllOfItsRanksAgree) {
  EXPECT_TRUE(CheckPeers(std::vector{RankWithGpu(1, false), RankWithGpu(2, false)}).ok());
  for (const bool first : {false, true}) {
    const std::vector<PeerInfo> peers = {RankWithGpu(1, first), RankWithGpu(1, !first)};
    EXPECT_THAT(CheckPeers(peers).message(), HasSubstr("the same GPU"));
    EXPECT_THAT(CheckPeers(peers).message(), HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE"));
  }
  EXPECT_TRUE(CheckPeers(std::vector{RankWithGpu(1, true), RankWithGpu(1, true)}).ok());
}

TEST(PeerInfoTest, SettingsThatDifferAreNamedAndNoOthers) {
  Settings settings;
  settings.max_ctas = 2;
  const PeerInfo usual = DescribeSelf(settings);
  settings.algo = "ring";
  settings.deterministic = true;
  const PeerInfo other = DescribeSelf(settings);
  settings.algo = "tree";
  const PeerInfo third = DescribeSelf(settings);
  EXPECT_TRUE(CheckPeers(std::vector{other, other}).ok());
  const Status status = CheckPeers(std::vector{usual, usual, other});
  EXPECT_THAT(status.message(), HasSubstr("has the defaults and rank 2 "));
  EXPECT_THAT(status.message(), HasSubstr(" has NCCL_ALGO=ring TUTTI_DETERMINISTIC=1: settings"));
  EXPECT_THAT(status.message(), Not(HasSubstr("NCCL_MAX_CTAS")));
  // Values may have spaces, and the end of a text that is too long cannot be shown.
  settings.algo = "allreduce:ring; broadcast:tree";
  EXPECT_THAT(CheckPeers(std::vector{usual, DescribeSelf(settings)}).message(),
              HasSubstr(" has NCCL_ALGO=allreduce:ring; broadcast:tree TUTTI_DETERMINISTIC=1"));
  settings.algo = std::string(300, 'x');
  const PeerInfo cut = DescribeSelf(settings);
  settings.algo += 'y';
  EXPECT_THAT(CheckPeers(std::vector{cut, DescribeSelf(settings)}).message(),
              HasSubstr("too long to be shown"));
  EXPECT_THAT(CheckPeers(std::vector{third, other}).message(),
              AllOf(HasSubstr(" has NCCL_ALGO=tree and rank 1 "),
                    HasSubstr(" has NCCL_ALGO=ring: settings that must be the same")));
}

TEST(PeerInfoTest, RanksOfOneGpuDivideItsMultiprocessors) {
  std::vector<PeerInfo> peers = {RankWithGpu(1, true), RankWithGpu(1, true), RankWithGpu(2, true)};
  peers[1].host_hash = 5;  // NCCL_HOSTID makes it another host, but not another GPU.
  ShareMultiprocessors(peers);
  EXPECT_EQ(peers[0].multiprocessors, 66);
  EXPECT_EQ(peers[1].multiprocessors, 66);
  EXPECT_EQ(peers[2].multiprocessors, 132);
}

}  // namespace
}  // namespace tutti
