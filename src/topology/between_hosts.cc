#include "topology/between_hosts.h"

#include <algorithm>

namespace tutti::topology {
namespace {

constexpr uint32_t kMostRanks = 1u << 24;

Result<ChannelOffer> OfferOf(const Graph& graph, const Channels& channels) {
  ChannelOffer offer;
  offer.pattern = channels.pattern;
  offer.channels = static_cast<uint32_t>(channels.channels.size());
  offer.bandwidth_intra_gbps = channels.bandwidth_intra_gbps;
  offer.bandwidth_inter_gbps = channels.bandwidth_inter_gbps;
  const auto rail = [&](NodeIndex net) { return net == kNoIndex ? -1 : graph.node(net).device; };
  for (const Channel& channel : channels.channels) {
    for (const NodeIndex device : channel.devices) {
      if (graph.node(device).rank < 0) {
        return InvalidArgument("device {} of the channels is no rank's", graph.node(device).device);
      }
      offer.ranks.push_back(graph.node(device).rank);
    }
    offer.rail_in.push_back(rail(channel.net_in));
    offer.rail_out.push_back(rail(channel.net_out));
  }
  return offer;
}

// Returns the place above `place` in a tree. The numbers 1, 2, 3, ... stand in the tree in order
// from left to right without end, with the odd numbers as leaves. Numbers above `count` are passed
// over; the root is the largest power of two.
//
//            4
//        2       6
//      1   3   5   7
uint32_t Above(uint32_t place, uint32_t count) {
  uint64_t at = place;
  uint64_t bit = place & (~place + 1);
  do {
    at = (at & (bit << 1)) != 0 ? at - bit : at + bit;
    bit <<= 1;
  } while (at > count);
  return static_cast<uint32_t>(at);
}

// Returns the child of `place` on one side: half a step away, or nearer where the place half a step
// away is above `count`.
uint32_t Below(uint32_t place, uint32_t count, bool right) {
  uint32_t step = (place & (~place + 1)) / 2;
  if (!right) return step == 0 ? 0 : place - step;
  while (step > 0 && place + step > count) step /= 2;
  return step == 0 ? 0 : place + step;
}

bool IsRoot(uint32_t place, uint32_t count) {
  return (place & (place - 1)) == 0 && place > count / 2;
}

// Matches a host's channels with the channels of the job: `wanted` rails are honoured first.
void MatchRails(const std::vector<int32_t>& rails, const std::vector<int32_t>& wanted,
                std::vector<uint32_t>* match) {
  const size_t count = wanted.size();
  std::vector<uint8_t> used(rails.size());
  match->assign(count, kNoIndex);
  for (size_t channel = 0; channel < count; ++channel) {
    for (size_t own = 0; own < rails.size() && (*match)[channel] == kNoIndex; ++own) {
      // Among channels on the same rail, the channel of the same number is taken first.
      const size_t candidate = (channel + own) % rails.size();
      if (used[candidate] != 0 || rails[candidate] != wanted[channel]) continue;
      (*match)[channel] = static_cast<uint32_t>(candidate);
      used[candidate] = 1;
    }
  }
  size_t next = 0;
  for (uint32_t& own : *match) {
    if (own != kNoIndex) continue;
    while (used[next] != 0) ++next;
    own = static_cast<uint32_t>(next);
    used[next] = 1;
  }
}

class Joiner {
 public:
  explicit Joiner(std::span<const HostOffer> offers) : offers_(offers) {}

  Result<JobChannels> Join() {
    TUTTI_TRY(Check());
    JoinRings();
    JoinTrees();
    return std::move(job_);
  }

 private:
  Status Check();
  Status CheckChannels(size_t host, const ChannelOffer& offer, const char* what);
  void JoinRings();
  void JoinTrees();
  void PlaceHost(size_t host, uint32_t channel, uint32_t tree_channel, bool second);

  std::span<const int32_t> Order(const ChannelOffer& offer, size_t host, uint32_t channel) const {
    const size_t count = offers_[host].rank_count;
    return std::span(offer.ranks).subspan(channel * count, count);
  }
  TreePlace& Place(uint32_t channel, int32_t rank) {
    return job_.trees[size_t{channel} * job_.rank_count + static_cast<size_t>(rank)];
  }
  void AddChild(uint32_t channel, int32_t parent, int32_t child) {
    for (int32_t& slot : Place(channel, parent).children) {
      if (slot >= 0) continue;
      slot = child;
      break;
    }
    Place(channel, child).parent = parent;
  }

  std::span<const HostOffer> offers_;
  JobChannels job_;
  std::vector<uint32_t> host_of_;  // per rank
  // per host: its chain for each tree channel of the job
  std::vector<std::vector<uint32_t>> tree_channel_;
};

Status Joiner::CheckChannels(size_t host, const ChannelOffer& offer, const char* what) {
  const uint32_t count = offers_[host].rank_count;
  if (offer.channels == 0) return InvalidUsage("host {} offers no {} channels", host, what);
  if (offer.ranks.size() != size_t{offer.channels} * count ||
      offer.rail_in.size() != offer.channels || offer.rail_out.size() != offer.channels) {
    return InvalidUsage("host {} offers {} {} channels over {} ranks, but {} places", host,
                        offer.channels, what, count, offer.ranks.size());
  }
  std::vector<uint32_t> seen_in(count, kNoIndex);
  std::vector<int32_t> own(offers_[host].ring.ranks.begin(),
                           offers_[host].ring.ranks.begin() + count);
  std::sort(own.begin(), own.end());
  for (uint32_t channel = 0; channel < offer.channels; ++channel) {
    for (const int32_t rank : Order(offer, host, channel)) {
      const auto place = std::lower_bound(own.begin(), own.end(), rank);
      if (place == own.end() || *place != rank) {
        return InvalidUsage("rank {} of {} channel {} is not one of host {}", rank, what, channel,
                            host);
      }
      uint32_t& last = seen_in[static_cast<size_t>(place - own.begin())];
      if (last == channel) {
        return InvalidUsage("rank {} is in {} channel {} of host {} twice", rank, what, channel,
                            host);
      }
      last = channel;
    }
  }
  return Status::Ok();
}

Status Joiner::Check() {
  if (offers_.empty()) return InvalidUsage("there are no hosts to join");
  uint64_t ranks = 0;
  for (const HostOffer& offer : offers_) ranks += offer.rank_count;
  if (ranks > kMostRanks)
    return InvalidUsage("the job has {} ranks; at most {} can be", ranks, kMostRanks);
  job_.rank_count = static_cast<uint32_t>(ranks);
  host_of_.assign(ranks, kNoIndex);
  for (size_t host = 0; host < offers_.size(); ++host) {
    const HostOffer& offer = offers_[host];
    if (offer.rank_count == 0 || offer.ring.ranks.size() < offer.rank_count) {
      return InvalidUsage("host {} offers a ring over {} of its {} ranks", host,
                          offer.ring.ranks.size(), offer.rank_count);
    }
    for (uint32_t i = 0; i < offer.rank_count; ++i) {
      const int32_t rank = offer.ring.ranks[i];
      if (rank < 0 || static_cast<uint64_t>(rank) >= ranks) {
        return InvalidUsage("host {} has rank {}, and the job has ranks 0 to {}", host, rank,
                            ranks - 1);
      }
      uint32_t& owner = host_of_[static_cast<size_t>(rank)];
      if (owner != kNoIndex) {
        return InvalidUsage("rank {} is on host {} and on host {}", rank, owner, host);
      }
      owner = static_cast<uint32_t>(host);
    }
    TUTTI_TRY(CheckChannels(host, offer.ring, "ring"));
    TUTTI_TRY(CheckChannels(host, offer.tree, "tree"));
  }
  return Status::Ok();
}

void Joiner::JoinRings() {
  const auto fewest = std::min_element(
      offers_.begin(), offers_.end(),
      [](const HostOffer& a, const HostOffer& b) { return a.ring.channels < b.ring.channels; });
  job_.ring_channels = fewest->ring.channels;
  job_.ring_bandwidth_gbps = offers_[0].ring.bandwidth_inter_gbps;
  const size_t size = size_t{job_.ring_channels} * job_.rank_count;
  job_.ring_prev.resize(size);
  job_.ring_next.resize(size);
  std::vector<int32_t> rails(offers_[0].ring.rail_in.begin(),
                             offers_[0].ring.rail_in.begin() + job_.ring_channels);
  std::vector<int32_t> firsts(job_.ring_channels, -1);
  std::vector<int32_t> lasts(job_.ring_channels, -1);
  std::vector<uint32_t> match;
  const auto link = [&](uint32_t channel, int32_t from, int32_t to) {
    const size_t base = size_t{channel} * job_.rank_count;
    job_.ring_next[base + static_cast<size_t>(from)] = to;
    job_.ring_prev[base + static_cast<size_t>(to)] = from;
  };
  for (size_t host = 0; host < offers_.size(); ++host) {
    const ChannelOffer& offer = offers_[host].ring;
    job_.ring_bandwidth_gbps = std::min(job_.ring_bandwidth_gbps, offer.bandwidth_inter_gbps);
    MatchRails(offer.rail_in, rails, &match);
    for (uint32_t channel = 0; channel < job_.ring_channels; ++channel) {
      const auto order = Order(offer, host, match[channel]);
      for (size_t i = 0; i + 1 < order.size(); ++i) link(channel, order[i], order[i + 1]);
      if (host == 0) firsts[channel] = order.front();
      if (host > 0) link(channel, lasts[channel], order.front());
      lasts[channel] = order.back();
      rails[channel] = offer.rail_out[match[channel]];
    }
  }
  for (uint32_t channel = 0; channel < job_.ring_channels; ++channel) {
    link(channel, lasts[channel], firsts[channel]);
  }
}

void Joiner::JoinTrees() {
  uint32_t chains = offers_[0].tree.channels;
  job_.tree_bandwidth_gbps = offers_[0].tree.bandwidth_inter_gbps;
  for (const HostOffer& offer : offers_) {
    chains = std::min(chains, offer.tree.channels);
    job_.tree_bandwidth_gbps = std::min(job_.tree_bandwidth_gbps, offer.tree.bandwidth_inter_gbps);
  }
  job_.tree_channels = 2 * chains;
  job_.trees.resize(size_t{job_.tree_channels} * job_.rank_count);
  const std::vector<int32_t> rails(offers_[0].tree.rail_in.begin(),
                                   offers_[0].tree.rail_in.begin() + chains);
  tree_channel_.resize(offers_.size());
  for (size_t host = 0; host < offers_.size(); ++host) {
    MatchRails(offers_[host].tree.rail_in, rails, &tree_channel_[host]);
  }
  for (size_t host = 0; host < offers_.size(); ++host) {
    for (uint32_t channel = 0; channel < chains; ++channel) {
      PlaceHost(host, channel, channel, false);
      PlaceHost(host, channel, chains + channel, true);
    }
  }
}

// Places the chain inside a host, and the joints from the chain's devices to the first devices of
// hosts below.
void Joiner::PlaceHost(size_t host, uint32_t channel, uint32_t tree_channel, bool second) {
  const ChannelOffer& offer = offers_[host].tree;
  const auto order = Order(offer, host, tree_channel_[host][channel]);
  for (size_t i = 0; i + 1 < order.size(); ++i) AddChild(tree_channel, order[i], order[i + 1]);
  const HostPlace place =
      PlaceInTree(static_cast<uint32_t>(host), static_cast<uint32_t>(offers_.size()), second);
  const int32_t next = order.size() > 1 ? order[1] : order[0];
  const int32_t from[2] = {offer.pattern == Pattern::kSplitTree ? next : order[0],
                           offer.pattern == Pattern::kTree ? order[0] : next};
  for (size_t i = 0; i < 2; ++i) {
    if (place.children[i] < 0) continue;
    const size_t below = static_cast<size_t>(place.children[i]);
    AddChild(tree_channel, from[i],
             Order(offers_[below].tree, below, tree_channel_[below][channel]).front());
  }
}

}  // namespace

Result<HostOffer> MakeOffer(const Graph& graph, const Channels& ring, const Channels& tree) {
  HostOffer offer;
  TUTTI_ASSIGN(offer.ring, OfferOf(graph, ring));
  TUTTI_ASSIGN(offer.tree, OfferOf(graph, tree));
  if (ring.channels.empty()) return InvalidArgument("there are no ring channels to offer");
  offer.rank_count = static_cast<uint32_t>(ring.channels.front().devices.size());
  return offer;
}

HostPlace PlaceInTree(uint32_t host, uint32_t hosts, bool second) {
  // The second tree is the first tree, moved on by one: the odd places, leaves of the first tree,
  // are even in the second tree and thus inner places.
  const uint32_t shift = second ? 1 : 0;
  const uint32_t at = (host + shift) % hosts + 1;
  const auto host_at = [&](uint32_t place) {
    return static_cast<int32_t>((place - 1 + hosts - shift) % hosts);
  };
  HostPlace result;
  if (!IsRoot(at, hosts)) result.parent = host_at(Above(at, hosts));
  size_t count = 0;
  for (const bool right : {false, true}) {
    const uint32_t child = Below(at, hosts, right);
    if (child != 0) result.children[count++] = host_at(child);
  }
  return result;
}

Result<JobChannels> JoinHosts(std::span<const HostOffer> offers) { return Joiner(offers).Join(); }

}  // namespace tutti::topology
