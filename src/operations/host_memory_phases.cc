// Gives back the memory of HostOperations and takes memory again (ncclCommSuspend).

#include <algorithm>

#include "operations/host_operations.h"

namespace tutti {
namespace {

// Returns whether a FIFO has chunks that its consumer has not released.
bool HasChunks(const FifoView& fifo) {
  const uint64_t head = fifo.control().head.load(std::memory_order_acquire);
  for (uint64_t slot = 0; slot < kFifoSlots; ++slot)
    if (fifo.header(slot).seq.load(std::memory_order_acquire) > head) return true;
  return false;
}

// Returns whether `stage` has rounds that the rank with the stage `reader` has not read.
bool HasRoundsFor(const StageView& reader, const StageView& stage) {
  const uint64_t done = reader.control().done.load(std::memory_order_acquire);
  for (uint64_t slot = 0; slot < kStageSlots; ++slot)
    if (stage.header(slot).seq.load(std::memory_order_acquire) > done) return true;
  return false;
}

}  // namespace

int HostOperations::PlaceInArena() const {
  return static_cast<int>(std::find(machines_.here.begin(), machines_.here.end(), rank_) -
                          machines_.here.begin());
}

uint64_t HostOperations::SuspendableBytes() const {
  return arena_.memory ? arena_.arena.layout().DataBytes() : 0;
}

Status HostOperations::CheckIdle() const {
  if (order_.AllHaveRun()) return Status::Ok();
  return InvalidUsage(
      "operations of the communicator are still under way or queued on this rank: wait for them "
      "before ncclCommSuspend");
}

Status HostOperations::CheckNothingWaits() {
  if (!arena_.memory) return Status::Ok();
  const Arena& arena = arena_.arena;
  const int me = PlaceInArena(), n = static_cast<int>(arena.layout().num_ranks);
  for (int from = 0; from < n; ++from) {
    if (from == me) continue;
    const int rank = machines_.here[static_cast<size_t>(from)];
    if (HasChunks(arena.fifo(from, me)))
      return InvalidUsage(
          "rank {} has sent data that this rank has not received: call what "
          "receives it before ncclCommSuspend",
          rank);
    if (stages_ && HasRoundsFor(arena.stage(me), arena.stage(from)))
      return InvalidUsage(
          "rank {} has called a collective that this rank has not called: "
          "call it before ncclCommSuspend",
          rank);
  }
  return Status::Ok();
}

// The control pages remain: their counters tell the ranks how much data has passed.
Status HostOperations::GiveBackMemory() {
  if (!arena_.memory) return Status::Ok();
  const ArenaLayout& layout = arena_.arena.layout();
  const int me = PlaceInArena(), n = static_cast<int>(layout.num_ranks);
  TUTTI_TRY(arena_.memory.DiscardPages(layout.StageOffset(me) + kStageDataOffset,
                                       layout.StageDataBytes()));
  for (int from = 0; from < n; ++from)
    TUTTI_TRY(arena_.memory.DiscardPages(layout.FifoOffset(from, me) + kFifoDataOffset,
                                         layout.FifoDataBytes()));
  return Status::Ok();
}

}  // namespace tutti
