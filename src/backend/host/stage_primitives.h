#pragma once

// The DirectPrimitives of kernels/primitives.h on host memory: stages in memory of all ranks of a
// machine.
//
// One StageGroup per communicator and machine keeps the counters, which live as long as the arena.
// A HostStagePrimitives is made anew for each operation and costs a few stores.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/host/fifo_primitives.h"
#include "backend/host/wait_context.h"
#include "base/copy.h"
#include "connection/stage.h"

namespace tutti {

// The stages of the ranks of one machine from the view of one rank. One thread at a time.
class StageGroup {
 public:
  StageGroup(std::vector<StageView> stages, std::vector<int> ranks, int my_index)
      : stages_(std::move(stages)),
        ranks_(std::move(ranks)),
        sources_(stages_.size()),
        me_(my_index) {}

  int my_index() const { return me_; }
  int size() const { return static_cast<int>(stages_.size()); }
  int RankOf(int index) const { return ranks_[static_cast<size_t>(index)]; }
  const StageView& stage(int index) const { return stages_[static_cast<size_t>(index)]; }
  // Returns room for a pointer to the data of each rank, for the current reduction.
  std::span<const void*> sources() { return sources_; }
  const StageView& mine() const { return stages_[static_cast<size_t>(me_)]; }

  uint64_t NextRound() { return next_round_++; }
  // Waits until all ranks have finished the previous round in `round`'s slot.
  bool AwaitFree(WaitContext& wait, uint64_t round) {
    return round < all_done_ + kStageSlots || AwaitFreeSlowly(wait, round);
  }
  // Marks `round` as read by this rank. Rounds may end out of order.
  void EndRound(uint64_t round);

 private:
  bool AwaitFreeSlowly(WaitContext& wait, uint64_t round);

  std::vector<StageView> stages_;
  std::vector<int> ranks_;
  std::vector<const void*> sources_;
  int me_;
  uint64_t next_round_ = 0;
  uint64_t all_done_ = 0;     // a lower bound of every rank's `done`
  uint64_t done_ = 0;         // this rank's own `done`
  uint64_t ended_early_ = 0;  // bit i: round done_ + i has ended although done_ has not
};

class HostStagePrimitives {
 public:
  HostStagePrimitives(StageGroup& group, WaitContext& wait, const HostWork& work)
      : group_(group), wait_(wait), work_(work) {}

  int rank() const { return group_.my_index(); }
  int num_ranks() const { return group_.size(); }
  std::span<const void*> sources() { return group_.sources(); }
  uint64_t NextRound() { return group_.NextRound(); }

  void Stage(uint64_t round, size_t at, size_t in, size_t n) { StageFrom(round, at, Input(in), n); }
  void StageOutput(uint64_t round, size_t at, size_t out, size_t n) {
    StageOutputFrom(round, at, Output(out), n);
  }
  void Publish(uint64_t round, size_t n);
  void Wait(uint64_t round, int peer);
  void ReduceSlots(uint64_t round, size_t at, size_t out, size_t n) {
    ReduceSlotsTo(round, at, Output(out), n);
  }
  void ReducePart(uint64_t round, size_t at, size_t in, size_t out, size_t n) {
    ReducePartTo(round, at, Input(in), Output(out), n);
  }
  void CopyFromSlot(uint64_t round, int peer, size_t at, size_t out, size_t n) {
    CopySlotTo(round, peer, at, Output(out), n);
  }
  void CopyLocal(size_t in, size_t out, size_t n) {
    if (n != 0 && Input(in) != Output(out)) CopyBytes(Output(out), Input(in), n * work_.elem_bytes);
  }
  void EndRound(uint64_t round) {
    if (!wait_.failed()) group_.EndRound(round);
  }

  // Sets whether a whole slot of this operation travels in its header's line. All ranks must agree.
  void set_inlined(bool inlined) { inlined_ = inlined; }

 protected:
  // Move or reduce between a slot and memory at any address.
  void StageFrom(uint64_t round, size_t at, const std::byte* in, size_t n);
  void StageOutputFrom(uint64_t round, size_t at, const std::byte* out, size_t n);
  void ReduceSlotsTo(uint64_t round, size_t at, std::byte* out, size_t n);
  void ReducePartTo(uint64_t round, size_t at, const std::byte* in, std::byte* out, size_t n);
  void CopySlotTo(uint64_t round, int peer, size_t at, std::byte* out, size_t n) {
    if (n == 0 || wait_.failed()) return;
    CopyBytes(out, Slot(round, peer) + at * work_.elem_bytes, n * work_.elem_bytes);
  }
  size_t elem_bytes() const { return work_.elem_bytes; }

 private:
  const std::byte* Input(size_t at) const { return work_.input + at * work_.elem_bytes; }
  std::byte* Output(size_t at) const { return work_.output + at * work_.elem_bytes; }
  std::byte* Slot(uint64_t round, int index) const {
    const StageView& stage = group_.stage(index);
    return inlined_ ? stage.header(round).inline_data : stage.data(round);
  }
  StageGroup& group_;
  WaitContext& wait_;
  const HostWork& work_;
  bool inlined_ = false;
};

}  // namespace tutti
