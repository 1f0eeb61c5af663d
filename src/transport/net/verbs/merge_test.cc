// Tests the merging of ports into devices.

#include "transport/net/verbs/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kRoot = "/sys/devices/pci0000:3a";
// A switch below a port of the processor, and a second switch below the first.
const std::string kPort = std::string(kRoot) + "/0000:3a:00.0";
const std::string kSwitch = kPort + "/0000:3b:00.0";
const std::string kSecond = kSwitch + "/0000:3c:04.0/0000:40:00.0";

PortPlace Place(const std::string& device, const std::string& path, uint8_t port = 1) {
  return {device, port, true, path, 0};
}

// A card of two functions, and cards below the same switch, below a second switch, at a second port
// of the processor, on a second NUMA node, and on no PCI bus.
const std::vector<PortPlace> kPlaces = {
    Place("mlx5_0", kSwitch + "/0000:3c:00.0/0000:3d:00.0"),
    Place("mlx5_1", kSwitch + "/0000:3c:00.0/0000:3d:00.1"),
    Place("mlx5_2", kSwitch + "/0000:3c:01.0/0000:3e:00.0"),
    Place("mlx5_3", kSecond + "/0000:41:00.0/0000:42:00.0"),
    Place("mlx5_4", std::string(kRoot) + "/0000:3a:01.0/0000:50:00.0"),
    {"mlx5_5", 1, true, "/sys/devices/pci0000:b0/0000:b0:00.0/0000:b1:00.0", 1},
    Place("rxe0", ""),
};

std::vector<MergedPorts> Merged(const std::vector<PortPlace>& places, const MergeWish& wish) {
  const auto devices = MergePorts(places, wish);
  EXPECT_TRUE(devices.ok()) << devices.status().message();
  return *devices;
}

MergeWish Level(PortDistance level) {
  MergeWish wish;
  wish.level = level;
  return wish;
}

using Ports = MergedPorts;

TEST(MergePortsTest, EachLevelMergesWhatTheOneBeforeDoesAndMore) {
  EXPECT_THAT(Merged(kPlaces, Level(PortDistance::kSame)),
              ElementsAre(Ports{0}, Ports{1}, Ports{2}, Ports{3}, Ports{4}, Ports{5}, Ports{6}));
  EXPECT_THAT(Merged(kPlaces, Level(PortDistance::kCard)),
              ElementsAre(Ports{0, 1}, Ports{2}, Ports{3}, Ports{4}, Ports{5}, Ports{6}));
  EXPECT_THAT(Merged(kPlaces, Level(PortDistance::kSwitch)),
              ElementsAre(Ports{0, 1, 2}, Ports{3}, Ports{4}, Ports{5}, Ports{6}));
  EXPECT_THAT(Merged(kPlaces, Level(PortDistance::kBridges)),
              ElementsAre(Ports{0, 1, 2, 3}, Ports{4}, Ports{5}, Ports{6}));
  // No more than four.
  EXPECT_THAT(Merged(kPlaces, Level(PortDistance::kHost)),
              ElementsAre(Ports{0, 1, 2, 3}, Ports{4}, Ports{5}, Ports{6}));
}

TEST(MergePortsTest, PortsOfOneDeviceAreOfOneCardWhereverItIs) {
  const std::vector<PortPlace> two = {Place("rxe0", "", 1), Place("rxe0", "", 2),
                                      Place("rxe1", "", 1)};
  EXPECT_THAT(Merged(two, {}), ElementsAre(Ports{0, 1}, Ports{2}));
}

TEST(MergePortsTest, VirtualFunctionsAreOfOneCardUnlessTheSettingsSayNo) {
  const std::vector<PortPlace> functions = {Place("mlx5_0", kPort + "/0000:3b:00.2"),
                                            Place("mlx5_1", kPort + "/0000:3b:01.3")};
  MergeWish wish;
  EXPECT_THAT(Merged(functions, wish), ElementsAre(Ports{0, 1}));
  wish.functions = false;
  EXPECT_THAT(Merged(functions, wish), ElementsAre(Ports{0}, Ports{1}));
}

TEST(MergePortsTest, PortsOfTwoKindsAreNotMerged) {
  std::vector<PortPlace> places(kPlaces.begin(), kPlaces.begin() + 2);
  places[1].ethernet = false;
  EXPECT_THAT(Merged(places, {}), ElementsAre(Ports{0}, Ports{1}));
}

TEST(MergePortsTest, ForcedListsComeFirst) {
  MergeWish wish;
  wish.forced = {"mlx5_1,mlx5_5", "mlx5_2,mlx5_3:1"};
  EXPECT_THAT(Merged(kPlaces, wish),
              ElementsAre(Ports{0}, Ports{1, 5}, Ports{2, 3}, Ports{4}, Ports{6}));
}

TEST(MergePortsTest, ForcedListsThatCannotBeAreRefused) {
  const auto refusal = [](std::vector<std::string> lists) {
    MergeWish wish;
    wish.forced = std::move(lists);
    std::vector<PortPlace> places = kPlaces;
    places[6].ethernet = false;
    const Status status = MergePorts(places, wish).status();
    EXPECT_EQ(status.code(), Code::kInvalidUsage);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({"mlx5_0,mlx5_9"}), HasSubstr("names 2 ports, of which 1"));
  EXPECT_THAT(refusal({"mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4"}), HasSubstr("at most 4"));
  EXPECT_THAT(refusal({"mlx5_0,mlx5_1", "mlx5_1,mlx5_2"}), HasSubstr("mlx5_1 twice"));
  EXPECT_THAT(refusal({"mlx5_0,rxe0"}), HasSubstr("RoCE and"));
  EXPECT_THAT(refusal({"mlx5_0,mlx5_1:x"}), HasSubstr("NCCL_NET_FORCE_MERGE"));
}

TEST(MergeWishTest, SettingsSayWhatIsMerged) {
  const auto wish = [](const std::function<void(Settings&)>& change) {
    Settings settings;
    change(settings);
    return MergeWish::From(settings);
  };
  EXPECT_EQ(wish([](Settings&) {})->level, PortDistance::kCard);
  EXPECT_EQ(wish([](Settings& s) { s.ib_merge_nics = false; })->level, PortDistance::kSame);
  EXPECT_TRUE(wish([](Settings&) {})->functions);
  EXPECT_FALSE(wish([](Settings& s) { s.ib_merge_vfs = false; })->functions);
  EXPECT_EQ(wish([](Settings& s) { s.net_merge_level = "PHB"; })->level, PortDistance::kHost);
  EXPECT_THAT(wish([](Settings& s) { s.net_force_merge = "a,b;c,d"; })->forced,
              ElementsAre("a,b", "c,d"));
  const Status status = wish([](Settings& s) {
                          s.ib_merge_nics = false;
                          s.net_force_merge = "a,b";
                        }).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("NCCL_IB_MERGE_NICS=0 forbids"));
}

}  // namespace
}  // namespace tutti
