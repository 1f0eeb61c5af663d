#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "gin/device_memory.h"
#include "gin/mail.h"
#include "gin/old_forms.h"

namespace tutti {
namespace {

TEST(GinMailLayoutTest, BoundsWhatARankPins) {
  for (const size_t peers : {1, 2, 8, 9, 64, 500, 5'000}) {
    const GinMailLayout layout = GinMailLayout::For(peers);
    EXPECT_LE(layout.slot_bytes, size_t{256} << 10);
    EXPECT_GE(layout.slot_bytes, size_t{16} << 10);
    EXPECT_TRUE(peers * 2 * GinMailLayout::kSlots * layout.slot_bytes <= size_t{64} << 20 ||
                layout.slot_bytes == size_t{16} << 10)
        << peers << " peers, slots of " << layout.slot_bytes;
  }
  EXPECT_EQ(GinMailLayout::For(1).slot_bytes, size_t{256} << 10);
  EXPECT_EQ(GinMailLayout::For(5'000).slot_bytes, size_t{16} << 10);
}

TEST(GinMailLayoutTest, SlotsLieBehindTheWordsAndApart) {
  const GinMailLayout layout = GinMailLayout::For(3);
  std::set<size_t> begins;
  for (uint64_t i = 0; i < 2 * GinMailLayout::kSlots; ++i) {
    begins.insert(layout.InAt(i));
    begins.insert(layout.OutAt(i));
  }
  EXPECT_EQ(begins.size(), 2 * GinMailLayout::kSlots);  // The numbers wrap around.
  EXPECT_GE(*begins.begin(), GinMailLayout::kClosedAt + sizeof(uint64_t));
  size_t before = 0;
  for (const size_t begin : begins) {
    EXPECT_GE(begin, before);
    before = begin + layout.SlotBytes();
  }
  EXPECT_LE(before, layout.bytes());
}

GinPlan PlanOf(ncclGinConnectionType_t connection, uint32_t queues) {
  GinPlan plan;
  plan.connection = connection;
  plan.num_contexts = 2;
  plan.num_queues = queues;
  plan.queue_depth = 8;
  plan.num_signals = 3;
  return plan;
}

// Every rank outside the team has a mailbox, and no two ranks have the same one.
TEST(GinHostLayoutTest, NumbersTheMailboxesOfRanksOutsideTheTeam) {
  constexpr int kRanks = 12, kTeam = 3;
  for (int first = 0; first < kRanks; first += kTeam) {
    const GinPlan full = PlanOf(NCCL_GIN_CONNECTION_FULL, kRanks);
    const GinPlan rail = PlanOf(NCCL_GIN_CONNECTION_RAIL, kRanks / kTeam);
    std::set<size_t> of_full, of_rail;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank >= first && rank < first + kTeam) continue;
      of_full.insert(GinHostLayout::MailNumber(full, rank, first, kTeam));
      if (rank % kTeam == 1) of_rail.insert(GinHostLayout::MailNumber(rail, rank, first, kTeam));
    }
    const LsaTeam team = {.size = kTeam, .place = 1, .first = first};
    EXPECT_EQ(of_full.size(), GinHostLayout(full, team).num_peers);
    EXPECT_LT(*of_full.rbegin(), of_full.size());
    EXPECT_EQ(of_rail.size(), GinHostLayout(rail, team).num_peers);
    EXPECT_LT(*of_rail.rbegin(), of_rail.size());
  }
}

TEST(GinHostLayoutTest, PartsDoNotOverlap) {
  const GinPlan plan = PlanOf(NCCL_GIN_CONNECTION_FULL, 4);
  const GinHostLayout layout(plan, {.size = 2, .place = 0, .first = 0});
  const std::vector<std::pair<size_t, size_t>> parts = {
      {layout.signals_at, 2 * 3 * sizeof(uint64_t)},
      {layout.counters_at, 0},
      {layout.consumers_at, 2 * 4 * sizeof(uint32_t)},
      {layout.values_at, 2 * 4 * 8 * sizeof(uint64_t)},
      {layout.descriptors_at, 2 * 4 * 8 * sizeof(device::GinDescriptor)},
      {layout.stage_at, GinHostLayout::kStageBytes},
      {layout.mail_at, 2 * layout.mail.bytes()}};
  for (size_t i = 0; i + 1 < parts.size(); ++i)
    EXPECT_LE(parts[i].first + parts[i].second, parts[i + 1].first) << "part " << i;
  EXPECT_LE(parts.back().first + parts.back().second, layout.bytes);
}

// Words of a descriptor of 2.28, whose counter, signal and value lie elsewhere than today.
TEST(GinOldFormsTest, UnpacksThePartsOfWord5) {
  std::vector<uint64_t> words(8, 1);
  words[0] = uint64_t{device::kGinPut | device::kGinSignalAdd} << 1 | uint64_t{100} << 7 | 1;
  words[5] = uint64_t{0x1234} << 8 | uint64_t{0x56} << 24 | uint64_t{0x789} << 40 | 1;
  const device::GinOperation o = UnpackGinBefore230(GinForm::kBefore2294, words.data());
  EXPECT_EQ(o.op, device::kGinPut | device::kGinSignalAdd);
  EXPECT_EQ(o.counter, 0x1234u);
  EXPECT_EQ(o.signal, 0x56u);
  EXPECT_EQ(o.added & 0xffff, 0x789u);
  EXPECT_TRUE(o.strong);
}

TEST(GinOldFormsTest, AnIncrementAddsOne) {
  std::vector<uint64_t> words(8, 1);
  words[0] = uint64_t{device::kGinPut | device::kGinSignalInc} << 1 | 1;
  for (const GinForm form : {GinForm::kBefore2294, GinForm::kBefore230})
    EXPECT_EQ(UnpackGinBefore230(form, words.data()).added, 1u);
}

}  // namespace
}  // namespace tutti
