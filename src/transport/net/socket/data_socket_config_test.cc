#include "transport/net/socket/data_socket_config.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(DataSocketConfigTest, OneSocketOnSlowAndUnknownLinks) {
  EXPECT_EQ(ChooseDataSockets({}, {}), (DataSocketConfig{0, 0}));
  EXPECT_EQ(ChooseDataSockets({}, {10'000, 0}), (DataSocketConfig{0, 0}));
  EXPECT_EQ(ChooseDataSockets({}, {25'000, 0x15b3}), (DataSocketConfig{0, 0}));
}

TEST(DataSocketConfigTest, MoreOnFastLinks) {
  EXPECT_EQ(ChooseDataSockets({}, {50'000, 0}), (DataSocketConfig{2, 2}));
  EXPECT_EQ(ChooseDataSockets({}, {100'000, 0}), (DataSocketConfig{4, 4}));
  EXPECT_EQ(ChooseDataSockets({}, {0, 0x1d0f}), (DataSocketConfig{16, 2}));
  EXPECT_EQ(ChooseDataSockets({}, {0, 0x1ae0}), (DataSocketConfig{4, 4}));
}

TEST(DataSocketConfigTest, SettingsWin) {
  Settings settings;
  settings.socket_nthreads = 1;
  settings.nsocks_perthread = 1;
  EXPECT_EQ(ChooseDataSockets(settings, {100'000, 0}), (DataSocketConfig{0, 0, true}));
  settings.nsocks_perthread = 4;
  EXPECT_EQ(ChooseDataSockets(settings, {}),
            (DataSocketConfig{4, 0, true}));  // the driver is the one thread
  settings.socket_nthreads = 3;
  EXPECT_EQ(ChooseDataSockets(settings, {}), (DataSocketConfig{12, 3, true}));
  settings.socket_nthreads = 16;
  settings.nsocks_perthread = 16;
  EXPECT_EQ(ChooseDataSockets(settings, {}), (DataSocketConfig{64, 16, true}));
}

TEST(DataSocketConfigTest, OneForEachNicUnlessANumberWasAskedFor) {
  EXPECT_EQ(DataSocketsFor({}, 1), 0u);
  EXPECT_EQ(DataSocketsFor({}, 2), 2u);
  EXPECT_EQ(DataSocketsFor({4, 4}, 3), 4u);
  EXPECT_EQ(DataSocketsFor({0, 0, true}, 2), 0u);
}

TEST(DataSocketConfigTest, AnInterfaceThatIsNotThereIsUnknown) {
  const LinkFacts facts = ReadLinkFacts("no-such-interface");
  EXPECT_EQ(facts.speed_mbps, 0);
  EXPECT_EQ(facts.pci_vendor, 0u);
}

}  // namespace
}  // namespace tutti
