// Tuner plugins in every version of the interface: what they change in a choice, and plugins that
// are missing or misbehave.

#include <gmock/gmock.h>

#include "connection/inline_bytes.h"
#include "example_library.h"
#include "operations/tuner/abi.h"
#include "operations/tuner/tuner_plugin.h"
#include "plan/plan.h"

namespace tutti {
namespace {

// Four ranks of four hosts.
PlanContext FourHosts() {
  PlanContext context;
  context.num_ranks = 4;
  context.host.one_host = false;
  context.host.slot_bytes = 512 << 10;
  return context;
}
constexpr TunedComm kComm = {.id = 7, .num_ranks = 4, .num_hosts = 4};

std::unique_ptr<TunerPlugin> LoadTuner(const std::string& names) {
  Settings settings;
  settings.tuner_plugin = names;
  settings.net_plugin = "none";
  return TunerPlugin::Load(settings, kComm);
}

Plan ChooseWith(CostAdviser* adviser, const PlanContext& context = FourHosts(),
                size_t count = 1 << 18, ReductionOrder order = ReductionOrder::kAny) {
  return MakePlan(context,
                  {.collective = Collective::kAllReduce,
                   .count = count,
                   .type = DataType::kFloat32,
                   .order = order},
                  adviser);
}

class TunerVersionTest : public ::testing::TestWithParam<int> {
 protected:
  std::string file() const { return ExampleFile("tuner", GetParam()); }
};

TEST_P(TunerVersionTest, ChoosesWhatThePluginWants) {
  struct Wish {
    const char* text;
    Algorithm algorithm;
    Protocol protocol;
  };
  for (const Wish& wish : {Wish{"tree-ll", Algorithm::kTree, Protocol::kLL},
                           {"tree-simple", Algorithm::kTree, Protocol::kSimple},
                           {"ring-ll", Algorithm::kRing, Protocol::kLL},
                           {"ring-simple", Algorithm::kRing, Protocol::kSimple}}) {
    const WithVariable variable("EXAMPLE_TUNER", wish.text);
    const auto tuner = LoadTuner(file());
    ASSERT_NE(tuner, nullptr);
    EXPECT_EQ(tuner->name(), fmt::format("Example, version {}", GetParam()));
    const Plan choice = ChooseWith(tuner.get());
    EXPECT_EQ(choice.algorithm(), wish.algorithm) << wish.text;
    EXPECT_EQ(choice.protocol, wish.protocol) << wish.text;
    EXPECT_LE(choice.slice_elems * sizeof(float),
              wish.protocol == Protocol::kLL ? kInlineBytes : FourHosts().host.slot_bytes);
  }
  EXPECT_EQ(AskExample<int>(file(), "exampleOpenContexts"), 0) << "a context was not ended";
}

TEST_P(TunerVersionTest, KeepsTheChoiceWhereThePluginSaysNothingOrFails) {
  const Plan without = ChooseWith(nullptr);
  for (const char* const wish : {"keep", "fail"}) {
    const WithVariable variable("EXAMPLE_TUNER", wish);
    const auto tuner = LoadTuner(file());
    ASSERT_NE(tuner, nullptr);
    const Plan choice = ChooseWith(tuner.get());
    EXPECT_EQ(choice.algorithm(), without.algorithm()) << wish;
    EXPECT_EQ(choice.protocol, without.protocol) << wish;
    EXPECT_EQ(choice.chunk_elems, without.chunk_elems) << wish;
  }
}

TEST_P(TunerVersionTest, IsNotUsedWhereItsInitFails) {
  const WithVariable variable("EXAMPLE_TUNER", "init");
  EXPECT_EQ(LoadTuner(file()), nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, TunerVersionTest,
                         ::testing::Range(tunerplugin::kOldestVersion,
                                          tunerplugin::kNewestVersion + 1),
                         ::testing::PrintToStringParamName());

// A list that is stricter than the tuner holds, and so does the order of a deterministic reduction.
TEST(TunerTest, ChoosesAmongWhatIsAllowedOnly) {
  const WithVariable variable("EXAMPLE_TUNER", "tree-ll");
  const auto tuner = LoadTuner(ExampleFile("tuner", 7));
  PlanContext rings = FourHosts();
  ASSERT_TRUE(ApplyAlgorithmList("ring", rings).ok());
  EXPECT_EQ(ChooseWith(tuner.get(), rings).algorithm(), Algorithm::kRing);
  PlanContext simple = FourHosts();
  ASSERT_TRUE(ApplyProtocolList("simple", simple).ok());
  EXPECT_EQ(ChooseWith(tuner.get(), simple).protocol, Protocol::kSimple);
  const Plan ordered =
      ChooseWith(tuner.get(), FourHosts(), 1 << 18, OrderOf(DataType::kFloat32, ReduceKind::kSum));
  EXPECT_NE(ordered.algorithm(), Algorithm::kTree);
}

// The algorithms that NCCL has no name for are left.
TEST(TunerTest, ExcludingEverythingLeavesTheOthers) {
  const WithVariable variable("EXAMPLE_TUNER", "none");
  const auto tuner = LoadTuner(ExampleFile("tuner", 7));
  const Plan small = ChooseWith(tuner.get(), FourHosts(), 16);
  EXPECT_EQ(small.algorithm(), Algorithm::kRecursiveDoubling);
  // Nothing else is allowed: the list is stronger than the tuner.
  PlanContext rings = FourHosts();
  ASSERT_TRUE(ApplyAlgorithmList("ring", rings).ok());
  EXPECT_EQ(ChooseWith(tuner.get(), rings, 16).algorithm(), Algorithm::kRing);
}

TEST(TunerTest, StepsAreAsLongAsItWantsWithinASlot) {
  const WithVariable variable("EXAMPLE_TUNER", "ring-simple");
  const PlanContext context = FourHosts();
  const auto tuner = LoadTuner(ExampleFile("tuner", 6));
  for (const size_t wish : {size_t{0}, size_t{1}, size_t{64} << 10, size_t{1} << 40}) {
    const WithVariable chunk("EXAMPLE_TUNER_CHUNK", std::to_string(wish));
    const Plan choice = ChooseWith(tuner.get());
    EXPECT_GE(choice.slice_elems, 1u);
    EXPECT_LE(choice.slice_elems * sizeof(float), context.host.slot_bytes);
    if (wish == size_t{64} << 10) {
      EXPECT_EQ(choice.chunk_elems * sizeof(float), wish);
    }
  }
}

TEST(TunerTest, IsAskedAboutTheCollectivesThatNcclAsksAbout) {
  const std::string file = ExampleFile("tuner", 7);
  const auto tuner = LoadTuner(file);
  const int before = AskExample<int>(file, "exampleCalls");
  MakePlan(FourHosts(), {.collective = Collective::kAlltoAll, .count = 400}, tuner.get());
  EXPECT_EQ(AskExample<int>(file, "exampleCalls"), before);
  MakePlan(FourHosts(), {.collective = Collective::kBroadcast, .count = 400}, tuner.get());
  EXPECT_EQ(AskExample<int>(file, "exampleCalls"), before + 1);
}

TEST(TunerTest, TheNextOneIsTakenWhereOneCannotBeUsed) {
  const auto tuner = LoadTuner(
      fmt::format("there-is-none,/lib/x86_64-linux-gnu/libm.so.6,{}", ExampleFile("tuner", 4)));
  ASSERT_NE(tuner, nullptr);
  EXPECT_EQ(tuner->name(), "Example, version 4");
}

TEST(TunerTest, LiesInTheLibraryOfANetworkToo) {
  Settings settings;
  settings.tuner_plugin = "there-is-none";
  settings.net_plugin = ExampleFile("tuner", 5);
  const auto tuner = TunerPlugin::Load(settings, kComm);
  ASSERT_NE(tuner, nullptr);
  EXPECT_EQ(tuner->name(), "Example, version 5");
  settings.tuner_plugin = "none";
  EXPECT_EQ(TunerPlugin::Load(settings, kComm), nullptr);
}

}  // namespace
}  // namespace tutti
