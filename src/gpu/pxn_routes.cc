#include "gpu/pxn_routes.h"

#include <map>

namespace tutti {

PxnRoutes::PxnRoutes(Level level, const Ranks& ranks)
    : level_(level),
      hosts_(ranks.hosts.begin(), ranks.hosts.end()),
      nics_(ranks.nics.begin(), ranks.nics.end()),
      near_nics_(ranks.near_nics.begin(), ranks.near_nics.end()) {
  if (level == Level::kNever) return;
  std::map<int, int> ranks_of;
  for (const int process : ranks.processes) ++ranks_of[process];
  for (const int process : ranks.processes) is_alone_.push_back(ranks_of[process] == 1);
  const int n = static_cast<int>(hosts_.size());
  for (int r = 0; r < n; ++r)
    on_rail_[{hosts_[static_cast<size_t>(r)], nics_[static_cast<size_t>(r)]}].push_back(r);
  for (int from = 0; from < n && !any_; ++from)
    for (int to = 0; to < n && !any_; ++to) any_ = SenderOf(from, to) != from;
}

const std::vector<int>* PxnRoutes::OnRailOf(int from, int to) const {
  if (level_ == Level::kNever) return nullptr;
  const auto f = static_cast<size_t>(from), t = static_cast<size_t>(to);
  if (hosts_[f] == hosts_[t] || nics_[f] == nics_[t]) return nullptr;
  const auto found = on_rail_.find({hosts_[f], nics_[t]});
  return found == on_rail_.end() ? nullptr : &found->second;
}

bool PxnRoutes::IsNear(int from, int to) const {
  const int32_t rail = nics_[static_cast<size_t>(to)];
  return rail >= 0 && rail < 64 && (near_nics_[static_cast<size_t>(from)] >> rail & 1) != 0;
}

// Ranks that share the NIC on the receiver's rail take turns. A process of several ranks sends for
// nobody.
int PxnRoutes::SenderOf(int from, int to) const {
  const std::vector<int>* const on_rail = OnRailOf(from, to);
  if (on_rail == nullptr || (level_ == Level::kWhenUseful && IsNear(from, to))) return from;
  const int via = (*on_rail)[static_cast<size_t>(from + to) % on_rail->size()];
  return is_alone_[static_cast<size_t>(via)] ? via : from;
}

int32_t PxnRoutes::NicOf(int from, int to) const {
  return OnRailOf(from, to) != nullptr ? nics_[static_cast<size_t>(to)] : -1;
}

std::vector<std::pair<int, int>> PxnRoutes::PairsThrough(int via) const {
  std::vector<std::pair<int, int>> pairs;
  const int n = static_cast<int>(hosts_.size());
  for (int from = 0; from < n && any_; ++from) {
    if (from == via || hosts_[static_cast<size_t>(from)] != hosts_[static_cast<size_t>(via)])
      continue;
    for (int to = 0; to < n; ++to)
      if (SenderOf(from, to) == via) pairs.emplace_back(from, to);
  }
  return pairs;
}

}  // namespace tutti
