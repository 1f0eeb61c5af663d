#pragma once

// How the queue pairs of a connection lie on the ports of its ends, and how a message is cut over
// them.
//
// An end has own ports and perhaps spares (ports.h). With as many queue pairs in a row as the end
// with more ports of its own has, queue pair i lies at port i mod own, at either end:
//
//   sender's ports     0   1   0   1          2 ports against 1, two queue pairs a row:
//   queue pairs        0   1 | 2   3            NCCL_IB_QPS_PER_CONNECTION=2 makes two rows
//   receiver's ports   0   0   0   0
//
// A long message is cut over a row, each queue pair with a share by the speed that its ports have
// left for it.
//
// Threads: any; these are functions of their arguments.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/net/verbs/table.h"

namespace tutti {

// The ports of one end, and those of them that can be used now.
struct EndPorts {
  size_t own = 1;
  size_t all = 1;
  PortFlags usable = 1;
};

// Says where the queue pairs of an end lie.
struct PairPlaces {
  size_t own = 1;
  std::vector<uint8_t> port_of;
};

// Returns a port for each of `pairs` queue pairs: the one that the drawing above gives, or where
// the other end (`theirs`, may be null) has moved its own away from there the one that goes with
// it, because networks whose rails do not meet join ports of one number only. In place of a port
// that cannot be used comes another own one, and only where there is none a spare.
std::vector<uint8_t> PlacePairs(size_t pairs, const EndPorts& ours, const PairPlaces* theirs);

// Returns what share of a message each queue pair takes: the speed of its ports, of which each is
// shared evenly by the queue pairs that lie on it, where the slower end counts. Where a speed is
// not known (0), all are alike.
std::vector<uint32_t> WeighPairs(std::span<const uint32_t> our_mbps,
                                 std::span<const uint8_t> our_ports,
                                 std::span<const uint32_t> their_mbps,
                                 std::span<const uint8_t> their_ports);

// Messages of up to so many bytes go over one port, longer ones over a row of queue pairs. A port
// of 200 Gb/s takes 2.6 µs for them, so that half of them over another one saves little more than
// the two requests more that it costs. Chosen by that reckoning; it was not measured on a NIC.
inline constexpr size_t kStripeAbove = size_t{64} << 10;

// Pieces of a message begin at multiples of this, so that none begins inside a cache line.
inline constexpr size_t kPieceAlignment = 128;

// Cuts `bytes` into pieces in proportion to the weights. REQUIRES: as many pieces as weights.
void CutByWeight(size_t bytes, std::span<const uint32_t> weights, std::span<size_t> pieces);

}  // namespace tutti
