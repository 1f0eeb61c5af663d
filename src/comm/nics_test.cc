#include "comm/nics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

namespace tutti {
namespace {

using ::testing::ElementsAre;

// A /sys with real interfaces eth0 to eth9, and none else.
class NicsTest : public ::testing::Test {
 protected:
  NicsTest() {
    char folder[] = "/tmp/tutti-nics-XXXXXX";
    sysfs_ = mkdtemp(folder);
    for (int i = 0; i < 10; ++i) {
      const std::string name = "eth" + std::to_string(i);
      std::filesystem::create_directories(sysfs_ + "/class/net/" + name + "/device");
    }
  }
  ~NicsTest() override { std::filesystem::remove_all(sysfs_); }

  static NetworkInterface Interface(const std::string& name, const std::string& address,
                                    const std::string& mask = "255.255.255.0") {
    NetworkInterface interface;
    interface.name = name;
    interface.address = ParseSocketAddress(address + ":0").value();
    interface.netmask = ParseSocketAddress(mask + ":0").value();
    return interface;
  }
  PeerInfo Peer(const std::vector<NetworkInterface>& interfaces,
                const Settings& settings = {}) const {
    PeerInfo peer;
    peer.networks = NetworksOf(interfaces, settings, sysfs_);
    return peer;
  }
  // Returns, for each of `interfaces`, whether it is usable. All are devices of the network.
  std::vector<bool> UsableNics(const std::vector<NetworkInterface>& interfaces,
                               const std::vector<PeerInfo>& peers,
                               const Settings& settings = {}) const {
    std::vector<NetDevice> devices;
    for (const NetworkInterface& one : interfaces) {
      devices.emplace_back();
      devices.back().name = one.name;
      devices.back().address = one.address.HostText();
    }
    std::vector<bool> usable;
    for (const OfferedNic& nic : MarkUsableNics(devices, interfaces, settings, peers, sysfs_))
      usable.push_back(nic.usable);
    return usable;
  }

  std::string sysfs_;
};

TEST_F(NicsTest, OnlyThoseThatEveryRankCanReach) {
  const std::vector<NetworkInterface> a = {Interface("eth0", "10.0.0.1"),
                                           Interface("eth1", "10.0.1.1"),
                                           Interface("eth2", "192.168.7.1")};
  const std::vector<NetworkInterface> b = {Interface("eth0", "10.0.0.2"),
                                           Interface("eth5", "10.0.1.2")};
  EXPECT_THAT(UsableNics(a, {Peer(a), Peer(b)}), ElementsAre(true, true, false));
  EXPECT_THAT(UsableNics(b, {Peer(a), Peer(b)}), ElementsAre(true, true));
}

TEST_F(NicsTest, ASubnetHasAMask) {
  const std::vector<NetworkInterface> a = {Interface("eth0", "10.0.0.1"),
                                           Interface("eth1", "10.0.1.1", "255.255.0.0")};
  const std::vector<NetworkInterface> b = {Interface("eth0", "10.0.0.2"),
                                           Interface("eth1", "10.0.1.2", "255.255.255.0")};
  EXPECT_THAT(UsableNics(a, {Peer(a), Peer(b)}), ElementsAre(true, false));
}

TEST_F(NicsTest, BridgesOfContainersLeadNowhere) {
  const std::vector<NetworkInterface> a = {Interface("eth0", "10.0.0.1"),
                                           Interface("docker0", "172.17.0.1", "255.255.0.0")};
  EXPECT_THAT(UsableNics(a, {Peer(a), Peer(a)}), ElementsAre(true, false));
}

TEST_F(NicsTest, LoopbackIsNoNetwork) {
  std::filesystem::create_directories(sysfs_ + "/class/net/lo/device");
  const PeerInfo peer = Peer({Interface("lo", "127.0.0.1", "255.0.0.0")});
  EXPECT_EQ(peer.networks[0], 0u);
}

TEST_F(NicsTest, TheUserKnowsBetter) {
  const std::vector<NetworkInterface> a = {Interface("eth0", "10.0.0.1"),
                                           Interface("eth1", "10.9.0.1")};
  const std::vector<PeerInfo> peers = {Peer(a), Peer({Interface("eth0", "10.0.0.2")})};
  EXPECT_THAT(UsableNics(a, peers), ElementsAre(true, false));
  Settings named;
  named.socket_ifname = "eth0,eth1";
  EXPECT_THAT(UsableNics(a, peers, named), ElementsAre(true, true));
  Settings not_that;
  not_that.socket_ifname = "^docker";
  EXPECT_THAT(UsableNics(a, peers, not_that), ElementsAre(true, false));
}

TEST_F(NicsTest, ARecordHoldsTheFirstNetworks) {
  std::vector<NetworkInterface> many;
  for (int i = 0; i < 10; ++i)
    many.push_back(Interface("eth" + std::to_string(i), "10.0." + std::to_string(i) + ".1"));
  const PeerInfo peer = Peer(many);
  EXPECT_NE(peer.networks.back(), 0u);
  const std::vector<bool> usable = UsableNics(many, {peer, peer});
  EXPECT_TRUE(usable[kMostPeerNetworks - 1]);
  EXPECT_FALSE(usable[kMostPeerNetworks]);
}

TEST(ShareOfTest, TheSlowestNicCountsAndTheFullestOne) {
  JobAnswer job;
  job.nic = {0, 0, 1, 0};
  job.nic_mbps = {25000, 25000, 10000, 40000};
  std::vector<PeerInfo> peers(4);
  for (size_t r = 0; r < 4; ++r) peers[r].host_hash = r < 3 ? 1 : 2;
  const NetworkShare share = ShareOf(job, peers);
  EXPECT_DOUBLE_EQ(share.bandwidth_gbps, 1.25);
  EXPECT_EQ(share.ranks_per_nic, 2);
  EXPECT_DOUBLE_EQ(share.host_gbps, 4.375);  // Two NICs; the NICs of the other host send 5.
  job.nic_mbps = {25000, 25000, 0, 40000};
  EXPECT_DOUBLE_EQ(ShareOf(job, peers).host_gbps,
                   5);  // Some speeds of the other host's NICs are not known.
  job.nic_mbps = {0, 0, 0, 0};
  EXPECT_EQ(ShareOf(job, peers).bandwidth_gbps, 0);
  EXPECT_EQ(ShareOf(job, peers).host_gbps, 0);
  EXPECT_EQ(ShareOf(job, peers).ranks_per_nic, 2);
}

TEST_F(NicsTest, ConnectionsAreSpreadOverNicsThatNobodyHas) {
  const auto spread = [](std::vector<OfferedNic> nics, int own, std::vector<int> of_host,
                         size_t place) { return SpreadOver(nics, own, of_host, place); };
  const std::vector<OfferedNic> four = {{"a"}, {"b"}, {"c"}, {"d"}};
  const NetSpread alone = spread(four, 1, {1}, 0);
  EXPECT_THAT(alone.together, ElementsAre(0, 2, 3));
  EXPECT_THAT(alone.spare, ElementsAre());
  const NetSpread first = spread(four, 0, {0, 1}, 0);
  EXPECT_THAT(first.together, ElementsAre(2));
  EXPECT_THAT(first.spare, ElementsAre(1, 3));
  const NetSpread second = spread(four, 1, {0, 1}, 1);
  EXPECT_THAT(second.together, ElementsAre(3));
  EXPECT_THAT(second.spare, ElementsAre(0, 2));
  EXPECT_THAT(spread(four, 0, {}, 0).spare, ElementsAre(1, 2, 3));
}

TEST_F(NicsTest, SlowAndUnusableNicsCarryNoPartOfAConnection) {
  const std::vector<OfferedNic> nics = {
      {"a", true, 10'000}, {"b", true, 1'000}, {"c", false, 10'000}, {"d", true, 5'000}, {"e"}};
  const std::vector<int> of_host = {0};
  EXPECT_THAT(SpreadOver(nics, 0, of_host, 0).together, ElementsAre(3, 4));
}

}  // namespace
}  // namespace tutti
