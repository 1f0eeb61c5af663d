#include "backend/host/fifo_primitives.h"

#include <span>

#include "base/copy.h"

namespace tutti {
namespace {

// The bytes after which a thread without waits polls its connections. A copy of so many bytes takes
// about as long as a poll, which is a system call.
constexpr size_t kPollAfterBytes = 32 * 1024;

// Computes the result of a step into the first target, and copies it to the remaining targets.
// `has_input`: the first source is the user's buffer, before scaling. `is_final`: the result is
// divided if the operation asks for an average.
void Fill(const HostWork& work, std::span<const void*> sources, std::span<std::byte* const> targets,
          size_t n, bool has_input, bool is_final) {
  const ReduceSpec& reduce = work.reduce;
  const bool scales = has_input && reduce.scale;
  const auto num_sources = static_cast<int>(sources.size());
  bool scale_first = has_input;
  // The scaled input is rounded by itself if it must equal the bits that peers would receive.
  if (num_sources > 1 && scales && reduce.round_scaled) {
    reduce.Apply(targets[0], sources.data(), 1, n, true, false);
    sources[0] = targets[0];
    scale_first = false;
  }
  const size_t bytes = n * work.elem_bytes;
  if (num_sources > 1 || scales || (is_final && reduce.divisor != 0))
    reduce.Apply(targets[0], sources.data(), num_sources, n, scale_first, is_final);
  else if (targets[0] != sources[0])
    CopyBytes(targets[0], sources[0], bytes);
  for (std::byte* const other : targets.subspan(1)) CopyBytes(other, targets[0], bytes);
}

}  // namespace

// The wait tests the FIFO by an attempt to take a slot.
std::byte* AcquireSlot(WaitContext& wait, const SendLink& link, size_t bytes) {
  std::byte* room = nullptr;
  wait.Wait(
      link.peer,
      [&] { return (room = link.fifo->TryAcquire(bytes, link.inline_small)) != nullptr; },
      [&](int64_t timeout_ns) { link.fifo->SleepForRoom(timeout_ns); }, link.remote);
  return wait.failed() ? nullptr : room;
}

// A chunk with another tag or length belongs to another operation: the ranks' calls differ.
const std::byte* AwaitSlice(WaitContext& wait, const RecvLink& link, size_t bytes,
                            uint32_t op_tag) {
  FifoChunk chunk;
  wait.Wait(
      link.peer, [&] { return (chunk = link.fifo->TryPeek()).data != nullptr; },
      [&](int64_t timeout_ns) { link.fifo->SleepForChunk(timeout_ns); }, link.remote);
  if (wait.failed()) return nullptr;
  if (chunk.op_tag != op_tag || chunk.bytes != bytes) [[unlikely]] {
    wait.FailForeignChunk(link.peer, op_tag, chunk.op_tag);
    return nullptr;
  }
  return chunk.data;
}

void HostFifoPrimitives::Run(Step step, size_t in, size_t out, size_t n) {
  for (size_t at = 0; at < n && !wait_.failed(); at += work_.slice_elems) {
    const size_t slice = n - at < work_.slice_elems ? n - at : work_.slice_elems;
    if (!RunSlice(step, in + at, out + at, slice)) return;
  }
}

// Runs one slice of a step. RunSlice waits for a chunk from every receive peer and for a slot
// toward every send peer. The result is computed into the first target and copied to the remaining
// targets. All slots are published and all chunks released at the end, hence peers see no half-done
// step.
bool HostFifoPrimitives::RunSlice(Step step, size_t in, size_t out, size_t n) {
  const size_t bytes = n * work_.elem_bytes;
  std::array<const void*, kMaxFan + 1> sources;
  int num_sources = 0;
  if (step.input) sources[static_cast<size_t>(num_sources++)] = work_.input + in * work_.elem_bytes;
  if (step.recv) {
    for (int i = 0; i < num_recvs_; ++i) {
      const std::byte* slice =
          AwaitSlice(wait_, recvs_[static_cast<size_t>(i)], bytes, work_.op_tag);
      if (slice == nullptr) return false;
      sources[static_cast<size_t>(num_sources++)] = slice;
    }
  }

  std::array<std::byte*, kMaxFan + 1> targets;
  int num_targets = 0;
  if (step.output)
    targets[static_cast<size_t>(num_targets++)] = work_.output + out * work_.elem_bytes;
  if (step.send) {
    for (int i = 0; i < num_sends_; ++i) {
      std::byte* room = AcquireSlot(wait_, sends_[static_cast<size_t>(i)], bytes);
      if (room == nullptr) return false;
      targets[static_cast<size_t>(num_targets++)] = room;
    }
  }

  if (num_targets > 0)
    Fill(work_, {sources.data(), static_cast<size_t>(num_sources)},
         {targets.data(), static_cast<size_t>(num_targets)}, n, step.input, step.final);

  if (step.send)
    for (int i = 0; i < num_sends_; ++i)
      sends_[static_cast<size_t>(i)].fifo->Publish(bytes, work_.op_tag);
  if (step.recv)
    for (int i = 0; i < num_recvs_; ++i) recvs_[static_cast<size_t>(i)].fifo->Release();
  // No other thread moves the chunks while this thread runs. Without this poll, slices would leave
  // only at the thread's next wait, and a rank that only sends waits first when its FIFO is full.
  bytes_since_poll_ += bytes;
  if (remote_ && bytes_since_poll_ >= kPollAfterBytes) {
    bytes_since_poll_ = 0;
    wait_.PollConnections();
  }
  return true;
}

}  // namespace tutti
