#pragma once

// How often the data of an operation passes from one host to another, one time after the other, and
// what a passage costs where hosts are far from one another.
//
// The rows of cost_table.h were measured where the network itself takes next to no time. Between
// far hosts the time on the way is what counts for all that is short, and algorithms differ by how
// often it must be waited for.
//
// Pure functions: all ranks compute the same.

#include <cstdint>
#include <span>

#include "plan/work.h"

namespace tutti {

// Says how the ranks are divided among hosts.
struct HostLayout {
  int count = 1;
  // Each host has as many ranks; these, and the hosts, are powers of two.
  bool even = false;
  bool in_order = false;  // The numbers of a host's ranks follow one another.
  int fewest = 1;         // The smallest host has so many ranks,
  int most = 1;           // and the largest one so many.
};

// `leader` has the first rank of each rank's host.
HostLayout HostLayoutOf(std::span<const int> leader);

// Returns how often data passes from host to host on the longest way of the algorithm, or somewhat
// more. 0 where there is one host. The ranks of a host follow one another in rings and trees.
double CrossingsOf(Collective collective, Algorithm algorithm, int num_ranks,
                   const HostLayout& hosts);

// Returns what one passage adds to the table's times, in microseconds, where the farthest host was
// found to be `away_us` away, one way; 0 below 100 us. Rounded to a power of two, so that jobs on
// the same machines plan alike although no two measurements are the same.
double CountedNetworkUs(uint32_t away_us);

// What is counted on of a network where CountedNetworkUs is not 0, however fast its NICs say they
// are (2 Gbit/s): they do not know what lies between. With it rings are taken from the sizes on at
// which their fewer bytes make up for their crossings, as measured at 1 Gbit/s and 1 ms with two
// and four ranks a host (bench/results/hosts.md).
inline constexpr double kFarNetworkGbps = 0.25;

}  // namespace tutti
