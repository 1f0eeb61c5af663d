#pragma once

// Places the queue pairs of a connection on the ports of its ends, and cuts messages over the queue
// pairs.
//
// An end has own ports and perhaps spares (ports.h). A row has as many queue pairs as the end with
// more own ports has own ports. Queue pair i lies at port i mod own, at either end:
//
//   sender's ports     0   1   0   1          2 ports against 1, two queue pairs a row:
//   queue pairs        0   1 | 2   3            NCCL_IB_QPS_PER_CONNECTION=2 makes two rows
//   receiver's ports   0   0   0   0
//
// A long message is cut over a row; the share of a queue pair is proportional to its part of its
// ports' speed.
//
// Threads: any; all functions depend on their arguments only.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/net/verbs/table.h"

namespace tutti {

// The numbers of own ports and of all ports of an end, and the flags of its usable ports.
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

// Returns a port for each of `pairs` queue pairs, as in the drawing above. Where the peer
// (`theirs`, may be null) has moved a queue pair to a different port, our queue pair follows to the
// port of the same number, because rails of some networks do not meet. An unusable port is replaced
// by a usable own port, or by a usable spare where no own port is usable.
std::vector<uint8_t> PlacePairs(size_t pairs, const EndPorts& ours, const PairPlaces* theirs);

// Returns the share of a message for each queue pair. The queue pairs of a port share the port's
// speed evenly, and the slower end of a queue pair counts. All shares are equal where a speed is
// unknown (0).
std::vector<uint32_t> WeighPairs(std::span<const uint32_t> our_mbps,
                                 std::span<const uint8_t> our_ports,
                                 std::span<const uint32_t> their_mbps,
                                 std::span<const uint8_t> their_ports);

// Messages of up to kStripeAbove bytes go over a single port, and longer messages over a row of
// queue pairs. A port of 200 Gb/s takes 2.6 µs for 64 KiB; a second port would save half of the
// time and cost two more requests, with little gain. The value is a reckoning, not a measurement.
inline constexpr size_t kStripeAbove = size_t{64} << 10;

// Pieces of a message begin at multiples of kPieceAlignment, and never inside a cache line.
inline constexpr size_t kPieceAlignment = 128;

// Cuts `bytes` into pieces in proportion to the weights. REQUIRES: as many pieces as weights.
void CutByWeight(size_t bytes, std::span<const uint32_t> weights, std::span<size_t> pieces);

}  // namespace tutti
