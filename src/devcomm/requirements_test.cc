#include "devcomm/requirements.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "devcomm/record.h"

namespace tutti {
namespace {

ncclDevCommRequirements_t Today() { return NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER; }

// The form of an earlier release's program; nothing behind its end may be read.
ncclDevCommRequirements_t OfRelease(unsigned version, size_t size) {
  ncclDevCommRequirements_t form = Today();
  form.version = version;
  form.size = size;
  std::memset(reinterpret_cast<char*>(&form) + size, 0x55, sizeof(form) - size);
  return form;
}

TEST(ReadRequirementsTest, TakesTheFormsOfAllReleases) {
  struct Release {
    unsigned version;
    size_t size;
  };
  for (const Release release : {Release{22902, 72}, Release{22903, 72}, Release{22907, 88},
                                Release{23003, 96}, Release{23004, 96}, Release{23007, 96}}) {
    ncclDevCommRequirements_t form = OfRelease(release.version, release.size);
    form.lsaBarrierCount = 5;
    if (release.version < 23007) form.ginStrongSignalsRequired = form.ginVaSignalsRequired = false;
    const Result<ncclDevCommRequirements_t> read = ReadRequirements(&form);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read.value().lsaBarrierCount, 5);
    EXPECT_EQ(read.value().ginConnectionType, NCCL_GIN_CONNECTION_NONE);
    EXPECT_EQ(read.value().ginTrafficClass, NCCL_CONFIG_UNDEF_INT);
    EXPECT_EQ(read.value().worldGinBarrierCount, 0);
    EXPECT_TRUE(read.value().ginStrongSignalsRequired && read.value().ginVaSignalsRequired);
  }
}

TEST(ReadRequirementsTest, TakesZeroedRequirements) {
  ncclDevCommRequirements_t zeroed;
  std::memset(&zeroed, 0, sizeof(zeroed));
  zeroed.lsaBarrierCount = 3;
  ASSERT_TRUE(ReadRequirements(&zeroed).ok());
  EXPECT_EQ(ReadRequirements(&zeroed).value().lsaBarrierCount, 3);
  EXPECT_EQ(ReadRequirements(&zeroed).value().version, unsigned{NCCL_VERSION_CODE});
  EXPECT_EQ(ReadRequirements(&zeroed).value().ginConnectionType, NCCL_GIN_CONNECTION_NONE);
  zeroed.ginSignalCount = 1;
  EXPECT_EQ(ReadRequirements(&zeroed).value().ginConnectionType, NCCL_GIN_CONNECTION_FULL);
}

// Holds requirements as a program compiled with the header of 2.28.7 to 2.28.9 passes them.
struct Form228 {
  void* lists[2] = {};
  bool lsa_multimem = false;
  int barriers = 0, lsa_barriers = 0, rail_gin_barriers = 0, ll_a2a_blocks = 0, ll_a2a_slots = 0;
  bool gin_force_enable = false;
  int gin_contexts = 0, gin_signals = 0, gin_counters = 0;
  std::array<char, 40> not_theirs = {};
};
static_assert(sizeof(Form228) == sizeof(ncclDevCommRequirements_t));

Result<ncclDevCommRequirements_t> Read228(Form228 form) {
  form.not_theirs.fill(0x55);
  ncclDevCommRequirements_t passed;
  std::memcpy(static_cast<void*>(&passed), &form, sizeof(form));
  return ReadRequirements(&passed);
}

TEST(ReadRequirementsTest, TakesTheBinaryFormOf228) {
  ncclDevResourceRequirements_t element = {};
  const std::vector<std::pair<Form228, int>> forms = {
      {{.lsa_barriers = 16}, 16},
      {{.barriers = 16}, 16},
      {{.barriers = 4, .lsa_barriers = 8, .rail_gin_barriers = 4}, 8},
      {{.lsa_multimem = true, .barriers = 2}, 2},
      {{.rail_gin_barriers = 1}, 0},
      {{.lists = {&element, nullptr}}, 0},
      {{.lists = {&element, nullptr}, .barriers = 3, .ll_a2a_blocks = 5}, 3}};
  for (const auto& [form, barriers] : forms) {
    const Result<ncclDevCommRequirements_t> read = Read228(form);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->version, 22807u);
    EXPECT_EQ(read->lsaBarrierCount, barriers);
    EXPECT_EQ(read->barrierCount, 0);
    EXPECT_EQ(read->railGinBarrierCount, std::max(form.barriers, form.rail_gin_barriers));
    EXPECT_EQ(read->lsaMultimem, form.lsa_multimem);
    EXPECT_EQ(read->resourceRequirementsList, form.lists[0]);
    EXPECT_FALSE(read->ginForceEnable);
  }
  // Kernels of 2.28 know GIN in a different form, and ranks that know only today's form refuse it.
  const Result<ncclDevCommRequirements_t> gin = Read228({.gin_contexts = 9, .gin_signals = 4});
  ASSERT_TRUE(gin.ok());
  EXPECT_EQ(gin->version, 22807u);
  TeamShape shape = {.num_ranks = 2, .lsa_size = 2, .has_gin = true};
  EXPECT_EQ(PlanResources(gin.value(), shape).status().code(), Code::kInvalidArgument);
  shape.has_old_gin = true;
  const Result<ResourcePlan> plan = PlanResources(gin.value(), shape);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->gin.connection, NCCL_GIN_CONNECTION_FULL);
  EXPECT_EQ(plan->gin.form, GinForm::kBefore2294);
  EXPECT_EQ(plan->gin.num_contexts, 4);
  // Barriers alone ask for no network, unless the network joins the ranks.
  const Result<ncclDevCommRequirements_t> barriers = Read228({.barriers = 2});
  ASSERT_TRUE(barriers.ok());
  EXPECT_FALSE(PlanResources(barriers.value(), shape)->gin.present());
  shape.lsa_size = 1;
  EXPECT_TRUE(PlanResources(barriers.value(), shape)->gin.present());
  EXPECT_EQ(PlanResources(barriers.value(), shape)->gin.num_signals, 4u);
}

// Programs written for 2.28 and compiled with today's header.
TEST(ReadRequirementsTest, DoesNotTakeZeroedRequirementsForTheBinaryFormOf228) {
  ncclDevResourceRequirements_t element = {};
  ncclTeamRequirements_t team = {};
  ncclDevCommRequirements_t zeroed;
  for (int i = 0; i < 32; ++i) {
    std::memset(&zeroed, 0, sizeof(zeroed));
    if ((i & 1) != 0) zeroed.resourceRequirementsList = &element;
    if ((i & 2) != 0) zeroed.teamRequirementsList = &team;
    if ((i & 4) != 0) zeroed.lsaBarrierCount = 32;
    if ((i & 8) != 0) zeroed.ginSignalCount = zeroed.railGinBarrierCount = 1;
    if ((i & 16) != 0) zeroed.lsaLLA2ABlockCount = zeroed.lsaLLA2ASlotCount = 8;
    ASSERT_TRUE(ReadRequirements(&zeroed).ok());
    EXPECT_EQ(ReadRequirements(&zeroed)->version, unsigned{NCCL_VERSION_CODE}) << i;
  }
}

TEST(ReadRequirementsTest, BarriersOf229AreOfOneKind) {
  ncclDevCommRequirements_t form = OfRelease(22902, 72);
  form.barrierCount = 7;
  form.lsaBarrierCount = 2;
  form.railGinBarrierCount = 4;
  const Result<ncclDevCommRequirements_t> read = ReadRequirements(&form);
  EXPECT_EQ(read.value().lsaBarrierCount, 7);
  EXPECT_EQ(read.value().railGinBarrierCount, 7);
  EXPECT_EQ(read.value().barrierCount, 0);
  // An LSA team needs no network for barriers, until 2.29.4.
  TeamShape shape = {.num_ranks = 2, .lsa_size = 2};
  EXPECT_FALSE(PlanResources(read.value(), shape)->gin.present());
  form = OfRelease(22907, 88);
  form.railGinBarrierCount = 1;
  EXPECT_EQ(PlanResources(ReadRequirements(&form).value(), shape).status().code(),
            Code::kInvalidArgument);
  form.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  shape.has_gin = shape.has_old_gin = true;
  EXPECT_EQ(PlanResources(ReadRequirements(&form).value(), shape)->gin.form, GinForm::kBefore230);
}

TEST(ReadRequirementsTest, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(ReadRequirements(nullptr).status().code(), Code::kInvalidArgument);
  ncclDevCommRequirements_t form = Today();
  form.magic = 1;
  EXPECT_EQ(ReadRequirements(&form).status().code(), Code::kInvalidUsage);
  form = Today();
  form.version = NCCL_VERSION_CODE + 1;
  EXPECT_EQ(ReadRequirements(&form).status().code(), Code::kInvalidUsage);
  form = Today();
  form.size = 64;
  EXPECT_EQ(ReadRequirements(&form).status().code(), Code::kInvalidUsage);
}

TEST(PlanResourcesTest, PacksBarriersFirstAndThenTheList) {
  ncclDevResourceHandle first = 0, second = 0;
  ncclDevResourceRequirements_t last = {};
  last.bufferSize = 1;
  last.bufferAlign = 4096;
  last.outBufferHandle = &second;
  ncclDevResourceRequirements_t list = {};
  list.next = &last;
  list.bufferSize = 130;
  list.outBufferHandle = &first;
  ncclDevCommRequirements_t asked = Today();
  asked.lsaBarrierCount = 4;
  asked.barrierCount = 1;
  asked.resourceRequirementsList = &list;
  const Result<ResourcePlan> plan = PlanResources(asked, {8, 8});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // 4 * (3 + 8) words are 176 bytes, or two units of 128; one barrier takes one unit.
  EXPECT_EQ(plan.value().lsa_barrier.bufHandle, 0u);
  EXPECT_EQ(plan.value().lsa_barrier.nBarriers, 4);
  EXPECT_EQ(plan.value().hybrid_lsa_barrier.bufHandle, 2u);
  StoreHandles(plan.value());
  EXPECT_EQ(first, 3u);
  EXPECT_EQ(second, 32u);
  EXPECT_EQ(plan.value().bytes, 4096u + 128);
}

TEST(PlanResourcesTest, EqualRequirementsHaveEqualDigests) {
  ncclDevCommRequirements_t asked = Today();
  asked.lsaBarrierCount = 4;
  const uint64_t digest = PlanResources(asked, {2, 2}).value().digest;
  EXPECT_EQ(PlanResources(asked, {2, 2}).value().digest, digest);
  asked.lsaBarrierCount = 5;
  EXPECT_NE(PlanResources(asked, {2, 2}).value().digest, digest);
}

TEST(PlanResourcesTest, RefusesWhatRanksCannotDo) {
  const auto refuses = [](const auto& change, TeamShape shape = {2, 2}) {
    ncclDevCommRequirements_t asked = Today();
    change(asked);
    return PlanResources(asked, shape).status().code() == Code::kInvalidArgument;
  };
  EXPECT_FALSE(refuses([](auto&) {}));
  EXPECT_TRUE(refuses([](auto& a) { a.lsaBarrierCount = -1; }));
  EXPECT_TRUE(refuses([](auto& a) { a.lsaMultimem = true; }));
  EXPECT_TRUE(refuses([](auto& a) { a.ginForceEnable = true; }));
  EXPECT_TRUE(refuses([](auto& a) { a.ginConnectionType = NCCL_GIN_CONNECTION_RAIL; }));
  EXPECT_TRUE(refuses([](auto& a) { a.ginSignalCount = 1; }));
  EXPECT_TRUE(refuses([](auto& a) { a.railGinBarrierCount = 1; }));
  EXPECT_TRUE(refuses([](auto& a) { a.barrierCount = 1; }, {4, 2}));
  ncclDevResourceRequirements_t element = {};
  element.next = &element;
  EXPECT_TRUE(refuses([&](auto& a) { a.resourceRequirementsList = &element; }));
  element = {};
  element.bufferAlign = 24;
  EXPECT_TRUE(refuses([&](auto& a) { a.resourceRequirementsList = &element; }));
  element = {};
  element.bufferSize = SIZE_MAX - 100;
  EXPECT_TRUE(refuses([&](auto& a) { a.resourceRequirementsList = &element; }));
}

TEST(FillRequirementTest, HasTheSizesThatKernelsExpect) {
  ncclLsaBarrierHandle barriers = {};
  ncclDevResourceRequirements_t element = {};
  ASSERT_TRUE(FillLsaBarrierRequirement({6, 0, 1}, 5, &barriers, &element).ok());
  EXPECT_EQ(element.bufferSize, (3u + 6) * 5 * 4);
  EXPECT_EQ(element.outBufferHandle, &barriers.bufHandle);
  EXPECT_EQ(barriers.nBarriers, 5);
  ncclLLA2AHandle exchange = {};
  ASSERT_TRUE(FillLLA2ARequirement(3, 10, &exchange, &element).ok());
  EXPECT_EQ(element.bufferSize, 3u * (1 + 2 * 10) * 16);
  EXPECT_EQ(exchange.nSlots, 10u);
  EXPECT_FALSE(FillLLA2ARequirement(-1, 10, &exchange, &element).ok());
  EXPECT_FALSE(FillLsaBarrierRequirement({6, 0, 1}, 5, nullptr, &element).ok());
}

TEST(DevCommTest, IsStoredInTheFormOfTheRelease) {
  ncclDevCommRequirements_t asked = Today();
  asked.lsaBarrierCount = 2;
  const Result<ResourcePlan> plan = PlanResources(asked, {6, 3});
  ncclWindow_vidmem record = {};
  uint32_t abort_flag = 0;
  record.lsaFlatBase = reinterpret_cast<char*>(&abort_flag);
  record.stride4G = 2;
  const ncclDevComm made = MakeDevComm({.rank = 4,
                                        .num_ranks = 6,
                                        .lsa_size = 3,
                                        .plan = &plan.value(),
                                        .resource_window = &record,
                                        .resource_record = record,
                                        .abort_flag = &abort_flag});
  EXPECT_EQ(made.lsaRank, 1);
  char stored[256];
  for (const unsigned version : {22807u, 22902u, 22907u, 23004u, 23007u}) {
    asked.version = version;
    std::memset(stored, 0x77, sizeof(stored));
    StoreDevComm(made, asked, stored);
    const size_t length = version <= 22902 ? 200 : version == 22907 ? 224 : 240;
    EXPECT_NE(stored[length - 1], 0x77);
    EXPECT_EQ(stored[length], 0x77) << "wrote behind the form of " << version;
    EXPECT_EQ(ResourceWindowOf(stored), &record);
    const size_t shift = version < 23000 ? 8 : 0;
    int numbers[2];
    std::memcpy(numbers, stored + 8 - shift, sizeof(numbers));
    EXPECT_EQ(numbers[0], 4);
    EXPECT_EQ(numbers[1], 6);
    ncclLsaBarrierHandle barrier;
    std::memcpy(&barrier, stored + 128 - shift, sizeof(barrier));
    EXPECT_EQ(barrier.nBarriers, 2);
  }
}

}  // namespace
}  // namespace tutti
