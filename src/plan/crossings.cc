#include "plan/crossings.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "plan/ranks_by_host.h"

namespace tutti {
namespace {

// Below this latency the steps of the cost table include the time of the network, and a measurement
// mostly shows how busy the hosts are.
constexpr uint32_t kLeastAwayUs = 100;

bool IsPowerOfTwo(size_t n) { return std::has_single_bit(n); }

}  // namespace

HostLayout HostLayoutOf(std::span<const int> leader) {
  const std::vector<std::vector<int>> hosts = RanksByHost(leader);
  const size_t here = hosts.empty() ? 0 : hosts[0].size();
  HostLayout layout;
  layout.count = static_cast<int>(hosts.size());
  layout.fewest = layout.most = static_cast<int>(here);
  for (const std::vector<int>& ranks : hosts) {
    layout.fewest = std::min(layout.fewest, static_cast<int>(ranks.size()));
    layout.most = std::max(layout.most, static_cast<int>(ranks.size()));
  }
  layout.even = layout.fewest == layout.most && IsPowerOfTwo(here) && IsPowerOfTwo(hosts.size());
  layout.in_order = true;
  for (size_t r = 1; r < leader.size(); ++r)
    if (leader[r] != leader[r - 1] && leader[r] != static_cast<int>(r)) layout.in_order = false;
  return layout;
}

double CrossingsOf(Collective collective, Algorithm algorithm, int num_ranks,
                   const HostLayout& hosts) {
  if (hosts.count <= 1) return 0;
  const bool one_each = hosts.count == num_ranks;
  // A ring that begins in the middle of a host comes back to the host in the end.
  const double round = hosts.count - (one_each ? 1 : 0);
  switch (algorithm) {
    case Algorithm::kRing:
      if (IsChain(collective)) return hosts.count - 1;
      return collective == Collective::kAllReduce ? 2 * round : round;
    case Algorithm::kTree:  // up and down; the root's subtrees begin in the middle of hosts
      return 2 * (LogSteps(hosts.count) + (one_each ? 0 : 1));
    case Algorithm::kRecursiveHalving:
      return LogSteps(hosts.even ? hosts.count : num_ranks);
    case Algorithm::kRecursiveDoubling: {
      const bool gathers =
          collective == Collective::kAllGather || collective == Collective::kAllGatherV;
      if (gathers) return LogSteps(hosts.even ? hosts.count : num_ranks);
      if (hosts.even && hosts.in_order) return LogSteps(hosts.count);
      return LogSteps(num_ranks) + (IsPowerOfTwo(static_cast<size_t>(num_ranks)) ? 0 : 1);
    }
    case Algorithm::kTwoLevel: {  // Hosts form pairs as ranks do by recursive doubling.
      if (collective == Collective::kAlltoAll) return 1;
      const bool odd =
          MovesWholeVector(collective) && !IsPowerOfTwo(static_cast<size_t>(hosts.count));
      return LogSteps(hosts.count) + (odd ? 1 : 0);
    }
    case Algorithm::kTwoShot:
      return 2;
    default:  // Every rank sends directly to all ranks that need its data.
      return 1;
  }
}

double CountedNetworkUs(uint32_t away_us) {
  if (away_us < kLeastAwayUs) return 0;
  return std::exp2(std::round(std::log2(away_us)));
}

}  // namespace tutti
