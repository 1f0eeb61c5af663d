#pragma once

// Sorts ranks by the hosts that they are on.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace tutti {

// Returns the ranks of each host, ascending, the hosts in the order of their first ranks. `host_of`
// has for each rank what is equal for all ranks of its host: a hash, or the first of them.
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
