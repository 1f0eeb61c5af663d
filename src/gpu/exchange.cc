// Launches collectives of GPUs that consist of messages (MeshAlgorithm::kMessages).

#include <algorithm>

#include "gpu/device_tasks.h"
#include "gpu/mesh.h"

namespace tutti {
namespace {

// Returns the part of `rank` in a buffer of parts of `bytes`, or the buffer itself without parts.
std::byte* Part(const void* buffer, bool has_parts, int rank, size_t bytes) {
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(buffer));
  return has_parts ? begin + static_cast<size_t>(rank) * bytes : begin;
}

}  // namespace

Status GpuMesh::LaunchExchange(const CollectiveTask& task, cuda::Stream stream) {
  const int n = args_.num_ranks, me = args_.rank;
  const size_t bytes = task.count * task.elem_bytes();
  const bool gathers = task.collective == Collective::kGather;
  const bool scatters = task.collective == Collective::kScatter;
  const bool is_root = me == task.root;
  cuda::MessageArgs args = NoMessages();
  // All messages of an AlltoAll are on the GPU at once, because a message waiting for its turn
  // would keep other ranks waiting. The same holds for a call that wishes few blocks, since each
  // message has at least one block.
  const uint32_t messages = static_cast<uint32_t>(gathers || scatters ? n : 2 * n - 1);
  if ((!gathers && !scatters) || task.wishes.most_blocks != 0)
    args.most_channels =
        std::max(1u, WishedBlocks(task.wishes, planner_.context().mesh.max_blocks) / messages);
  using Kind = cuda::MessageKind;
  const auto add = [&](Kind kind, int peer, std::byte* buffer, const std::byte* from) {
    args.messages[args.num_messages++] = {buffer, bytes, static_cast<int16_t>(peer), kind, from};
  };
  for (int k = 0; k < n; ++k) {
    const int peer = (me + k) % n;
    std::byte* const out = Part(task.send, !gathers, peer, bytes);
    std::byte* const in = Part(task.recv, !scatters, peer, bytes);
    if (peer == me) {
      if ((!gathers && !scatters) || is_root) {
        std::byte* const kept = Part(task.recv, !scatters, me, bytes);
        if (out != kept) add(Kind::kCopy, me, kept, out);
      }
      continue;
    }
    const bool sends = gathers ? peer == task.root : !scatters || is_root;
    const bool receives = scatters ? peer == task.root : !gathers || is_root;
    // In place, data may arrive only where the old data has been sent.
    if (sends && receives && in == out) {
      add(Kind::kSwap, peer, out, nullptr);
      continue;
    }
    if (sends) add(Kind::kSend, peer, out, nullptr);
    if (receives) add(Kind::kReceive, peer, in, nullptr);
  }
  if (args.num_messages == 0) return Status::Ok();
  return device().Launch(args, MostEarly(), stream, LaunchEventOf(task));
}

}  // namespace tutti
