// Networks behind plugins: the contract of networks over the example plugin in every version of the
// interface, what plugins are promised, and plugins that are missing or misbehave.

#include "transport/net/plugin/plugin_net.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "config/plugin_file.h"
#include "transport/testing/net_contract.h"

namespace tutti {
namespace {

std::string FileOf(int version) {
  const std::string suffix =
      version == netplugin::kNewestVersion ? "" : fmt::format("_v{}", version);
  return fmt::format("{}/libnccl-net-example{}.so", PLUGIN_FOLDER, suffix);
}

int CountOf(int version, const char* name) {
  void* const library = dlopen(FileOf(version).c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return -1;
  const auto count = reinterpret_cast<int (*)()>(dlsym(library, name));
  const int result = count();
  dlclose(library);
  return result;
}

// Two communicators' networks by one plugin.
class PluginNetPair final : public NetPair {
 public:
  explicit PluginNetPair(int version) : version_(version) {
    const auto library = PluginLibrary::Open(FileOf(version)).value();
    EXPECT_EQ(library->functions().version(), version);
    before_ = CountOf(version, "exampleOpenObjects");
    for (auto& net : nets_) net = PluginNet::Create(library, 7).value();
  }
  ~PluginNetPair() override {
    for (auto& net : nets_) net.reset();
    EXPECT_EQ(CountOf(version_, "exampleViolations"), 0) << "the plugin was not kept its promises";
    EXPECT_EQ(CountOf(version_, "exampleOpenObjects"), before_) << "objects were left open";
  }
  Net& sending() override { return *nets_[0]; }
  Net& receiving() override { return *nets_[1]; }

 private:
  const int version_;
  int before_ = 0;
  std::array<std::unique_ptr<Net>, 2> nets_;
};

NetFactory Factory(int version) {
  return {fmt::format("Version{}", version),
          [=] { return std::make_unique<PluginNetPair>(version); }, size_t{64} << 20};
}

class PluginNetContract : public NetContract {};
TEST_P(PluginNetContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(V6, PluginNetContract, NetContractCasesFor(Factory(6)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(V8, PluginNetContract, NetContractCasesFor(Factory(8)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(V10, PluginNetContract, NetContractCasesFor(Factory(10)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(V12, PluginNetContract, NetContractCasesFor(Factory(12)),
                         NetContractCaseName);

class PluginVersionTest : public ::testing::TestWithParam<int> {};
TEST_P(PluginVersionTest, CarriesMessagesAndDescribesItsDevice) {
  PluginNetPair pair(GetParam());
  const NetDevice& device = pair.sending().devices().at(0);
  EXPECT_EQ(device.name, "Example");
  EXPECT_EQ(device.speed_mbps, 10000);
  EXPECT_EQ(device.max_group, 8);
  EXPECT_TRUE(device.needs_registration);
  EXPECT_FALSE(device.takes_gpu_memory);
  net_contract::NetLink link(pair);
  net_contract::Transfer(link, {0, 1, 5000, 100'000});
}
INSTANTIATE_TEST_SUITE_P(All, PluginVersionTest,
                         ::testing::Range(netplugin::kOldestVersion, netplugin::kNewestVersion + 1),
                         ::testing::PrintToStringParamName());

// Memory of a GPU: no processor reaches its address, and what is there lies in a DMA-BUF.
class GpuMemory {
 public:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kBytes = 4 * kPage;

  GpuMemory() : fd_(memfd_create("gpu", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(kBytes + kPage)), 0);
    address_ = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bytes_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, kPage);
  }
  ~GpuMemory() {
    munmap(address_, kBytes);
    munmap(bytes_, kBytes);
    close(fd_);
  }
  NetRegion region() const {
    NetRegion region = {static_cast<std::byte*>(address_), kBytes, NetMemoryKind::kGpu};
    region.dmabuf_fd = fd_;
    region.dmabuf_offset = kPage;
    return region;
  }
  std::byte* bytes() const { return static_cast<std::byte*>(bytes_); }

 private:
  const int fd_;
  void* address_ = nullptr;
  void* bytes_ = nullptr;
};

class PluginGpuMemoryTest : public ::testing::TestWithParam<int> {
 protected:
  ~PluginGpuMemoryTest() override { unsetenv("EXAMPLE_GPU"); }
};

// Each version's regMrDmaBuf is given the descriptor and the place in it, at both ends, and iflush
// the memory.
TEST_P(PluginGpuMemoryTest, IsSentReceivedAndFlushed) {
  setenv("EXAMPLE_GPU", "dmabuf", 1);
  PluginNetPair pair(GetParam());
  const NetDevice& device = pair.sending().devices().at(0);
  EXPECT_TRUE(device.takes_gpu_memory);
  EXPECT_TRUE(device.takes_dmabuf);
  EXPECT_TRUE(device.registers_memory);
  EXPECT_FALSE(device.shares_registrations);
  EXPECT_TRUE(device.needs_flush);
  const GpuMemory from;
  const GpuMemory to;
  const int before = CountOf(GetParam(), "exampleGpuRegions");
  const int flushes = CountOf(GetParam(), "exampleFlushes");
  const auto known = pair.sending().Register(0, from.region());
  ASSERT_TRUE(known.ok()) << known.status().message();
  net_contract::NetLink link(pair);
  const auto sends = link.sender->Register(from.region()).value();
  const auto receives = link.receiver->Register(to.region()).value();
  EXPECT_EQ(CountOf(GetParam(), "exampleGpuRegions"), before + 3);
  constexpr size_t kBytes = 9000;
  for (size_t i = 0; i < kBytes; ++i)
    from.bytes()[100 + i] = static_cast<std::byte>(i * 7 + i / 251);
  const NetReceive place = {to.region().address + 50, kBytes, 3, receives.get()};
  NetRequest* const receiving = link.receiver->Irecv({&place, 1}).value();
  ASSERT_NE(receiving, nullptr);
  NetRequest* sending = nullptr;
  ASSERT_TRUE(link.Drive([&] {
    return (sending = link.Send({from.region().address + 100, kBytes, 3, 0, sends.get()})) !=
           nullptr;
  }));
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  NetRequest* const flush = link.receiver->Iflush({&place, 1}).value();
  ASSERT_NE(flush, nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.receiver->Test(*flush).value(); }));
  EXPECT_EQ(CountOf(GetParam(), "exampleFlushes"), flushes + 1);
  EXPECT_EQ(std::memcmp(to.bytes() + 50, from.bytes() + 100, kBytes), 0);
}

TEST_P(PluginGpuMemoryTest, IsFoundOutToBeRefused) {
  setenv("EXAMPLE_GPU", "refuse", 1);
  PluginNetPair pair(GetParam());
  const GpuMemory memory;
  EXPECT_EQ(pair.sending().Register(0, memory.region()).status().code(), Code::kInvalidUsage);
  NetRegion by_address = memory.region();
  by_address.dmabuf_fd = -1;
  EXPECT_EQ(pair.sending().Register(0, by_address).status().code(), Code::kInvalidUsage);
  net_contract::NetLink link(pair);
  net_contract::Transfer(link, {5000});
}
INSTANTIATE_TEST_SUITE_P(All, PluginGpuMemoryTest,
                         ::testing::Range(netplugin::kOldestVersion, netplugin::kNewestVersion + 1),
                         ::testing::PrintToStringParamName());

TEST(PluginNamesTest, AreThoseBetweenCommas) {
  EXPECT_THAT(PluginNames(""), ::testing::ElementsAre(""));
  EXPECT_THAT(PluginNames("none"), ::testing::IsEmpty());
  EXPECT_THAT(PluginNames("NONE"), ::testing::IsEmpty());
  EXPECT_THAT(PluginNames("aws"), ::testing::ElementsAre("aws"));
  EXPECT_THAT(PluginNames("aws,,/opt/libx.so,"), ::testing::ElementsAre("aws", "/opt/libx.so"));
}

TEST(PluginLibraryTest, SaysWhichFileIsMissing) {
  const Status status = PluginLibrary::Open("there-is-none").status();
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("network plugin libnccl-net-there-is-none.so cannot be loaded"));
}

TEST(PluginLibraryTest, SaysThatALibraryIsNoPlugin) {
  const Status status = PluginLibrary::Open("libdl.so.2").status();
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  const Status other = PluginLibrary::Open("/lib/x86_64-linux-gnu/libm.so.6").status();
  EXPECT_THAT(std::string(other.message()),
              ::testing::HasSubstr("has no table from ncclNetPlugin_v6 to ncclNetPlugin_v12"));
}

TEST(PluginLibraryTest, NamesTheFunctionThatIsMissing) {
  netplugin::Table<8> table = {};
  std::string missing;
  EXPECT_EQ(MakePluginFunctions(8, &table, &missing), nullptr);
  EXPECT_EQ(missing, "a name");
  EXPECT_EQ(MakePluginFunctions(5, &table, &missing), nullptr);
  EXPECT_EQ(missing, "a known version");
}

class FailingPluginTest : public ::testing::Test {
 protected:
  void Fail(const char* how) { setenv("EXAMPLE_FAIL", how, 1); }
  void TearDown() override { unsetenv("EXAMPLE_FAIL"); }
  std::string Creation() {
    const auto library = PluginLibrary::Open(FileOf(12)).value();
    return std::string(PluginNet::Create(library, 1).status().message());
  }
  // Sends one message after another until an end fails, and says how.
  std::string Failure() {
    PluginNetPair pair(12);
    net_contract::NetLink link(pair);
    net_contract::NetBuffer to = link.ReceiveBuffer(100);
    net_contract::NetBuffer from = link.SendBuffer(100);
    NetRequest* receiving = nullptr;
    NetRequest* sending = nullptr;
    for (int i = 0; i < 100'000; ++i) {
      if (receiving == nullptr) receiving = link.Receive(to);
      if (sending == nullptr) sending = link.Send(from);
      for (NetComm* comm :
           {static_cast<NetComm*>(link.sender.get()), static_cast<NetComm*>(link.receiver.get())}) {
        const Result<bool> moved = comm->Progress();
        if (!moved.ok()) return std::string(moved.status().message());
      }
      if (sending != nullptr && link.Sent(sending)) sending = nullptr;
      if (receiving != nullptr && link.Received(receiving)) receiving = nullptr;
    }
    return "";
  }
};

TEST_F(FailingPluginTest, FailsInInit) {
  Fail("init");
  EXPECT_EQ(Creation(),
            "network plugin Example: init failed: a call of the system failed (result 2)");
}

TEST_F(FailingPluginTest, HasNoDevices) {
  Fail("devices");
  EXPECT_EQ(Creation(), "network plugin Example has no devices");
}

TEST_F(FailingPluginTest, FailsLater) {
  Fail("test-late");
  EXPECT_EQ(Failure(),
            "network plugin Example: test failed: a call of the system failed (result 2)");
}

TEST_F(FailingPluginTest, ReportsMoreThanThereWasRoomFor) {
  Fail("sizes");
  EXPECT_EQ(Failure(), "network plugin Example: test reports 101 bytes in a buffer of 100");
}

}  // namespace
}  // namespace tutti
