#include "gpu/flow_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/primitives.h"
#include "plan/cost_table.h"

namespace tutti {
namespace {

// Parts begin at whole lines.
constexpr size_t kPartUnit = 128;
// The longest message to the rank itself that a kernel copies. One block copies so much in a
// fraction of the time of a message over the network.
constexpr size_t kMostOwnBytes = 64 << 10;

// Describes an uncut message and its place in the order of all messages.
struct Whole {
  size_t number = 0;
  int distance = 0;
  int peer = -1;
  cuda::MessageKind kind = cuda::MessageKind::kSend;
  std::byte* buffer = nullptr;
  size_t bytes = 0;

  bool SamePlace(const Whole& other) const {
    return number == other.number && distance == other.distance;
  }
};

// Cuts a message. The first channel follows from the message's distance, which both ends know, and
// therefore different proxy threads carry short messages to many ranks.
void AddParts(const Whole& whole, uint32_t most_channels, FlowKernel& parts) {
  const size_t channels =
      std::clamp<size_t>(whole.bytes / kChannelCosts.message_bytes_per_channel, 1, most_channels);
  const size_t share = RoundUp(DivUp(whole.bytes, channels), kPartUnit);
  auto channel = static_cast<uint32_t>(whole.distance);
  for (size_t at = 0; at < whole.bytes; at += share, ++channel)
    parts.push_back({whole.peer,
                     channel % most_channels,
                     whole.kind,
                     {whole.buffer + at, ClampChunk(at, share, whole.bytes)}});
}

// Returns whether a kernel has room for more parts.
bool Fits(const FlowKernel& kernel, const FlowKernel& more) {
  if (kernel.size() + more.size() > cuda::kMostFlowMessages) return false;
  std::map<std::tuple<int, uint32_t, cuda::MessageKind>, int> flows;
  for (const FlowKernel* const parts : {&kernel, &more})
    for (const FlowPart& part : *parts) flows[{part.peer, part.channel, part.kind}] = 1;
  return flows.size() <= cuda::kMostFlows;
}

// Fills kernels with messages, in the order of number and distance. Messages in the same place go
// into the same kernel, because each may wait for the other.
std::vector<FlowKernel> FillKernels(std::vector<Whole> messages, uint32_t most_channels) {
  std::stable_sort(messages.begin(), messages.end(), [](const Whole& a, const Whole& b) {
    return std::tie(a.number, a.distance) < std::tie(b.number, b.distance);
  });
  std::vector<FlowKernel> kernels;
  for (size_t i = 0; i < messages.size();) {
    FlowKernel together;
    const Whole& first = messages[i];
    for (; i < messages.size() && messages[i].SamePlace(first); ++i)
      AddParts(messages[i], most_channels, together);
    if (kernels.empty() || !Fits(kernels.back(), together)) kernels.emplace_back();
    kernels.back().insert(kernels.back().end(), together.begin(), together.end());
  }
  return kernels;
}

int Distance(int from, int to, int num_ranks) { return (to - from + num_ranks) % num_ranks; }

}  // namespace

std::vector<FlowKernel> PlanFlows(std::span<const MessageTask> messages, const FlowPlace& place) {
  std::vector<Whole> wholes;
  std::map<std::pair<int, bool>, size_t> seen;
  for (const MessageTask& message : messages) {
    const auto& [is_send, peer, buffer, count, type] = message;
    if (peer == place.rank || count == 0) continue;
    Whole whole;
    whole.number = seen[{peer, is_send}]++;
    whole.distance = is_send ? Distance(place.rank, peer, place.num_ranks)
                             : Distance(peer, place.rank, place.num_ranks);
    whole.peer = peer;
    whole.kind = is_send ? cuda::MessageKind::kSend : cuda::MessageKind::kReceive;
    whole.buffer = buffer;
    whole.bytes = message.bytes();
    wholes.push_back(whole);
  }
  return FillKernels(std::move(wholes), place.channels);
}

std::vector<CopyPiece> AddOwnMessages(std::span<const CopyPiece> own, int rank,
                                      std::vector<FlowKernel>& kernels) {
  std::vector<CopyPiece> left;
  for (const CopyPiece& piece : own) {
    const FlowKernel part = {
        {rank, 0, cuda::MessageKind::kCopy, {piece.to, piece.bytes, piece.from}}};
    if (piece.bytes <= kMostOwnBytes && !kernels.empty() && Fits(kernels.front(), part))
      kernels.front().push_back(part.front());
    else
      left.push_back(piece);
  }
  return left;
}

std::vector<FlowKernel> PlanSwaps(const CollectiveTask& task, const FlowPlace& place) {
  const size_t bytes = task.count * task.elem_bytes();
  std::vector<Whole> messages;
  for (int peer = 0; peer < place.num_ranks; ++peer) {
    if (peer == place.rank) continue;
    Whole whole;
    // Both ends of a pair take the smaller of the two distances, which is the same at both ends.
    whole.distance = std::min(Distance(place.rank, peer, place.num_ranks),
                              Distance(peer, place.rank, place.num_ranks));
    whole.peer = peer;
    whole.kind = cuda::MessageKind::kSwap;
    whole.buffer = static_cast<std::byte*>(task.recv) + static_cast<size_t>(peer) * bytes;
    whole.bytes = bytes;
    messages.push_back(whole);
  }
  return FillKernels(std::move(messages), place.channels);
}

}  // namespace tutti
