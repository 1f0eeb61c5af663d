// Tests the search for devices and ports, with a library of the test in place of libibverbs.

#include "transport/net/verbs/devices.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct FakePort {
  ibv_port_attr attributes = {};
  const char* address = "10.0.0.1";
};

struct FakeDevice {
  ibv_device device = {};
  std::vector<FakePort> ports;
  bool opens = true;
  ibv_context context = {};
};

// Holds the state of the library below, whose C functions have no object.
struct FakeHost {
  std::deque<FakeDevice> devices;
  int open = 0;
  bool lists = true;
};
FakeHost* host = nullptr;

FakeDevice& Of(ibv_context* context) {
  for (FakeDevice& device : host->devices) {
    if (&device.context == context) return device;
  }
  std::abort();
}

VerbsLibrary FakeLibrary() {
  VerbsLibrary library;
  library.get_device_list = [](int* count) -> ibv_device** {
    if (!host->lists) {
      errno = ENOSYS;
      return nullptr;
    }
    auto** list = new ibv_device*[host->devices.size() + 1];
    *count = 0;
    for (FakeDevice& device : host->devices) list[(*count)++] = &device.device;
    return list;
  };
  library.free_device_list = [](ibv_device** list) { delete[] list; };
  library.open_device = [](ibv_device* wanted) -> ibv_context* {
    for (FakeDevice& device : host->devices) {
      if (&device.device != wanted || !device.opens) continue;
      device.context.device = wanted;
      ++host->open;
      return &device.context;
    }
    errno = EACCES;
    return nullptr;
  };
  library.close_device = [](ibv_context*) { return --host->open, 0; };
  library.query_device = [](ibv_context* context, ibv_device_attr* attributes) {
    attributes->phys_port_cnt = static_cast<uint8_t>(Of(context).ports.size());
    return 0;
  };
  library.query_port = [](ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
    *attributes = Of(context).ports.at(port - size_t{1}).attributes;
    return 0;
  };
  library.query_gid_table = [](ibv_context* context, ibv_gid_entry* entries, size_t, uint32_t,
                               size_t size) -> ssize_t {
    EXPECT_EQ(size, sizeof(ibv_gid_entry));
    ssize_t count = 0;
    uint32_t port = 0;
    for (const FakePort& each : Of(context).ports) {
      ++port;
      if (!each.address) continue;
      ibv_gid_entry& entry = entries[count++];
      entry = {};
      entry.port_num = port;
      entry.gid_index = 3;
      entry.gid_type = IBV_GID_TYPE_ROCE_V2;
      entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
      inet_pton(AF_INET, each.address, &entry.gid.raw[12]);
    }
    return count;
  };
  return library;
}

class VerbsDevicesTest : public ::testing::Test {
 protected:
  VerbsDevicesTest() { host = &host_; }
  ~VerbsDevicesTest() override { host = nullptr; }

  FakeDevice& Add(const char* name, size_t ports = 1) {
    FakeDevice& device = host_.devices.emplace_back();
    std::strncpy(device.device.name, name, sizeof(device.device.name) - 1);
    device.device.transport_type = IBV_TRANSPORT_IB;
    device.ports.resize(ports);
    for (FakePort& port : device.ports) {
      port.attributes.state = IBV_PORT_ACTIVE;
      port.attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
      port.attributes.active_width = 2;   // 4 lanes
      port.attributes.active_speed = 32;  // EDR
      port.attributes.active_mtu = IBV_MTU_4096;
    }
    return device;
  }
  VerbsPorts Find(const Settings& settings = {}) {
    Result<VerbsPorts> ports = FindVerbsPorts(library_, settings);
    EXPECT_TRUE(ports.ok()) << ports.status().message();
    return ports.ok() ? std::move(ports).value() : VerbsPorts{};
  }
  static std::vector<std::string> Names(const VerbsPorts& ports) {
    std::vector<std::string> names;
    for (const VerbsPort& port : ports.usable) names.push_back(port.Name());
    return names;
  }

  FakeHost host_;
  const std::shared_ptr<const VerbsLibrary> library_ =
      std::make_shared<VerbsLibrary>(FakeLibrary());
};

TEST_F(VerbsDevicesTest, AHostWithoutDevicesHasNone) {
  EXPECT_THAT(Find().usable, IsEmpty());
  EXPECT_THAT(Find().left_out, IsEmpty());
}

TEST_F(VerbsDevicesTest, SaysWhatAPortIs) {
  Add("mlx5_0");
  {
    const VerbsPorts ports = Find();
    ASSERT_EQ(ports.usable.size(), 1u);
    const VerbsPort& port = ports.usable[0];
    EXPECT_EQ(port.Name(), "mlx5_0");
    EXPECT_TRUE(port.ethernet);
    EXPECT_EQ(port.speed_mbps, 100'000);
    EXPECT_EQ(port.mtu, IBV_MTU_4096);
    EXPECT_EQ(port.gid.ToString(), "10.0.0.1");
    EXPECT_EQ(port.gid.index, 3u);
    EXPECT_EQ(host_.open, 1);
  }
  EXPECT_EQ(host_.open, 0) << "a device stays open";
}

TEST_F(VerbsDevicesTest, PortsOfADeviceShareIt) {
  Add("mlx4_0", 2);
  const VerbsPorts ports = Find();
  EXPECT_THAT(Names(ports), ElementsAre("mlx4_0", "mlx4_0:2"));
  EXPECT_EQ(ports.usable[0].device, ports.usable[1].device);
  EXPECT_EQ(host_.open, 1);
}

TEST_F(VerbsDevicesTest, SaysWhyAPortIsLeftOut) {
  Add("efa0").device.transport_type = IBV_TRANSPORT_UNSPECIFIED;
  Add("mlx5_0").ports[0].attributes.state = IBV_PORT_DOWN;
  Add("mlx5_1").opens = false;
  Add("mlx5_2").ports[0].address = nullptr;
  const VerbsPorts ports = Find();
  EXPECT_THAT(ports.usable, IsEmpty());
  EXPECT_THAT(ports.left_out, ElementsAre(HasSubstr("efa0: "), HasSubstr("mlx5_0: it is down"),
                                          HasSubstr("mlx5_1: it cannot be opened"),
                                          HasSubstr("mlx5_2: it has no GID")));
}

TEST_F(VerbsDevicesTest, IwarpNeedsTheConnectionManager) {
  Add("siw0").device.transport_type = IBV_TRANSPORT_IWARP;
  Settings settings;
  settings.rdmacm_library = "libno-such-manager.so.1";
  const VerbsPorts ports = Find(settings);
  EXPECT_THAT(ports.usable, IsEmpty());
  EXPECT_THAT(ports.left_out, ElementsAre(HasSubstr("siw0: ")));
}

TEST_F(VerbsDevicesTest, TheFilterChoosesAmongPorts) {
  Add("mlx5_0", 2);
  Add("mlx5_1");
  Settings settings;
  settings.ib_hca = "mlx5_0:2,mlx5_1";
  const VerbsPorts ports = Find(settings);
  EXPECT_THAT(Names(ports), ElementsAre("mlx5_0:2", "mlx5_1"));
  EXPECT_THAT(ports.left_out, ElementsAre(HasSubstr("NCCL_IB_HCA")));
}

TEST_F(VerbsDevicesTest, AListThatCannotBeReadIsAFailure) {
  host_.lists = false;
  EXPECT_EQ(FindVerbsPorts(library_, {}).status().code(), Code::kSystemError);
}

TEST(LinkSpeedTest, MultipliesLanes) {
  EXPECT_EQ(LinkSpeedMbps(2, 64), 200'000);    // 4x HDR
  EXPECT_EQ(LinkSpeedMbps(1, 4), 10'000);      // 1x QDR
  EXPECT_EQ(LinkSpeedMbps(16, 128), 200'000);  // 2x NDR
  EXPECT_EQ(LinkSpeedMbps(3, 64), 0);
  EXPECT_EQ(LinkSpeedMbps(2, 0), 0);
}

TEST(VerbsLibraryTest, SaysWhatIsMissing) {
  const auto none = LoadVerbsLibrary("libno-such-verbs.so.1");
  EXPECT_EQ(none.status().code(), Code::kSystemError);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("libno-such-verbs.so.1"));
  const auto other = LoadVerbsLibrary("libc.so.6");
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("lacks the function ibv_fork_init"));
}

TEST(VerbsLibraryTest, FindsEveryFunctionOfTheSystemsLibrary) {
  const auto library = LoadVerbsLibrary("libibverbs.so.1");
  if (!library.ok()) GTEST_SKIP() << library.status().message();
  EXPECT_NE(library->reg_mr_iova2, nullptr);
}

}  // namespace
}  // namespace tutti
