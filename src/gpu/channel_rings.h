#pragma once

// ChannelRings holds the orders in which the channels of GpuChannels (gpu/channels.h) pass the
// ranks. Each channel has a ring of all ranks. Two levels (kernels/two_level.h) see the ranks as
// hosts × local ranks, with a ring inside each host in the order of the channel's ring. A value
// type, made once; all ranks have the same values, except for the place of "this rank".
//
// Kernels read the orders too. tables() holds all orders; views point into tables(), or into a copy
// of tables() in memory of the GPU.
//
// Pure functions count the traffic of a collective on each channel before the kernel starts. They
// run the algorithm over primitives that only count (kernels/counting.h).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/counting.h"
#include "kernels/two_level.h"
#include "plan/plan.h"
#include "plan/work.h"

namespace tutti {

class ChannelRings {
 public:
  // `hosts` has a number for the host of each rank. REQUIRES: each ring has every rank once.
  ChannelRings(std::span<const uint64_t> hosts, int rank,
               const std::vector<std::vector<int>>& rings);

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  uint32_t channels() const { return static_cast<uint32_t>(ring_index_.size()); }
  int num_hosts() const { return num_hosts_; }
  // Returns the number of ranks on each host, or 0 where hosts differ.
  int local_ranks() const { return local_ranks_; }
  // Returns whether two levels exist: several hosts with equally many ranks, at least two each.
  bool HasTwoLevels() const { return num_hosts_ > 1 && local_ranks_ > 1; }

  std::span<const int> tables() const { return tables_; }
  // Return the views of a channel. `tables` is tables() or a copy of it. LevelsOf, HostNeighbour
  // and RailNeighbour REQUIRE HasTwoLevels().
  RingView RingOf(uint32_t channel, const int* tables) const;
  kernels::TwoLevelView LevelsOf(uint32_t channel, const int* tables) const;

  // Return this rank's neighbours. `way` is 1 for the next rank, -1 for the previous rank.
  int RingNeighbour(uint32_t channel, int way) const;
  int HostNeighbour(uint32_t channel, int way) const;
  int RailNeighbour(int way) const;

 private:
  // Return where orders begin in tables_.
  size_t RingAt(uint32_t channel) const { return channel * static_cast<size_t>(num_ranks_); }
  size_t GridAt() const { return RingAt(channels()); }
  size_t HostRingAt(uint32_t channel) const {
    return GridAt() + static_cast<size_t>(num_ranks_) + channel * static_cast<size_t>(local_ranks_);
  }

  int rank_;
  int num_ranks_;
  int num_hosts_ = 1;
  int local_ranks_ = 0;
  int host_ = 0;   // This rank's host.
  int local_ = 0;  // This rank's number among the ranks of its host.
  std::vector<int> ring_index_, host_ring_index_;  // This rank's place on each channel.
  // The rings, the ranks at host × local_ranks_ + local rank, and the rings of this host.
  std::vector<int> tables_;
};

// Counts the traffic between this rank and its neighbours on one channel: the neighbours in the
// ring of all ranks, or by two levels the neighbours in the host's ring and on the rail.
struct ChannelTraffic {
  kernels::Traffic to_next, from_previous;
  kernels::Traffic to_rail, from_rail;
};

// Names this rank's neighbours on a channel: in the ring of all ranks, or by two levels in the ring
// of the host and on the rail.
struct ChannelNeighbours {
  int ring = -1;
  int rail = -1;
};
// `way` is 1 for the next ranks, -1 for the previous ones.
ChannelNeighbours NeighboursOf(const ChannelRings& rings, const Plan& plan, uint32_t channel,
                               int way);

// Returns whether a ring adds elements in the order of the ranks. The ring then has this order.
inline bool InRankOrder(const Plan& plan) {
  return plan.row->where == Where::kChannelRing && plan.row->order == AddingOrder::kRankOrder;
}

// Returns the traffic of one channel, for rings and two levels. REQUIRES: a plan of two levels is
// made only where the rings have two levels.
ChannelTraffic CountChannel(const ChannelRings& rings, const Plan& plan, Collective collective,
                            size_t count, int root, uint32_t channel);

}  // namespace tutti
