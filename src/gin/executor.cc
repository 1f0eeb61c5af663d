#include "gin/executor.h"

#include <atomic>
#include <cstring>

#include "base/copy.h"

namespace tutti {
namespace {

using device::GinOperation;

constexpr uint32_t kSignalOps = device::kGinSignalInc | device::kGinSignalAdd;

bool Has(const GinOperation& operation, uint32_t op) { return (operation.op & op) != 0; }

}  // namespace

GinExecutor::GinExecutor(Parts parts) : parts_(std::move(parts)), team_(parts_.resource->team) {}

int GinExecutor::PeerOf(uint32_t queue) const {
  if (parts_.plan.connection == NCCL_GIN_CONNECTION_FULL) return static_cast<int>(queue);
  return static_cast<int>(queue) * team_.size + team_.place;
}

RmaConnection* GinExecutor::ConnectionOf(uint32_t queue) const {
  const int peer = PeerOf(queue);
  return team_.Has(peer) ? nullptr : &parts_.remote->connection(peer);
}

// Kernels read the words at the address by which the network adds to them, not at that in the flat
// space: the thread sanitizer takes two addresses of one word for two words.
uint64_t* GinExecutor::WordAt(uint64_t at, uint64_t number) const {
  return reinterpret_cast<uint64_t*>(parts_.resource->own.data() + at) + number;
}

uint64_t* GinExecutor::CounterOf(uint32_t context, uint32_t counter) const {
  return WordAt(parts_.plan.counters_at, uint64_t{context} * parts_.plan.num_counters + counter);
}

uint64_t* GinExecutor::SignalsOf(uint32_t context) const {
  return WordAt(parts_.plan.signals_at, uint64_t{context} * parts_.plan.num_signals);
}

// Finds the window that an operation names, and checks that the range lies in `owner`'s part.
// Offsets of operations count from the start of the memory that the window is a piece of.
Result<GinExecutor::Range> GinExecutor::RangeOf(uint64_t window, uint64_t offset, uint64_t bytes,
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

Result<GinExecutor::Range> GinExecutor::SignalWord(const Position& at,
                                                   const GinOperation& operation) const {
  if (Has(operation, device::kGinVaSignal)) {
    TUTTI_ASSIGN(Range word, RangeOf(operation.from_window, operation.from_offset, sizeof(uint64_t),
                                     PeerOf(at.queue), "a VA signal"));
    if (word.offset % sizeof(uint64_t) != 0)
      return InvalidArgument("a VA signal at {}, which is no multiple of 8", word.offset);
    return word;
  }
  if (operation.signal >= parts_.plan.num_signals)
    return InvalidArgument("there is no signal {}: the device communicator has {}",
                           operation.signal, parts_.plan.num_signals);
  const uint64_t word = uint64_t{at.context} * parts_.plan.num_signals + operation.signal;
  return Range{parts_.resource.get(), parts_.plan.signals_at + word * sizeof(uint64_t)};
}

Status GinExecutor::CheckNumbers(const GinOperation& operation) const {
  if (operation.bytes > kMaxNetMessageBytes)
    return InvalidArgument("an operation of {} bytes, which is longer than {}", operation.bytes,
                           kMaxNetMessageBytes);
  if (Has(operation, device::kGinWithCounter) && operation.counter >= parts_.plan.num_counters)
    return InvalidArgument("there is no counter {}: the device communicator has {}",
                           operation.counter, parts_.plan.num_counters);
  if (Has(operation, device::kGinWithValue) && operation.bytes > sizeof(uint64_t))
    return InvalidArgument("a value of {} bytes", operation.bytes);
  if (!Has(operation, device::kGinPut | device::kGinGet | device::kGinVaSignal | device::kGinFlush))
    return InvalidArgument("an operation of unknown kind {:#x}", operation.op);
  return Status::Ok();
}

// Finds all that an operation reaches, and checks it.
Result<GinExecutor::Reached> GinExecutor::Find(const Position& at,
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
  if (Has(operation, kSignalOps)) {
    TUTTI_ASSIGN(reached.word, SignalWord(at, operation));
  }
  return reached;
}

Status GinExecutor::Check(const Position& at, const GinOperation& operation) const {
  return Find(at, operation).status();
}

Result<GinExecutor::Begun> GinExecutor::Begin(const Position& at, const GinOperation& operation) {
  TUTTI_ASSIGN(const Reached reached, Find(at, operation));
  // What was done before a flush is visible here when it is done.
  if (Has(operation, device::kGinFlush)) return Begun{};
  const int peer = PeerOf(at.queue);
  if (Has(operation, device::kGinGet)) return Get(peer, operation, reached);
  if (!team_.Has(peer)) return PutOverNetwork(at, operation, reached);
  return Put(peer, operation, reached);
}

// Returns where this rank reaches a range on `rank`, which is in its team.
std::byte* GinExecutor::Local(const Range& range, int rank) const {
  return range.window->At(rank - team_.first, range.offset);
}

GinExecutor::Begun GinExecutor::Put(int peer, const GinOperation& operation,
                                    const Reached& reached) {
  if (reached.to.window != nullptr) {
    const void* const source = reached.from.window != nullptr
                                   ? Local(reached.from, parts_.rank)
                                   : static_cast<const void*>(&operation.value);
    CopyBytes(Local(reached.to, peer), source, operation.bytes);
  }
  // Whoever loads the new value with acquire order sees the bytes of this put and earlier ones.
  if (reached.word.window != nullptr)
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(Local(reached.word, peer)))
        .fetch_add(operation.added, std::memory_order_release);
  return Begun{};
}

GinExecutor::Range GinExecutor::StageValue(const Position& at,
                                           const GinOperation& operation) const {
  const uint64_t queue = uint64_t{at.context} * parts_.plan.num_queues + at.queue;
  const uint64_t word = queue * parts_.plan.queue_depth + at.slot;
  const Range staged = {parts_.resource.get(), parts_.plan.values_at + word * sizeof(uint64_t)};
  std::memcpy(Local(staged, parts_.rank), &operation.value, sizeof(operation.value));
  return staged;
}

Result<GinExecutor::Begun> GinExecutor::PutOverNetwork(const Position& at,
                                                       const GinOperation& operation,
                                                       const Reached& reached) {
  const bool has_data = reached.to.window != nullptr, signals = reached.word.window != nullptr;
  if (!has_data && !signals) return Begun{};
  const bool by_value = has_data && reached.from.window == nullptr;
  const Range from = by_value ? StageValue(at, operation) : reached.from;
  RemoteWindows::Added added;
  if (signals) {
    // A VA signal belongs to a put that was an operation of its own, and must not overtake it.
    const bool strong = operation.strong || Has(operation, device::kGinVaSignal);
    added = {{reached.word.window->handle, reached.word.offset}, operation.added, strong};
  }
  const auto place = [](const Range& range) {
    return range.window != nullptr ? Place{range.window->handle, range.offset} : Place{};
  };
  TUTTI_ASSIGN(NetRequest* const request,
               parts_.remote->BeginPut(PeerOf(at.queue), place(from), place(reached.to),
                                       has_data ? operation.bytes : 0, signals ? &added : nullptr));
  return Begun{request != nullptr ? Step::kUnderWay : Step::kNoRoom, request};
}

Result<GinExecutor::Begun> GinExecutor::Get(int peer, const GinOperation& operation,
                                            const Reached& reached) {
  const auto& [to, from, word] = reached;
  if (team_.Has(peer)) {
    CopyBytes(Local(to, parts_.rank), Local(from, peer), operation.bytes);
    return Begun{};
  }
  TUTTI_ASSIGN(NetRequest* const request,
               parts_.remote->BeginGet(peer, {to.window->handle, to.offset},
                                       {from.window->handle, from.offset}, operation.bytes));
  return Begun{request != nullptr ? Step::kUnderWay : Step::kNoRoom, request};
}

}  // namespace tutti
