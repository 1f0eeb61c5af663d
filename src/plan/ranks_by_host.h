#pragma once

// Sorts ranks by host.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace tutti {

// Returns the ranks of each host in ascending order, and the hosts in the order of their first
// ranks. `host_of` holds a value for each rank that is equal for all ranks of a host: a hash, or
// the host's first rank.
template <class Host>
std::vector<std::vector<int>> RanksByHost(std::span<const Host> host_of) {
  std::vector<std::vector<int>> ranks;
  std::vector<Host> seen;
  for (size_t r = 0; r < host_of.size(); ++r) {
    const auto place =
        static_cast<size_t>(std::find(seen.begin(), seen.end(), host_of[r]) - seen.begin());
    if (place == seen.size()) {
      seen.push_back(host_of[r]);
      ranks.emplace_back();
    }
    ranks[place].push_back(static_cast<int>(r));
  }
  return ranks;
}

}  // namespace tutti
