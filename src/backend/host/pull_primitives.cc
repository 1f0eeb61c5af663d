#include "backend/host/pull_primitives.h"

#include <algorithm>
#include <cstring>

#include "base/copy.h"

namespace tutti {

// Copies from memory in reach, or through the kernel. In place the own part is already in the
// output.
void HostPullPrimitives::Copy(const ReachableBuffer& buffer, size_t from, size_t out, size_t n) {
  if (n == 0 || wait_.failed()) return;
  const size_t bytes = n * work_.elem_bytes;
  std::byte* target = work_.output + out * work_.elem_bytes;
  if (buffer.direct != nullptr) {
    const std::byte* source = buffer.direct + from * work_.elem_bytes;
    if (source != target) CopyBytes(target, source, bytes);
    return;
  }
  Status status = reader_.Read(buffer.pid, target, buffer.address + from * work_.elem_bytes, bytes);
  if (!status.ok()) wait_.Fail(std::move(status));
}

const std::byte* HostPullPrimitives::Fetch(const ReachableBuffer& buffer, size_t from, size_t n,
                                           size_t block) {
  if (buffer.direct != nullptr) return buffer.direct + from * work_.elem_bytes;
  std::byte* target = scratch_.data() + block * kScratchBytes;
  Status status = reader_.Read(buffer.pid, target, buffer.address + from * work_.elem_bytes,
                               n * work_.elem_bytes);
  if (!status.ok()) wait_.Fail(std::move(status));
  return target;
}

// Works through the range in steps of the scratch memory, in order that data from other processes
// are still in the cache when they are added. All inputs are scaled in the reduction, because the
// users' own buffers may not be changed.
void HostPullPrimitives::ReduceInputs(size_t from, size_t out, size_t n) {
  const auto ranks = static_cast<size_t>(num_ranks());
  const size_t step = kScratchBytes / work_.elem_bytes;
  const ReduceSpec& reduce = work_.reduce;
  for (size_t at = 0; at < n && !wait_.failed(); at += step) {
    const size_t count = std::min(step, n - at);
    std::byte* dst = work_.output + (out + at) * work_.elem_bytes;
    const std::span<const void*> sources = rounds_.sources();
    for (size_t r = 0; r < ranks; ++r) sources[r] = Fetch(reach_.inputs[r], from + at, count, r);
    if (wait_.failed()) return;
    const ReduceArgs args = {.scalar = reduce.scalar,
                             .scale_end = reduce.scale ? num_ranks() : 0,
                             .divisor = reduce.divisor};
    reduce.fn(dst, sources.data(), num_ranks(), count, args);
  }
}

// An empty round of the stages is a barrier: every rank publishes it and waits for all peers.
void HostPullPrimitives::Barrier() {
  const uint64_t round = rounds_.NextRound();
  rounds_.Publish(round, 0);
  for (int peer = 0; peer < num_ranks(); ++peer)
    if (peer != rank()) rounds_.Wait(round, peer);
  rounds_.EndRound(round);
}

// The descriptors travel as the data of one round. The descriptors are copied out before the round
// ends, since the slot may be written over then.
bool ExchangeDescriptors(HostStagePrimitives& rounds, StageGroup& group, WaitContext& wait,
                         const BufferDescriptors& mine, std::span<BufferDescriptors> all) {
  const uint64_t round = rounds.NextRound();
  if (!group.AwaitFree(wait, round)) return false;
  std::memcpy(group.mine().data(round), &mine, sizeof(mine));
  rounds.Publish(round, 0);
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != group.my_index()) rounds.Wait(round, peer);
    if (wait.failed()) return false;
    std::memcpy(&all[static_cast<size_t>(peer)], group.stage(peer).data(round),
                sizeof(BufferDescriptors));
  }
  rounds.EndRound(round);
  return !wait.failed();
}

}  // namespace tutti
