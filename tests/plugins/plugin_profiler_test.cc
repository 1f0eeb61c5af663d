// Profiler plugins in every version of the interface: what they are told, and plugins that are
// missing or misbehave.

#include <gmock/gmock.h>

#include "example_library.h"
#include "operations/profiler/profiler.h"

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
  IssuedTask reduce;
  reduce.task.count = 10;
  reduce.task.type = DataType::kFloat32;
  {
    const Profiler::Span call = Profiler::OfCall(profiler, reduce);
    const Profiler::Span told =
        Profiler::OfCollective(profiler, reduce.task, Algorithm::kRing, Protocol::kLL);
  }
  IssuedTask send;
  send.task.collective = Collective::kSendRecv;
  send.task.is_send = true;
  send.task.root = 3;
  send.task.count = 5;
  const Profiler::Span call = Profiler::OfCall(profiler, send);
  const Profiler::Span told = Profiler::OfMessage(profiler, send.task);
}

std::string LogOf(int version) {
  return AskExample<const char*>(ExampleFile("profiler", version), "exampleLog");
}

// Returns what a plugin of this version is told of that group.
std::string Expected(int version) {
  if (version >= 5) {
    return "start GroupApi\n"
           "start Group\n"
           "start CollApi in GroupApi\n"
           "start Coll in CollApi AllReduce 10 ncclFloat32 RING LL number 0\n"
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
                                           ExampleFile("profiler", 4), ExampleFile("profiler", 6)));
  ASSERT_NE(profiler, nullptr);
  TellOfAGroup(profiler.get());
  profiler.reset();
  EXPECT_EQ(LogOf(4), Expected(4));
  EXPECT_EQ(LogOf(6), Expected(6));
}

TEST(ProfilerTest, ParentsComeWithWhatIsAskedFor) {
  const WithVariable variable("EXAMPLE_PROFILER", std::to_string(profilerplugin::kColl));
  auto profiler = LoadProfiler(ExampleFile("profiler", 6));
  ASSERT_NE(profiler, nullptr);
  TellOfAGroup(profiler.get());
  profiler.reset();
  EXPECT_EQ(LogOf(6),
            "start GroupApi\n"
            "start Group\n"
            "start CollApi in GroupApi\n"
            "start Coll in CollApi AllReduce 10 ncclFloat32 RING LL number 0\n"
            "stop Coll\nstop CollApi\nstop Group\nstop GroupApi\nfinalize\n");
}

TEST(ProfilerTest, OperationsGoOnWhereItFailsLater) {
  const WithVariable variable("EXAMPLE_PROFILER", "start");
  auto profiler = LoadProfiler(ExampleFile("profiler", 6));
  ASSERT_NE(profiler, nullptr);
  TellOfAGroup(profiler.get());
  profiler.reset();
  EXPECT_EQ(LogOf(6), "finalize\n");
}

TEST(ProfilerTest, WithoutOneNothingHappens) {
  EXPECT_EQ(LoadProfiler("none"), nullptr);
  TellOfAGroup(nullptr);
}

}  // namespace
}  // namespace tutti
