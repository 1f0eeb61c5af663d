#include "comm/reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ranks on these hosts.
std::vector<PeerInfo> On(const std::vector<uint64_t>& hosts) {
  std::vector<PeerInfo> peers(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) peers[i].host_hash = hosts[i];
  return peers;
}

TEST(ReachTest, RanksOfAHostShareMemoryUnlessASettingForbidsIt) {
  std::vector<PeerInfo> peers = On({1, 2, 1, 1});
  peers[3].shm_disabled = 1;
  EXPECT_THAT(MemorySharersOf(0, peers), ElementsAre(0, 2));
  EXPECT_THAT(MemorySharersOf(1, peers), ElementsAre(1));
  EXPECT_THAT(MemorySharersOf(2, peers), ElementsAre(0, 2));
  EXPECT_THAT(MemorySharersOf(3, peers), ElementsAre(3));
}

TEST(ReachTest, ALeaderIsTheLowestSharerOrTheRankItself) {
  const std::vector<PeerInfo> peers = On({1, 2, 1, 1});
  const auto check = [&](std::vector<int> leaders, bool strict) {
    return std::string(CheckLeaders(leaders, peers, strict).message());
  };
  EXPECT_EQ(check({0, 1, 0, 0}, true), "");
  EXPECT_EQ(check({0, 1, 0, 3}, false), "");
  EXPECT_THAT(check({0, 1, 0, 3}, true), HasSubstr("cannot share memory with rank 0"));
  EXPECT_THAT(check({0, 1, 0, 2}, false), HasSubstr("shares the memory of rank 2"));
  EXPECT_THAT(check({0, 0, 0, 0}, false), HasSubstr("shares the memory of rank 0"));
}

TEST(ReachTest, MemoryIsReadWhereASettingAllowsItAndItCanBe) {
  PeerInfo mine;
  PeerInfo other;
  std::strcpy(mine.fd_server, "a");
  std::strcpy(other.fd_server, "b");
  mine.pid = other.pid = getpid();
  other.probe_token.fill(7);
  const std::array<uint8_t, 16> there = other.probe_token;
  other.probe_address = reinterpret_cast<uintptr_t>(&there);
  EXPECT_EQ(CheckMayRead(mine, other).message(), "");
  other.probe_token.fill(8);
  EXPECT_FALSE(CheckMayRead(mine, other).ok()) << "something else lies there";
  std::strcpy(other.fd_server, "a");
  EXPECT_TRUE(CheckMayRead(mine, other).ok()) << "they are of one process";
  other.pull_disabled = 1;
  EXPECT_EQ(CheckMayRead(mine, other).code(), Code::kInvalidUsage);
  EXPECT_EQ(CheckMayRead(other, mine).code(), Code::kInvalidUsage);
}

TEST(ReachTest, CopiesAreTriedBetweenProcessesThatAllAllowThem) {
  std::vector<PeerInfo> peers = On({1, 1, 1});
  const std::vector<int> all = {0, 1, 2}, one = {1};
  EXPECT_FALSE(MayCopy(all, peers)) << "all ranks are of one process";
  EXPECT_FALSE(MayCopy(one, peers));
  peers[2].pid = 5;
  EXPECT_TRUE(MayCopy(all, peers));
  peers[1].pull_disabled = 1;
  EXPECT_FALSE(MayCopy(all, peers));
}

TEST(ReachTest, WindowsLieWhereNoRankForbidsIt) {
  constexpr auto kGpu = WindowPlace::kPeerMemory;
  constexpr auto kIpc = WindowPlace::kPeerMemoryByIpc;
  constexpr auto kHost = WindowPlace::kHostMemory;
  const Status none = Status::Ok();
  const Status refused(Code::kUnhandledCudaError, "the driver refused it");
  std::vector<PeerInfo> peers = On({1, 1});
  EXPECT_EQ(WindowsMayLie(kGpu, peers, none), WindowVerdict::kTry);
  EXPECT_EQ(WindowsMayLie(kIpc, peers, none), WindowVerdict::kPass);
  EXPECT_EQ(WindowsMayLie(kIpc, peers, refused), WindowVerdict::kTry);
  EXPECT_EQ(WindowsMayLie(kIpc, peers, InvalidUsage("too far away")), WindowVerdict::kPass);
  EXPECT_EQ(WindowsMayLie(kHost, peers, refused), WindowVerdict::kTry);
  peers[1].cumem_disabled = 1;
  EXPECT_EQ(WindowsMayLie(kGpu, peers, none), WindowVerdict::kPass);
  EXPECT_EQ(WindowsMayLie(kIpc, peers, none), WindowVerdict::kTry);
  peers[0].p2p_disabled = 1;
  EXPECT_EQ(WindowsMayLie(kIpc, peers, none), WindowVerdict::kForbidden);
  EXPECT_EQ(WindowsMayLie(kHost, peers, none), WindowVerdict::kTry);
  peers[0].shm_disabled = 1;
  EXPECT_EQ(WindowsMayLie(kHost, peers, none), WindowVerdict::kForbidden);
  EXPECT_THAT(std::string(ForbiddenPlace(kHost).message()), HasSubstr("NCCL_SHM_DISABLE"));
  EXPECT_THAT(std::string(ForbiddenPlace(kGpu).message()), HasSubstr("NCCL_P2P_DISABLE"));
}

}  // namespace
}  // namespace tutti
