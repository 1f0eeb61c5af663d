// Tuner plugins in every version of the interface: what they change in a choice, and plugins that
// are missing or misbehave.

#include <gmock/gmock.h>

#include "connection/inline_bytes.h"
#include "example_library.h"
#include "operations/tuner/abi.h"
#include "operations/tuner/tuner_plugin.h"
#include "plan/mesh.h"
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
// Four GPUs that reach one another's memory.
PlanContext FourGpus() { return MeshContextFor(4, 132, GpuReach::kNvlink); }
// Four GPUs of four hosts.
PlanContext FourGpusOfFourHosts() {
  PlanContext context;
  context.kind = RankKind::kChannels;
  context.num_ranks = context.hosts.count = 4;
  context.channel = {.channels = 8,
                     .slot_bytes = 512 << 10,
                     .pair_slot_bytes = 128 << 10,
                     .trees = 4,
                     .tree_slot_bytes = 64 << 10};
  return context;
}
constexpr TunedComm kComm = {.id = 7, .num_ranks = 4, .num_hosts = 4};

std::unique_ptr<TunerPlugin> LoadTuner(const Settings& settings) {
  return TunerPlugin::Load(TunerPlugin::Find(settings), kComm);
}
std::unique_ptr<TunerPlugin> LoadTuner(const std::string& names) {
  Settings settings;
  settings.tuner_plugin = names;
  settings.net_plugin = "none";
  return LoadTuner(settings);
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

TEST_P(TunerVersionTest, ChoosesAlgorithmsAndChannelsOfGpus) {
  struct Wish {
    PlanContext context;
    const char* text;
    Algorithm algorithm;
    uint32_t channels;
  };
  const WithVariable channels("EXAMPLE_TUNER_CHANNELS", "6");
  for (const Wish& wish : {Wish{FourGpus(), "ring-simple", Algorithm::kRing, 6},
                           {FourGpusOfFourHosts(), "ring-simple", Algorithm::kRing, 6},
                           {FourGpusOfFourHosts(), "tree-simple", Algorithm::kTree, 3}}) {
    const WithVariable variable("EXAMPLE_TUNER", wish.text);
    const auto tuner = LoadTuner(file());
    ASSERT_NE(tuner, nullptr);
    const Plan without = ChooseWith(nullptr, wish.context);
    EXPECT_NE(without.channels, wish.channels);
    const Plan choice = ChooseWith(tuner.get(), wish.context);
    EXPECT_EQ(choice.algorithm(), wish.algorithm) << wish.text;
    EXPECT_EQ(choice.channels, wish.channels) << wish.text;
  }
}

TEST_P(TunerVersionTest, KeepsTheChoiceWhereThePluginSaysNothingOrFails) {
  for (const PlanContext& context : {FourHosts(), FourGpus(), FourGpusOfFourHosts()})
    for (const char* const wish : {"keep", "fail"}) {
      const Plan without = ChooseWith(nullptr, context);
      const WithVariable variable("EXAMPLE_TUNER", wish);
      const auto tuner = LoadTuner(file());
      ASSERT_NE(tuner, nullptr);
      const Plan choice = ChooseWith(tuner.get(), context);
      EXPECT_EQ(choice.algorithm(), without.algorithm()) << wish;
      EXPECT_EQ(choice.protocol, without.protocol) << wish;
      EXPECT_EQ(choice.channels, without.channels) << wish;
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

// A Reduce of GPUs has two chains, and NCCL has one name for both.
TEST(TunerTest, AChainInRankOrderDoesNotPassForTheOtherChain) {
  const Question reduce = {
      .collective = Collective::kReduce, .count = 1 << 24, .type = DataType::kFloat32};
  for (const char* const wish : {"keep", "ring-simple"}) {
    const WithVariable variable("EXAMPLE_TUNER", wish);
    const auto tuner = LoadTuner(ExampleFile("tuner", 7));
    EXPECT_EQ(MakePlan(FourGpus(), reduce, tuner.get()).row->id, MeshAlgorithm::kReduceChain);
  }
}

TEST(TunerTest, HearsOfRegisteredBuffersAndOfTheChannels) {
  const WithVariable variable("EXAMPLE_TUNER", "ring-simple");
  const std::string file = ExampleFile("tuner", 7);
  const auto tuner = LoadTuner(file);
  Question question = {.count = 1 << 18, .type = DataType::kFloat32};
  for (const bool registered : {true, false}) {
    question.buffers = registered ? Buffers::kRegistered : Buffers::kOwn;
    const Plan plan = MakePlan(FourGpus(), question, tuner.get());
    EXPECT_EQ(AskExample<int>(file, "exampleLastRegistered"), registered ? 1 : 0);
    EXPECT_EQ(AskExample<int>(file, "exampleLastChannels"), static_cast<int>(plan.channels));
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
  const auto tuner = LoadTuner(settings);
  ASSERT_NE(tuner, nullptr);
  EXPECT_EQ(tuner->name(), "Example, version 5");
  settings.tuner_plugin = "none";
  EXPECT_TRUE(TunerPlugin::Find(settings).empty());
}

}  // namespace
}  // namespace tutti
