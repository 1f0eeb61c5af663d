#pragma once

// Counts how often the data of an operation passes from host to host one time after another, and
// says how long a passage takes between far hosts.
//
// The rows of plan/cost_table.h were measured on networks with almost no latency. Between far hosts
// the latency decides how long short operations take, and algorithms differ in how often they wait
// for the latency.
//
// All functions are pure: all ranks compute the same result.

#include <bit>
#include <cstdint>
#include <span>

#include "plan/work.h"

namespace tutti {

// Describes how the ranks are divided among hosts.
struct HostLayout {
  int count = 1;
  // All hosts have equally many ranks, and both numbers, of hosts and of ranks on a host, are
  // powers of two.
  bool even = false;
  bool in_order = false;  // The ranks of a host have consecutive numbers.
  int fewest = 1;         // The number of ranks of the smallest host.
  int most = 1;           // The number of ranks of the largest host.
};

// Returns the logarithm of n to base 2, rounded up: the number of steps of an algorithm that
// reaches twice as many ranks with each step.
inline double LogSteps(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

// Returns the layout. `leader` holds, for each rank, the first rank of its host.
HostLayout HostLayoutOf(std::span<const int> leader);

// Returns how often data passes from host to host on the longest way of the algorithm. The result
// may be a little too high. Returns 0 for one host. The ranks of a host are neighbours in rings and
// trees.
double CrossingsOf(Collective collective, Algorithm algorithm, int num_ranks,
                   const HostLayout& hosts);

// Returns how many microseconds one passage adds to the times of the cost table. `away_us` is the
// measured time to the farthest host, one way. Returns 0 for less than 100 us. The result is a
// power of two, because jobs on the same machines should plan alike although measurements vary.
double CountedNetworkUs(uint32_t away_us);

// The bandwidth that is assumed for a network with a CountedNetworkUs above 0 (2 Gbit/s), whatever
// speed the NICs report. The NICs know nothing of the lines between far hosts. With this number
// rings are taken from the sizes on at which their fewer bytes make up for their crossings, as
// measured at 1 Gbit/s and 1 ms with two and four ranks a host (bench/results/hosts.md).
inline constexpr double kFarNetworkGbps = 0.25;

}  // namespace tutti
