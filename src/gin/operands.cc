#include "gin/operands.h"

#include "gin/host_calls.h"
#include "transport/net/net.h"

namespace tutti {

using device::GinOperation;

int GinOperands::PeerOf(uint32_t queue) const {
  if (parts_.plan.connection == NCCL_GIN_CONNECTION_FULL) return static_cast<int>(queue);
  return static_cast<int>(queue) * team_.size + team_.place;
}

// Kernels read the words at the network's address and not in the flat space, because the thread
// sanitizer takes two addresses of one word for two words.
uint64_t* GinOperands::WordAt(uint64_t at, uint64_t number) const {
  return reinterpret_cast<uint64_t*>(parts_.resource->own.data() + at) + number;
}

uint64_t* GinOperands::CounterOf(uint32_t context, uint32_t counter) const {
  return WordAt(parts_.plan.counters_at, uint64_t{context} * parts_.plan.num_counters + counter);
}

uint64_t* GinOperands::SignalsOf(uint32_t context) const {
  return WordAt(parts_.plan.signals_at, uint64_t{context} * parts_.plan.num_signals);
}

// Finds the window of an operation, and checks that the range lies in `owner`'s part. Offsets of
// operations count from the start of the memory of which the window is a piece.
Result<GinOperands::Range> GinOperands::RangeOf(uint64_t window, uint64_t offset, uint64_t bytes,
                                                int owner, const char* what) const {
  auto found = parts_.symmetric->Lookup(reinterpret_cast<ncclWindow_t>(window));
  if (!found.ok()) return std::move(found).status().Annotate(what);
  const uint64_t start = (*found)->offset;
  if (offset < start || !(*found)->Holds(owner, offset - start, bytes))
    return InvalidArgument(
        "{}: {} bytes at {} do not lie in the window {:#x}, which has {} on rank {}", what, bytes,
        static_cast<int64_t>(offset - start), window, (*found)->bytes[static_cast<size_t>(owner)],
        owner);
  return Range{*found, offset - start};
}

Result<GinOperands::Range> GinOperands::SignalWord(const Position& at,
                                                   const GinOperation& operation) const {
  if (Has(operation, device::kGinVaSignal)) {
    TUTTI_ASSIGN(Range word, RangeOf(operation.from_window, operation.from_offset, sizeof(uint64_t),
                                     PeerOf(at.queue), "a VA signal"));
    if (word.offset % sizeof(uint64_t) != 0)
      return InvalidArgument("a VA signal at {}, which is no multiple of 8", word.offset);
    return word;
  }
  if (operation.signal >= parts_.plan.num_signals)
    return NoSuchGinWord(parts_.plan, /*is_signal=*/true, operation.signal);
  const uint64_t word = uint64_t{at.context} * parts_.plan.num_signals + operation.signal;
  const uint64_t begin =
      team_.Has(PeerOf(at.queue)) ? parts_.plan.signals_at : parts_.plan.network_signals_at;
  return Range{parts_.resource.get(), begin + word * sizeof(uint64_t)};
}

// Checks the numbers that name no window. A kernel of any program may have written the descriptor,
// and its bits may have any value.
Status GinOperands::CheckNumbers(const GinOperation& operation) const {
  if (operation.bytes > kMaxNetMessageBytes)
    return InvalidArgument("an operation of {} bytes, which is longer than {}", operation.bytes,
                           kMaxNetMessageBytes);
  if (Has(operation, device::kGinWithCounter) && operation.counter >= parts_.plan.num_counters)
    return NoSuchGinWord(parts_.plan, /*is_signal=*/false, operation.counter);
  if (Has(operation, device::kGinWithValue) && operation.bytes > sizeof(uint64_t))
    return InvalidArgument("a value of {} bytes", operation.bytes);
  if (!Has(operation, device::kGinPut | device::kGinGet | device::kGinVaSignal | device::kGinFlush))
    return InvalidArgument("an operation of unknown kind {:#x}", operation.op);
  return Status::Ok();
}

// Finds and checks all memory that an operation reaches.
Result<GinOperands::Reached> GinOperands::Find(const Position& at,
                                               const GinOperation& operation) const {
  TUTTI_TRY(CheckNumbers(operation));
  Reached reached;
  if (Has(operation, device::kGinFlush)) return reached;
  const int peer = PeerOf(at.queue);
  const uint64_t bytes = operation.bytes;
  if (Has(operation, device::kGinGet)) {
    TUTTI_ASSIGN(reached.from, RangeOf(operation.from_window, operation.from_offset, bytes, peer,
                                       "the source of a get"));
    TUTTI_ASSIGN(reached.to, RangeOf(operation.to_window, operation.to_offset, bytes, parts_.rank,
                                     "the target of a get"));
    return reached;
  }
  if (bytes > 0 && !Has(operation, device::kGinVaSignal)) {
    TUTTI_ASSIGN(reached.to, RangeOf(operation.to_window, operation.to_offset, bytes, peer,
                                     "the target of a put"));
    if (!Has(operation, device::kGinWithValue)) {
      TUTTI_ASSIGN(reached.from, RangeOf(operation.from_window, operation.from_offset, bytes,
                                         parts_.rank, "the source of a put"));
    }
  }
  if (Has(operation, kGinSignalOps)) {
    TUTTI_ASSIGN(reached.word, SignalWord(at, operation));
  }
  return reached;
}

GinOperands::Range GinOperands::ValueOf(const Position& at) const {
  const uint64_t queue = uint64_t{at.context} * parts_.plan.num_queues + at.queue;
  const uint64_t word = queue * parts_.plan.queue_depth + at.slot;
  return {parts_.resource.get(), parts_.plan.values_at + word * sizeof(uint64_t)};
}

}  // namespace tutti
