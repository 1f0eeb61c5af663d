// Profiler plugins in every version of the interface: what they are told, and plugins that are
// missing or misbehave.

#include <gmock/gmock.h>

#include "example_library.h"
#include "operations/profiler/profiler.h"
#include "transport/net/plugin/plugin_net.h"
#include "transport/testing/net_contract.h"

namespace tutti {
namespace {

const ProfiledComm kComm = {.id = 7, .name = "test", .num_ranks = 4, .num_hosts = 2, .rank = 1};

std::unique_ptr<Profiler> LoadProfiler(const std::string& names) {
  Settings settings;
  settings.profiler_plugin = names;
  settings.net_plugin = "none";
  return Profiler::Load(settings, kComm);
}

// Tells of a group of an AllReduce and a send.
void TellOfAGroup(Profiler* profiler) {
  const Profiler::Span group = Profiler::OfGroup(profiler, 2);
  const CollectiveTask reduce = {
      .count = 10,
      .type = DataType::kFloat32,
      .extras = std::make_shared<const CallExtras>(CallExtras{.profiler_tag = 4711})};
  {
    const Profiler::Span call = Profiler::OfCall(profiler, {reduce});
    const Profiler::Span told =
        Profiler::OfCollective(profiler, reduce, Algorithm::kRing, Protocol::kLL);
  }
  const MessageTask send = {.is_send = true, .peer = 3, .count = 5};
  const Profiler::Span call = Profiler::OfCall(profiler, {send});
  const Profiler::Span told = Profiler::OfMessage(profiler, send);
}

std::string LogOf(int version) {
  return AskExample<const char*>(ExampleFile("profiler", version), "exampleLog");
}

// Returns what a plugin of this version is told of that group.
std::string Expected(int version) {
  if (version >= 5) {
    const std::string tag = version >= 7 ? " tag 4711\n" : "\n";
    return "start GroupApi\n"
           "start Group\n"
           "start CollApi in GroupApi" +
           tag + "start Coll in CollApi AllReduce 10 ncclFloat32 RING LL number 0" + tag +
           "start KernelCh in Coll\n"
           "stop KernelCh\nstop Coll\nstop CollApi\n"
           "start P2pApi in GroupApi\n"
           "start P2p in P2pApi Send 5 with 3\n"
           "start KernelCh in P2p\n"
           "stop KernelCh\nstop P2p\nstop P2pApi\n"
           "stop Group\nstop GroupApi\n"
           "finalize\n";
  }
  const bool kernels = version >= 3;
  const std::string coll = version == 1 ? "#4 10 #7 #1 #0" : "AllReduce 10 ncclFloat32 RING LL";
  return "start Group\nstart Coll in Group " + coll + " number 0\n" +
         (kernels ? "start KernelCh in Coll\nstop KernelCh\n" : "") + "stop Coll\n" +
         "start P2p in Group " + (version == 1 ? "#6" : "Send") + " 5 with 3\n" +
         (kernels ? "start KernelCh in P2p\nstop KernelCh\n" : "") +
         "stop P2p\nstop Group\nfinalize\n";
}

class ProfilerVersionTest : public ::testing::TestWithParam<int> {};

TEST_P(ProfilerVersionTest, IsToldOfCallsAndOperations) {
  auto profiler = LoadProfiler(ExampleFile("profiler", GetParam()));
  ASSERT_NE(profiler, nullptr);
  LogOf(GetParam());  // Forgets what other tests of this process have left there.
  TellOfAGroup(profiler.get());
  profiler.reset();
  EXPECT_EQ(LogOf(GetParam()), Expected(GetParam()));
}

TEST_P(ProfilerVersionTest, IsNotUsedWhereItsInitFails) {
  const WithVariable variable("EXAMPLE_PROFILER", "init");
  EXPECT_EQ(LoadProfiler(ExampleFile("profiler", GetParam())), nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, ProfilerVersionTest,
                         ::testing::Range(profilerplugin::kOldestVersion,
                                          profilerplugin::kNewestVersion + 1),
                         ::testing::PrintToStringParamName());

TEST(ProfilerTest, SeveralAreToldAtOnce) {
  auto profiler = LoadProfiler(fmt::format("there-is-none,{},/lib/x86_64-linux-gnu/libm.so.6,{}",
                                           ExampleFile("profiler", 4), ExampleFile("profiler", 7)));
  ASSERT_NE(profiler, nullptr);
  TellOfAGroup(profiler.get());
  profiler.reset();
  EXPECT_EQ(LogOf(4), Expected(4));
  EXPECT_EQ(LogOf(7), Expected(7));
}

TEST(ProfilerTest, ParentsComeWithWhatIsAskedFor) {
  const WithVariable variable("EXAMPLE_PROFILER", std::to_string(profilerplugin::kColl));
  auto profiler = LoadProfiler(ExampleFile("profiler", 7));
  ASSERT_NE(profiler, nullptr);
  TellOfAGroup(profiler.get());
  profiler.reset();
  EXPECT_EQ(LogOf(7),
            "start GroupApi\n"
            "start Group\n"
            "start CollApi in GroupApi tag 4711\n"
            "start Coll in CollApi AllReduce 10 ncclFloat32 RING LL number 0 tag 4711\n"
            "stop Coll\nstop CollApi\nstop Group\nstop GroupApi\nfinalize\n");
}

TEST(ProfilerTest, OperationsGoOnWhereItFailsLater) {
  const WithVariable variable("EXAMPLE_PROFILER", "start");
  auto profiler = LoadProfiler(ExampleFile("profiler", 7));
  ASSERT_NE(profiler, nullptr);
  TellOfAGroup(profiler.get());
  profiler.reset();
  EXPECT_EQ(LogOf(7), "finalize\n");
}

// Two networks by one plugin. What that reports of one of them goes to a profiler.
class ToldNetPair final : public NetPair {
 public:
  ToldNetPair(int version, std::shared_ptr<Profiler> profiler, bool of_sends) {
    const auto library = PluginLibrary::Open(ExampleFile("net", version)).value();
    sending_ = PluginNet::Create(library, 7, of_sends ? profiler : nullptr).value();
    receiving_ = PluginNet::Create(library, 7, of_sends ? nullptr : profiler).value();
  }
  Net& sending() override { return *sending_; }
  Net& receiving() override { return *receiving_; }

 private:
  std::unique_ptr<Net> sending_;
  std::unique_ptr<Net> receiving_;
};

// Has messages pass in an operation and after it, and returns what a profiler is told of them.
std::string LogOfMessages(int net_version, int profiler_version, bool of_sends) {
  std::shared_ptr<Profiler> profiler = LoadProfiler(ExampleFile("profiler", profiler_version));
  EXPECT_NE(profiler, nullptr);
  {
    ToldNetPair pair(net_version, profiler, of_sends);
    net_contract::NetLink link(pair);
    {
      const Profiler::Span told =
          Profiler::OfCollective(profiler.get(), {}, Algorithm::kRing, Protocol::kSimple);
      LogOf(profiler_version);
      net_contract::Transfer(link, {100});
    }
    net_contract::Transfer(link, {100});
  }
  // The network holds it, too.
  profiler.reset();
  return LogOf(profiler_version);
}

class NetEventsTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(NetEventsTest, ReachProfilersBelowTheOperation) {
  const auto& [net, profiler] = GetParam();
  const std::string update = profiler >= 4 ? "update NetPlugin 100\n" : "";
  EXPECT_EQ(LogOfMessages(net, profiler, /*of_sends=*/true),
            "start ProxyOp in Coll send of up to 100\n"
            "start ProxyStep in ProxyOp\n"
            "start NetPlugin in ProxyStep of kind 7ee70001\n" +
                update +
                "stop NetPlugin\nstop ProxyStep\nstop ProxyOp\n"
                "stop KernelCh\nstop Coll\nfinalize\n");
  EXPECT_THAT(LogOfMessages(net, profiler, /*of_sends=*/false),
              ::testing::AllOf(::testing::HasSubstr("start ProxyOp in Coll receive of up to"),
                               ::testing::HasSubstr(update + "stop NetPlugin\nstop ProxyStep\n")));
}

INSTANTIATE_TEST_SUITE_P(All, NetEventsTest,
                         ::testing::Combine(::testing::Values(10, 11),
                                            ::testing::Range(3,
                                                             profilerplugin::kNewestVersion + 1)),
                         [](const auto& instance) {
                           return fmt::format("Net{}Profiler{}", std::get<0>(instance.param),
                                              std::get<1>(instance.param));
                         });

TEST(ToldNetTest, WithoutEventsOfPluginsInAnOldProfilerNothingIsLost) {
  EXPECT_EQ(LogOfMessages(11, 2, /*of_sends=*/true),
            "start ProxyOp in Coll send of up to 100\nstart ProxyStep in ProxyOp\n"
            "stop ProxyStep\nstop ProxyOp\nstop Coll\nfinalize\n");
}

// A flush that comes between two tries of a receive is no message, and takes nothing from it.
TEST(ToldNetTest, AReceiveThatIsTriedAgainIsToldOfOnce) {
  const WithVariable variable("EXAMPLE_FAIL", "receive-late");
  std::shared_ptr<Profiler> profiler = LoadProfiler(ExampleFile("profiler", 7));
  ASSERT_NE(profiler, nullptr);
  ToldNetPair pair(11, profiler, /*of_sends=*/false);
  net_contract::NetLink link(pair);
  const Profiler::Span told =
      Profiler::OfCollective(profiler.get(), {}, Algorithm::kRing, Protocol::kSimple);
  LogOf(7);
  net_contract::NetBuffer to = link.ReceiveBuffer(100);
  EXPECT_EQ(link.Receive(to), nullptr);
  const NetReceive flushed = {to.data(), to.size(), 0, to.memory()};
  NetRequest* const flush = *link.receiver->Iflush({&flushed, 1});
  ASSERT_NE(flush, nullptr);
  EXPECT_TRUE(*link.receiver->Test(*flush));
  net_contract::Transfer(link, {100});
  const std::string log = LogOf(7);
  EXPECT_EQ(log.find("start ProxyOp"), log.rfind("start ProxyOp")) << log;
}

TEST(ToldNetTest, NobodyIsToldOfWhatIsNotAskedFor) {
  const WithVariable variable("EXAMPLE_PROFILER", std::to_string(profilerplugin::kColl));
  EXPECT_EQ(LogOfMessages(11, 6, /*of_sends=*/true), "stop Coll\nfinalize\n");
}

TEST(ProfilerTest, WithoutOneNothingHappens) {
  EXPECT_EQ(LoadProfiler("none"), nullptr);
  TellOfAGroup(nullptr);
}

}  // namespace
}  // namespace tutti
