#include "transport/net/socket/lane_config.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(LaneConfigTest, OneSocketOnSlowAndUnknownLinks) {
  EXPECT_EQ(ChooseLanes({}, {}), (LaneConfig{0, 0}));
  EXPECT_EQ(ChooseLanes({}, {10'000, 0}), (LaneConfig{0, 0}));
  EXPECT_EQ(ChooseLanes({}, {25'000, 0x15b3}), (LaneConfig{0, 0}));
}

TEST(LaneConfigTest, MoreOnFastLinks) {
  EXPECT_EQ(ChooseLanes({}, {50'000, 0}), (LaneConfig{2, 2}));
  EXPECT_EQ(ChooseLanes({}, {100'000, 0}), (LaneConfig{4, 4}));
  EXPECT_EQ(ChooseLanes({}, {0, 0x1d0f}), (LaneConfig{16, 2}));
  EXPECT_EQ(ChooseLanes({}, {0, 0x1ae0}), (LaneConfig{4, 4}));
}

TEST(LaneConfigTest, SettingsWin) {
  Settings settings;
  settings.socket_nthreads = 1;
  settings.nsocks_perthread = 1;
  EXPECT_EQ(ChooseLanes(settings, {100'000, 0}), (LaneConfig{0, 0}));
  settings.nsocks_perthread = 4;
  EXPECT_EQ(ChooseLanes(settings, {}), (LaneConfig{4, 0}));  // the driver is the one thread
  settings.socket_nthreads = 3;
  EXPECT_EQ(ChooseLanes(settings, {}), (LaneConfig{12, 3}));
  settings.socket_nthreads = 16;
  settings.nsocks_perthread = 16;
  EXPECT_EQ(ChooseLanes(settings, {}), (LaneConfig{64, 16}));
}

TEST(LaneConfigTest, AnInterfaceThatIsNotThereIsUnknown) {
  const LinkFacts facts = ReadLinkFacts("no-such-interface");
  EXPECT_EQ(facts.speed_mbps, 0);
  EXPECT_EQ(facts.pci_vendor, 0u);
}

}  // namespace
}  // namespace tutti
