#include "transport/net/verbs/stripes.h"

#include <algorithm>

#include "base/rounding.h"

namespace tutti {
namespace {

// Ten terabits per second. The bound keeps products of a weight and a message's length in range.
constexpr uint32_t kMostWeight = 10'000'000;

std::vector<uint8_t> UsableFrom(const EndPorts& ports, size_t begin, size_t end) {
  std::vector<uint8_t> usable;
  for (size_t i = begin; i < end; ++i) {
    if (ports.usable.test(i)) usable.push_back(static_cast<uint8_t>(i));
  }
  return usable;
}

// Returns each queue pair's part of its port's speed.
std::vector<uint32_t> Shares(std::span<const uint32_t> mbps, std::span<const uint8_t> ports) {
  std::vector<uint32_t> shares;
  for (const uint8_t port : ports) {
    const auto users = static_cast<uint32_t>(std::count(ports.begin(), ports.end(), port));
    shares.push_back(mbps[port] / users);
  }
  return shares;
}

}  // namespace

// A queue pair of the peer is away from home where its port is not the port of the drawing.
// Replaced ports share the remaining usable ports in turn.
std::vector<uint8_t> PlacePairs(size_t pairs, const EndPorts& ours, const PairPlaces* theirs) {
  std::vector<uint8_t> others = UsableFrom(ours, 0, ours.own);
  if (others.empty()) others = UsableFrom(ours, ours.own, ours.all);
  std::vector<uint8_t> places;
  for (size_t i = 0; i < pairs; ++i) {
    size_t port = i % ours.own;
    if (theirs && theirs->port_of[i] != i % theirs->own) port = theirs->port_of[i] % ours.own;
    if (!ours.usable.test(port) && !others.empty()) port = others[i % others.size()];
    places.push_back(static_cast<uint8_t>(port));
  }
  return places;
}

std::vector<uint32_t> WeighPairs(std::span<const uint32_t> our_mbps,
                                 std::span<const uint8_t> our_ports,
                                 std::span<const uint32_t> their_mbps,
                                 std::span<const uint8_t> their_ports) {
  const std::vector<uint32_t> ours = Shares(our_mbps, our_ports);
  const std::vector<uint32_t> theirs = Shares(their_mbps, their_ports);
  std::vector<uint32_t> weights;
  for (size_t i = 0; i < ours.size(); ++i)
    weights.push_back(std::min({ours[i], theirs[i], kMostWeight}));
  if (std::count(weights.begin(), weights.end(), 0u) > 0)
    std::fill(weights.begin(), weights.end(), 1u);
  return weights;
}

// Cuts at the running sums of the weights, rounded up to the alignment, so that rounding never adds
// up and the last piece ends exactly at the end.
void CutByWeight(size_t bytes, std::span<const uint32_t> weights, std::span<size_t> pieces) {
  uint64_t all = 0;
  for (const uint32_t weight : weights) all += weight;
  uint64_t before = 0;
  size_t from = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    before += weights[i];
    const size_t exact = bytes * before / all;
    const size_t to = before == all ? bytes : std::min(RoundUp(exact, kPieceAlignment), bytes);
    pieces[i] = to - from;
    from = to;
  }
}

}  // namespace tutti
