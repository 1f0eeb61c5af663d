#include "gin/executor.h"

#include <atomic>
#include <cstring>

#include "base/copy.h"

namespace tutti {

using device::GinOperation;

RmaConnection* GinExecutor::ConnectionOf(uint32_t queue) const {
  return remote_ != nullptr ? remote_->FindConnection(PeerOf(queue)) : nullptr;
}

bool GinExecutor::NeedsNetwork(uint32_t queue, const GinOperation& operation) const {
  if (!team().Has(PeerOf(queue))) return true;
  return remote_ != nullptr && !remote_->ProcessorsAdd() && Has(operation, device::kGinVaSignal);
}

bool GinExecutor::ConfirmsInTeam(uint32_t queue) const {
  return team().Has(PeerOf(queue)) && remote_ != nullptr &&
         remote_->CheckSignals(/*strong=*/true, /*in_windows=*/false).ok();
}

// Also refuses signals in windows that would be lost: over a network without such signals, and,
// where processors must not add to words of windows, in windows for which the team is not joined.
Result<GinExecutor::Reached> GinExecutor::FindAll(const Position& at,
                                                  const GinOperation& operation) const {
  TUTTI_ASSIGN(const Reached reached, Find(at, operation));
  if (!Has(operation, device::kGinVaSignal) || !NeedsNetwork(at.queue, operation)) return reached;
  TUTTI_TRY(remote_->CheckSignals(/*strong=*/false, /*in_windows=*/true));
  if (!remote_->ProcessorsAdd() && (reached.word.window->flags & NCCL_WIN_STRICT_ORDERING) == 0)
    return InvalidArgument(
        "a VA signal in the window {:#x}, which was registered without NCCL_WIN_STRICT_ORDERING: "
        "the network cannot add to the words of such a window together with processors",
        operation.from_window);
  return reached;
}

Status GinExecutor::Check(const Position& at, const GinOperation& operation) const {
  return FindAll(at, operation).status();
}

Result<GinExecutor::Begun> GinExecutor::Begin(const Position& at, const GinOperation& operation) {
  TUTTI_ASSIGN(const Reached reached, FindAll(at, operation));
  // A flush is done at its turn, because all earlier operations are then done and visible here.
  if (Has(operation, device::kGinFlush)) return Begun{};
  const int peer = PeerOf(at.queue);
  if (Has(operation, device::kGinGet)) return Get(peer, operation, reached);
  if (NeedsNetwork(at.queue, operation)) return PutOverNetwork(at, operation, reached);
  return Put(peer, operation, reached);
}

// Puts to a rank of the LSA team by a copy on the calling thread. The operation is done at the
// return.
GinExecutor::Begun GinExecutor::Put(int peer, const GinOperation& operation,
                                    const Reached& reached) {
  if (reached.to.window != nullptr) {
    const void* const source = reached.from.window != nullptr
                                   ? Local(reached.from, rank())
                                   : static_cast<const void*>(&operation.value);
    CopyBytes(Local(reached.to, peer), source, operation.bytes);
  }
  // A thread that loads the new value with acquire order sees the bytes of this put and of earlier
  // puts.
  if (reached.word.window != nullptr)
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(Local(reached.word, peer)))
        .fetch_add(operation.added, std::memory_order_release);
  return Begun{};
}

// The network sends memory and no values. The value of a put goes into its descriptor's word of the
// resource window, and stays there until the descriptor's slot is used again.
GinExecutor::Range GinExecutor::StageValue(const Position& at,
                                           const GinOperation& operation) const {
  const Range staged = ValueOf(at);
  std::memcpy(Local(staged, rank()), &operation.value, sizeof(operation.value));
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
    // A VA signal belongs to a put that was posted as a separate operation, and must not overtake
    // the put.
    const bool strong = operation.strong || Has(operation, device::kGinVaSignal);
    added = {{reached.word.window->handle, reached.word.offset}, operation.added, strong};
  }
  const auto place = [](const Range& range) {
    return range.window != nullptr ? Place{range.window->handle, range.offset} : Place{};
  };
  TUTTI_ASSIGN(NetRequest* const request,
               remote_->BeginPut(PeerOf(at.queue), place(from), place(reached.to),
                                 has_data ? operation.bytes : 0, signals ? &added : nullptr));
  return Begun{request != nullptr ? Step::kUnderWay : Step::kNoRoom, request};
}

Result<GinExecutor::Begun> GinExecutor::Get(int peer, const GinOperation& operation,
                                            const Reached& reached) {
  const auto& [to, from, word] = reached;
  if (team().Has(peer)) {
    CopyBytes(Local(to, rank()), Local(from, peer), operation.bytes);
    return Begun{};
  }
  TUTTI_ASSIGN(NetRequest* const request,
               remote_->BeginGet(peer, {to.window->handle, to.offset},
                                 {from.window->handle, from.offset}, operation.bytes));
  return Begun{request != nullptr ? Step::kUnderWay : Step::kNoRoom, request};
}

}  // namespace tutti
