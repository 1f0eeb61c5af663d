#include "backend/host/stage_primitives.h"

#include <algorithm>
#include <limits>

#include "base/sanitizer.h"

namespace tutti {

// Reads how far each rank has read, and waits for the ranks that still use the slot. The lowest
// count is kept: until the rounds get beyond this count, AwaitFree reads no memory that other ranks
// write.
bool StageGroup::AwaitFreeSlowly(WaitContext& wait, uint64_t round) {
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (int i = 0; i < size(); ++i) {
    if (i == me_) continue;
    StageControl& control = stage(i).control();
    uint64_t done = 0;
    const bool free = wait.Wait(
        RankOf(i),
        [&] {
          done = control.done.load(std::memory_order_acquire);
          return round < done + kStageSlots;
        },
        [&](int64_t timeout_ns) {
          SleepUntilChanged(control.done, done, control.done_sleepers, timeout_ns);
        });
    if (!free) return false;
    lowest = std::min(lowest, done);
  }
  all_done_ = lowest;
  return true;
}

// `done` counts rounds up to the first unread round. A round that ends before an older round is
// remembered as a bit; far fewer than 64 pieces are under way at a time.
void StageGroup::EndRound(uint64_t round) {
  ended_early_ |= uint64_t{1} << (round - done_);
  while ((ended_early_ & 1) != 0) {
    ended_early_ >>= 1;
    ++done_;
  }
  StageControl& control = mine().control();
  control.done.store(done_, std::memory_order_release);
  WakeSleepers(control.done, control.done_sleepers);
}

// Scales the input on its way into the slot, hence no reader of the slot scales it again.
void HostStagePrimitives::StageFrom(uint64_t round, size_t at, const std::byte* in, size_t n) {
  if (n == 0 || !group_.AwaitFree(wait_, round)) return;
  std::byte* target = Slot(round, group_.my_index()) + at * work_.elem_bytes;
  if (work_.reduce.scale) {
    const void* source = in;
    work_.reduce.Apply(target, &source, 1, n, true, false);
  } else {
    CopyBytes(target, in, n * work_.elem_bytes);
  }
}

void HostStagePrimitives::StageOutputFrom(uint64_t round, size_t at, const std::byte* out,
                                          size_t n) {
  if (n == 0 || wait_.failed() || !group_.AwaitFree(wait_, round)) return;
  CopyBytes(Slot(round, group_.my_index()) + at * work_.elem_bytes, out, n * work_.elem_bytes);
}

// The store of the sequence number is a release. A release makes the data and the header visible to
// ranks that have seen the number.
void HostStagePrimitives::Publish(uint64_t round, size_t n) {
  if (wait_.failed() || !group_.AwaitFree(wait_, round)) return;
  const StageView& stage = group_.mine();
  SlotHeader& header = stage.header(round);
  header.bytes = static_cast<uint32_t>(n * work_.elem_bytes);
  header.op_tag = work_.op_tag;
  AnnotateRaise();
  header.seq.store(round + 1, std::memory_order_release);
  WakeSleepers(header.seq, stage.control().seq_sleepers);
}

// A slot with another tag belongs to another operation: the ranks have made different calls, and
// the watch reports the difference.
void HostStagePrimitives::Wait(uint64_t round, int peer) {
  const StageView& stage = group_.stage(peer);
  const SlotHeader& header = stage.header(round);
  uint64_t seen = 0;
  const bool published = wait_.Wait(
      group_.RankOf(peer),
      [&] { return (seen = header.seq.load(std::memory_order_acquire)) == round + 1; },
      [&](int64_t timeout_ns) {
        SleepUntilChanged(header.seq, seen, stage.control().seq_sleepers, timeout_ns);
      });
  AnnotateSeen();
  if (published && header.op_tag != work_.op_tag) [[unlikely]]
    wait_.FailForeignChunk(group_.RankOf(peer), work_.op_tag, header.op_tag);
}

// Reduces the staged data of all ranks in the order of the ranks, hence every rank gets the same
// bits. Inputs were scaled when they were staged, and only averages are divided here.
void HostStagePrimitives::ReduceSlotsTo(uint64_t round, size_t at, std::byte* out, size_t n) {
  if (n == 0 || wait_.failed()) return;
  const std::span<const void*> sources = group_.sources();
  for (int r = 0; r < num_ranks(); ++r)
    sources[static_cast<size_t>(r)] = Slot(round, r) + at * work_.elem_bytes;
  work_.reduce.Apply(out, sources.data(), num_ranks(), n, false, true);
}

// Takes this rank's own data from its buffer, hence they need not be staged.
void HostStagePrimitives::ReducePartTo(uint64_t round, size_t at, const std::byte* in,
                                       std::byte* out, size_t n) {
  if (n == 0 || wait_.failed()) return;
  const std::span<const void*> sources = group_.sources();
  for (int r = 0; r < num_ranks(); ++r)
    sources[static_cast<size_t>(r)] = r == rank() ? in : Slot(round, r) + at * work_.elem_bytes;
  work_.reduce.Combine(out, sources.data(), num_ranks(), rank(), n);
}

}  // namespace tutti
