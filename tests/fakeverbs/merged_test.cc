// Devices of several ports, and devices that stand by for one another.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "losses.h"
#include "merged_nics.h"
#include "transport/testing/verbs_forms.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using fakeverbs::Call;
using net_contract::MixedSizes;
using net_contract::NetBuffer;
using net_contract::NetLink;
using net_contract::Transfer;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

// Two NICs at either end carry messages in every form, the others in two that use all queue pairs.
std::vector<NetFactory> Factories(bool faulty) {
  std::vector<NetFactory> all;
  for (const Ends& ends : kEnds) {
    for (const VerbsForm& form : kVerbsForms) {
      const std::string_view name = form.name;
      if (&ends != kEnds && name != "InTurn" && name != "Split") continue;
      const auto make = [=]() -> std::unique_ptr<NetPair> {
        Settings sending = Has(ends.sender);
        Settings receiving = Has(ends.receiver);
        form.change(sending);
        form.change(receiving);
        if (faulty) FailOften();
        return std::make_unique<VerbsNetPair>(sending, receiving);
      };
      all.push_back({std::string(ends.name) + form.name, make, size_t{64} << 20});
    }
  }
  return all;
}

class MergedVerbsContract : public NetContract {
  const ShownNics nics_;
};
TEST_P(MergedVerbsContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(Merged, MergedVerbsContract,
                         ::testing::Combine(::testing::ValuesIn(Factories(false)),
                                            ::testing::ValuesIn(net_contract::Cases())),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(FaultyMerged, MergedVerbsContract,
                         ::testing::Combine(::testing::ValuesIn(Factories(true)),
                                            ::testing::ValuesIn(CasesThatStay())),
                         NetContractCaseName);

TEST_F(MergedVerbsTest, IsOneDeviceOfTheSpeedsSum) {
  VerbsNetPair pair(Has("fast,slow"), Has("dual"));
  ASSERT_EQ(pair.sending().devices().size(), 1u);
  EXPECT_EQ(pair.sending().devices()[0].name, "fast+slow");
  EXPECT_EQ(pair.sending().devices()[0].speed_mbps, 300'000);
  ASSERT_EQ(pair.receiving().devices().size(), 1u);
  EXPECT_EQ(pair.receiving().devices()[0].name, "dual+dual:2");
  EXPECT_EQ(pair.receiving().devices()[0].speed_mbps, 200'000);
  Settings apart = Has("dual");
  apart.ib_merge_nics = false;
  VerbsNetPair plain(apart);
  EXPECT_EQ(plain.sending().devices().size(), 2u);
}

// Two devices, mlx5_0 and mlx5_1, at these places in a tree that looks like /sys, at one NUMA node.
class PlacedVerbsTest : public MergedVerbsTest {
 protected:
  ~PlacedVerbsTest() override { std::filesystem::remove_all(root_); }
  // Returns where they are.
  std::vector<std::string> Put(const std::array<std::string, 2>& at) {
    namespace fs = std::filesystem;
    std::vector<fakeverbs::DeviceSpec> nics(2);
    std::vector<std::string> places;
    for (size_t i = 0; i < 2; ++i) {
      const fs::path place = root_ / "pci0000:3a" / at[i];
      nics[i].name = fmt::format("mlx5_{}", i);
      nics[i].ports = {{fmt::format("10.77.0.{}", i + 1)}};
      nics[i].sysfs = root_ / nics[i].name;
      fs::create_directories(place);
      std::ofstream(place / "numa_node") << "0\n";
      fs::create_directories(nics[i].sysfs);
      fs::create_symlink(place, nics[i].sysfs + "/device");
      places.push_back(fs::canonical(place));
    }
    fakeverbs::SetDevices(nics);
    return places;
  }
  // With these settings the two are one device, over both of which messages pass.
  static void AreOneDevice(const Settings& settings, const std::vector<std::string>& places) {
    VerbsNetPair pair(settings);
    ASSERT_EQ(pair.sending().devices().size(), 1u);
    const NetDevice& device = pair.sending().devices()[0];
    EXPECT_EQ(device.name, "mlx5_0+mlx5_1");
    EXPECT_EQ(device.speed_mbps, 200'000);
    EXPECT_EQ(device.pci_paths, places);
    NetLink link(pair);
    const size_t before = Now();
    Transfer(link, {100'001});
    EXPECT_THAT(Written(before), ElementsAre(Pair("mlx5_0", Gt(0u)), Pair("mlx5_1", Gt(0u))));
  }
  static size_t NumDevices(const char* level) {
    Settings settings;
    settings.net_merge_level = level;
    return VerbsNetPair(settings).sending().devices().size();
  }

 private:
  const std::filesystem::path root_ =
      std::filesystem::path(::testing::TempDir()) / fmt::format("merged-{}", getpid());
};

// As cards show themselves today: a device for each port, each a function of one PCI device.
TEST_F(PlacedVerbsTest, FunctionsOfACardAreOneDevice) {
  const auto places = Put({"0000:3a:00.0/0000:3b:00.0", "0000:3a:00.0/0000:3b:00.1"});
  AreOneDevice({}, places);
  EXPECT_EQ(NumDevices("LOC"), 2u);
}

TEST_F(PlacedVerbsTest, CardsBelowSeveralSwitchesAreOneDeviceByPxb) {
  const auto places =
      Put({"0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0/0000:3e:00.0/0000:3f:00.0",
           "0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:4d:00.0/0000:4e:00.0/0000:4f:00.0"});
  EXPECT_EQ(NumDevices("PIX"), 2u);
  Settings settings;
  settings.net_merge_level = "PXB";
  AreOneDevice(settings, places);
}

TEST_F(PlacedVerbsTest, CardsAtPortsOfOneProcessorAreOneDeviceByPhb) {
  const auto places = Put({"0000:3a:00.0/0000:3b:00.0", "0000:3a:01.0/0000:4b:00.0"});
  EXPECT_EQ(NumDevices("PXB"), 2u);
  Settings settings;
  settings.net_merge_level = "PHB";
  AreOneDevice(settings, places);
}

TEST_F(MergedVerbsTest, AForcedListThatCannotBeIsAnError) {
  Settings settings = Has("fast,slow");
  settings.net_force_merge = "fast,none";
  settings.ib_library = FakeVerbsLibrary();
  const auto loop = EventLoop::Create("merged").value();
  const auto net = VerbsNet::Create(*loop, RandomKey(), settings, {});
  EXPECT_EQ(net.status().code(), Code::kInvalidUsage);
  EXPECT_THAT(std::string(net.status().message()), HasSubstr("NCCL_NET_FORCE_MERGE"));
}

TEST_F(MergedVerbsTest, LongMessagesAreCutBySpeed) {
  VerbsNetPair pair(Has("fast,slow"));
  NetLink link(pair);
  Transfer(link, {3'000'001});
  EXPECT_THAT(Written(), ElementsAre(Pair("fast", 2'000'000u), Pair("slow", 1'000'001u)));
}

TEST_F(MergedVerbsTest, ShortMessagesTakeThePortsInTurn) {
  VerbsNetPair pair(Has("fast,slow"));
  NetLink link(pair);
  Transfer(link, {1001, 1001, 1001, 1001, 1001, 1001});
  EXPECT_THAT(Written(), ElementsAre(Pair("fast", 3003u), Pair("slow", 3003u)));
}

TEST_F(MergedVerbsTest, OnePortServesTwoOfTheOtherEnd) {
  VerbsNetPair pair(Has("spare"), Has("fast,slow"));
  NetLink link(pair);
  Transfer(link, MixedSizes(11, 60));
  size_t made = 0;
  for (const Call& call : fakeverbs::Calls()) made += call.name == "create_qp";
  EXPECT_EQ(made, 4u) << "two queue pairs at either end";
}

TEST_F(MergedVerbsTest, AGroupOfEightMayHoldAnySizes) {
  const std::vector<size_t> sizes = {0, 1, 65'536, 65'537, 200'001, 127, 1 << 20, 129};
  for (const Ends& ends : kEnds) {
    SCOPED_TRACE(ends.name);
    VerbsNetPair pair(Has(ends.sender), Has(ends.receiver));
    NetLink link(pair);
    for (int round = 0; round < 3; ++round) {
      std::vector<NetBuffer> from;
      std::vector<NetBuffer> to;
      std::vector<NetReceive> group;
      for (size_t i = 0; i < sizes.size(); ++i) {
        from.push_back(link.SendBuffer(sizes[i]));
        from[i].Fill(i);
        to.push_back(link.ReceiveBuffer(sizes[i]));
        group.push_back({to[i].data(), sizes[i], static_cast<uint32_t>(i + 1), to[i].memory()});
      }
      NetRequest* const receiving = *link.receiver->Irecv(group);
      ASSERT_NE(receiving, nullptr);
      std::vector<NetRequest*> sending;
      for (size_t i = sizes.size(); i-- > 0;) {
        sending.push_back(link.SendSoon(from[i], static_cast<uint32_t>(i + 1), 70));
        ASSERT_NE(sending.back(), nullptr);
      }
      ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
      for (NetRequest* const request : sending)
        ASSERT_TRUE(link.Drive([&] { return link.Sent(request); }));
      for (size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_EQ(receiving->received[i].bytes, sizes[i]);
        EXPECT_EQ(receiving->received[i].op_tag, 70u);
        EXPECT_EQ(to[i].FirstWrong(i, sizes[i]), sizes[i]);
      }
    }
  }
}

// A port dies while messages of `bytes` bytes are on their way over it.
void LosesAPortUnderWay(const Ends& ends, const std::string& device, size_t bytes, size_t count) {
  SCOPED_TRACE(std::string(ends.name) + " loses " + device);
  VerbsNetPair pair(Has(ends.sender), Has(ends.receiver));
  NetLink link(pair);
  Transfer(link, {100});
  std::vector<NetBuffer> from;
  std::vector<NetBuffer> to;
  std::vector<NetRequest*> receiving;
  std::vector<NetRequest*> sending;
  for (size_t i = 0; i < count; ++i) {
    to.push_back(link.ReceiveBuffer(bytes));
    receiving.push_back(link.Receive(to.back()));
    from.push_back(link.SendBuffer(bytes));
    from.back().Fill(i);
  }
  // The grants come before the way is blocked.
  sending.push_back(link.SendSoon(from[0]));
  fakeverbs::HoldSends(true);
  for (size_t i = 1; i < count; ++i) {
    NetRequest* const request = link.Send(from[i]);
    if (!request) break;  // It has no grant yet.
    sending.push_back(request);
  }
  fakeverbs::SetPortActive(device, 1, false);
  fakeverbs::HoldSends(false);
  for (size_t i = sending.size(); i < count; ++i) sending.push_back(link.SendSoon(from[i]));
  for (size_t i = 0; i < count; ++i) {
    ASSERT_NE(sending[i], nullptr);
    ASSERT_TRUE(link.Drive([&] { return link.Received(receiving[i]); }));
    ASSERT_TRUE(link.Drive([&] { return link.Sent(sending[i]); }));
    EXPECT_EQ(to[i].FirstWrong(i, bytes), bytes);
  }
  const size_t before = fakeverbs::Calls().size();
  Transfer(link, MixedSizes(5, 30));
  const std::vector<Call> calls = fakeverbs::Calls();
  EXPECT_TRUE(std::none_of(
      calls.begin() + static_cast<ptrdiff_t>(before), calls.end(),
      [&](const Call& call) { return call.name == "post_send" && call.device == device; }))
      << "something was posted on a port that is down";
  fakeverbs::SetPortActive(device, 1, true);
}

TEST_F(MergedVerbsTest, APortThatDiesUnderLongMessagesIsLeft) {
  for (const char* const device : {"fast", "slow"}) {
    LosesAPortUnderWay(kEnds[0], device, 1'000'001, 5);
    LosesAPortUnderWay(kEnds[1], device, 1'000'001, 5);
    LosesAPortUnderWay(kEnds[2], device, 1'000'001, 5);
  }
}

TEST_F(MergedVerbsTest, APortThatDiesUnderShortMessagesIsLeft) {
  for (const char* const device : {"fast", "slow"}) {
    LosesAPortUnderWay(kEnds[0], device, 501, 100);
    LosesAPortUnderWay(kEnds[1], device, 501, 100);
    LosesAPortUnderWay(kEnds[2], device, 501, 100);
  }
}

TEST_F(MergedVerbsTest, APortThatIsBackIsUsedAgain) {
  VerbsNetPair pair(Has("fast,slow"));
  NetLink link(pair);
  TransferUntilAllWrite(link, {"fast", "slow"});
  fakeverbs::SetPortActive("fast", 1, false);
  Transfer(link, {100});
  const size_t before = Now();
  Transfer(link, MixedSizes(9, 20));
  EXPECT_EQ(Written(before).count("fast"), 0u);
  fakeverbs::SetPortActive("fast", 1, true);
  TransferUntilAllWrite(link, {"fast", "slow"});
}

TEST_F(MergedVerbsTest, WithoutAnyPortTheFailureNamesThem) {
  VerbsNetPair pair(Has("fast,slow"));
  NetLink link(pair);
  Transfer(link, {100});
  fakeverbs::SetPortActive("fast", 1, false);
  Transfer(link, {100'000});
  fakeverbs::SetPortActive("slow", 1, false);
  NetBuffer to = link.ReceiveBuffer(1000);
  ASSERT_NE(link.Receive(to), nullptr);  // and the grant cannot be written
  EXPECT_THAT(FailuresOf(link), Each(HasSubstr("fast+slow has no active port")));
  for (const char* const device : {"fast", "slow"}) fakeverbs::SetPortActive(device, 1, true);
}

TEST_F(MergedVerbsTest, ANicThatFailsIsLeft) {
  VerbsNetPair pair(Has("fast,slow"));
  NetLink link(pair);
  Transfer(link, {100, 100'000});
  fakeverbs::RaiseDeviceEvent("slow", IBV_EVENT_DEVICE_FATAL);
  TransferUntilAllWrite(link, {"fast"});
  const size_t before = Now();
  Transfer(link, MixedSizes(3, 30));
  EXPECT_EQ(Written(before).count("slow"), 0u);
  fakeverbs::RaiseDeviceEvent("fast", IBV_EVENT_DEVICE_FATAL);
  // The other end may see first that this one is gone.
  EXPECT_THAT(FailuresOf(link),
              AllOf(Each(Not(IsEmpty())), Contains(HasSubstr("the device reported it"))));
}

// NICs number their queue pairs alike, so that the number alone does not tell which of them a
// completion is of.
TEST_F(MergedVerbsTest, ThePortBehindWhichNobodyAnswersIsLeft) {
  VerbsNetPair pair(Has("fast,slow"));
  NetLink link(pair);
  Transfer(link, {100});
  std::map<std::string, std::vector<uint32_t>> numbers;
  for (const Call& call : fakeverbs::Calls()) {
    if (call.name == "create_qp") numbers[call.device].push_back(call.queue_pair);
  }
  ASSERT_EQ(numbers["fast"], numbers["slow"]);
  const size_t before = Now();
  fakeverbs::FailSend({.opcode = IBV_WR_RDMA_WRITE, .device = "slow"});
  Transfer(link, {300'001});
  EXPECT_THAT(Written(before),
              ElementsAre(Pair("fast", 200'064u + 300'001u), Pair("slow", 99'937u)));
}

// A rank whose device is `fast`, and that may use `spare` too.
class SpareVerbsTest : public MergedVerbsTest {
 protected:
  static Settings TwoDevices() {
    Settings settings;
    settings.ib_hca = "=fast,spare";
    return settings;
  }
  static void Spread(VerbsNetPair& pair) {
    for (Net* const net : {&pair.sending(), &pair.receiving()}) {
      ASSERT_EQ(net->devices().size(), 2u);
      net->Spread(0, {{}, {1}});
    }
  }
};

TEST_F(SpareVerbsTest, ADeviceThatLostItsPortHandsOverAndTakesBack) {
  VerbsNetPair pair(TwoDevices());
  Spread(pair);
  NetLink link(pair);
  Transfer(link, {100, 100'000});
  EXPECT_EQ(Written().count("spare"), 0u);
  fakeverbs::SetPortActive("fast", 1, false);
  Transfer(link, MixedSizes(6, 40));
  EXPECT_THAT(Written()["spare"], Gt(0u));
  fakeverbs::SetPortActive("fast", 1, true);
  TransferUntilAllWrite(link, {"fast"});
  fakeverbs::SetPortActive("fast", 1, false);
  fakeverbs::SetPortActive("spare", 1, false);
  NetBuffer to = link.ReceiveBuffer(1000);
  ASSERT_NE(link.Receive(to), nullptr);
  EXPECT_THAT(FailuresOf(link), Each(HasSubstr("no other can take its place")));
  for (const char* const device : {"fast", "spare"}) fakeverbs::SetPortActive(device, 1, true);
}

TEST_F(SpareVerbsTest, WithoutAResumeTimeoutThereIsNone) {
  Settings settings = TwoDevices();
  settings.resume_timeout_s = 0;
  VerbsNetPair pair(settings);
  Spread(pair);
  NetLink link(pair);
  Transfer(link, {100});
  fakeverbs::SetPortActive("fast", 1, false);
  NetBuffer to = link.ReceiveBuffer(1000);
  ASSERT_NE(link.Receive(to), nullptr);
  EXPECT_THAT(std::string(NetLink::AwaitFailure(*link.receiver).message()),
              HasSubstr("granting buffers failed"));
  fakeverbs::SetPortActive("fast", 1, true);
}

// What its NIC refuses costs a spare its use, and the connection nothing.
TEST_F(SpareVerbsTest, ASpareThatRefusesMemoryIsNotUsed) {
  VerbsNetPair pair(TwoDevices());
  Spread(pair);
  NetLink link(pair);
  fakeverbs::RefuseCalls("reg_mr_iova2", ENOMEM, /*times=*/1, /*skip=*/1);
  NetBuffer to = link.ReceiveBuffer(1000);
  Transfer(link, {100, 100'000});
  fakeverbs::SetPortActive("fast", 1, false);
  ASSERT_NE(link.Receive(to), nullptr);
  EXPECT_THAT(FailuresOf(link), Each(HasSubstr("fast")));
  fakeverbs::SetPortActive("fast", 1, true);
}

TEST_F(SpareVerbsTest, ASpareThatRefusesQueuesIsNotTaken) {
  VerbsNetPair pair(TwoDevices());
  Spread(pair);
  fakeverbs::RefuseCalls("create_cq", ENOMEM, /*times=*/1, /*skip=*/1);
  NetLink link(pair);
  Transfer(link, {100, 100'000});
}

// Behind a port that is active the other end does not answer: after two losses in a row the device
// is left for its spare.
TEST_F(SpareVerbsTest, AWayThatIsBrokenIsLeft) {
  VerbsNetPair pair(TwoDevices());
  Spread(pair);
  NetLink link(pair);
  Transfer(link, {100});
  for (int i = 0; i < 2; ++i) fakeverbs::FailSend({.opcode = IBV_WR_RDMA_WRITE_WITH_IMM});
  const size_t before = Now();
  Transfer(link, {501});
  EXPECT_THAT(Written(before)["spare"], Gt(0u));
}

}  // namespace
}  // namespace tutti
