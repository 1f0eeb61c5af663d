#include "topology/search_walk.h"

#include <algorithm>
#include <numeric>

namespace tutti::topology {
namespace {

constexpr uint32_t kNoLink = UINT32_MAX;  // a path that crosses no link and has no limit

void AddOnce(std::vector<uint32_t>* list, uint32_t value) {
  if (std::find(list->begin(), list->end(), value) == list->end()) list->push_back(value);
}

}  // namespace

std::vector<Leg> LegsOf(const HopTable& table, Pattern pattern, bool inter_host,
                        const Draft& draft) {
  std::vector<Leg> legs;
  const std::vector<uint32_t>& devices = draft.devices;
  for (size_t i = 0; i + 1 < devices.size(); ++i) {
    legs.push_back({table.Between(devices[i], devices[i + 1])});
  }
  if (!inter_host) {
    if (pattern == Pattern::kRing && devices.size() > 1) {
      legs.push_back({table.Between(devices.back(), devices.front())});
    }
    return legs;
  }
  legs.push_back({table.In(draft.net_in, devices.front()), true});
  const auto add_out = [&](uint32_t device, bool half) {
    legs.push_back({table.Out(device, draft.net_out), true, half});
  };
  const uint32_t second = devices.size() > 1 ? devices[1] : devices[0];
  if (pattern == Pattern::kRing) add_out(devices.back(), false);
  if (pattern == Pattern::kTree) add_out(devices.front(), false);
  if (pattern == Pattern::kSplitTree) add_out(second, false);
  if (pattern == Pattern::kBalancedTree) {
    add_out(devices.front(), true);
    add_out(second, true);
  }
  return legs;
}

Walk::Walk(const HopTable& table)
    : table_(table),
      exits_(table.device_count()),
      entries_(table.device_count()),
      visited_(table.device_count()),
      is_end_(table.device_count()),
      starts_(table.device_count()),
      net_starts_(table.net_count()) {}

std::optional<std::vector<Draft>> Walk::Find(const Trial& trial, uint64_t* steps) {
  Begin(trial);
  steps_left_ = *steps;
  const bool found = NextChannel();
  *steps = steps_left_;
  if (!found) return std::nullopt;
  return laid_;
}

bool Walk::MayFit(const Trial& trial) {
  Begin(trial);
  return CountsFit(trial.channels) && (!trial.inter_host || PortsFit());
}

void Walk::Begin(const Trial& trial) {
  trial_ = trial;
  left_.assign(table_.capacities().begin(), table_.capacities().end());
  laid_.clear();
  candidates_.clear();
  std::fill(starts_.begin(), starts_.end(), 0);
  std::fill(net_starts_.begin(), net_starts_.end(), 0);
  if (exits_kind_ != trial.kind_intra) FindExits();
  if (trial.inter_host && ports_kind_ != trial.kind_inter) FindPorts();
}

void Walk::FindExits() {
  const size_t count = table_.device_count();
  exits_kind_ = trial_.kind_intra;
  for (size_t i = 0; i < count; ++i) {
    exits_[i].clear();
    entries_[i].clear();
  }
  for (size_t from = 0; from < count; ++from) {
    for (size_t to = 0; to < count; ++to) {
      const Hop& hop = table_.Between(from, to);
      if (from == to || hop.kind > trial_.kind_intra) continue;
      const auto uses = table_.Uses(hop);
      AddOnce(&exits_[from], uses.empty() ? kNoLink : uses.front().resource);
      AddOnce(&entries_[to], uses.empty() ? kNoLink : uses.back().resource);
    }
  }
}

// Returns how many hops of `channels` channels have bandwidth left on `ways`, the links by which
// each device is entered or left, summed over the devices.
uint64_t Walk::HopsThrough(const std::vector<std::vector<uint32_t>>& ways,
                           uint32_t channels) const {
  uint64_t sum = 0;
  const bool each_needs_all = !trial_.inter_host && trial_.pattern == Pattern::kRing;
  for (const std::vector<uint32_t>& links : ways) {
    uint64_t open = 0;
    for (const uint32_t link : links) {
      open +=
          link == kNoLink ? channels : static_cast<uint64_t>(left_[link] / trial_.bandwidth_intra);
    }
    if (each_needs_all && open < channels) return 0;
    sum += std::min<uint64_t>(open, channels);
  }
  return sum;
}

bool Walk::CountsFit(uint32_t channels) const {
  const size_t count = table_.device_count();
  if (count < 2) return true;
  const uint64_t need = static_cast<uint64_t>(channels) * (count - 1);
  return HopsThrough(exits_, channels) >= need && HopsThrough(entries_, channels) >= need;
}

void Walk::FindPorts() {
  std::vector<Kbps> in(table_.port_count());
  std::vector<Kbps> out(table_.port_count());
  ports_kind_ = trial_.kind_inter;
  for (size_t net = 0; net < table_.net_count(); ++net) {
    Kbps best_in = 0;
    Kbps best_out = 0;
    for (size_t device = 0; device < table_.device_count(); ++device) {
      const Hop& way_in = table_.In(net, device);
      const Hop& way_out = table_.Out(device, net);
      if (way_in.kind <= trial_.kind_inter) best_in = std::max(best_in, Left(way_in));
      if (way_out.kind <= trial_.kind_inter) best_out = std::max(best_out, Left(way_out));
    }
    in[table_.port(net)] += best_in;
    out[table_.port(net)] += best_out;
  }
  const size_t first = table_.capacities().size() - 2 * table_.port_count();
  ports_in_.clear();
  ports_out_.clear();
  for (size_t port = 0; port < table_.port_count(); ++port) {
    ports_in_.push_back(std::min(in[port], left_[first + 2 * port]));
    ports_out_.push_back(std::min(out[port], left_[first + 2 * port + 1]));
  }
}

bool Walk::PortsFit() const {
  Kbps channels_in = 0;
  Kbps channels_out = 0;
  for (const Kbps most : ports_in_) channels_in += most / trial_.bandwidth_inter;
  for (const Kbps most : ports_out_) channels_out += most / trial_.bandwidth_inter;
  return std::min(channels_in, channels_out) >= static_cast<Kbps>(trial_.channels);
}

bool Walk::NextChannel() {
  if (laid_.size() == trial_.channels) return true;
  if (!laid_.empty()) {
    const Draft last = laid_.back();
    if (trial_.replay && Replay(last)) return true;
    if (trial_.reverse && (!trial_.inter_host || trial_.pattern == Pattern::kRing)) {
      Draft back = last;
      std::reverse(back.devices.begin(), back.devices.end());
      // A ring in one host starts at the same device as the last ring: only the direction changes.
      if (!trial_.inter_host && trial_.pattern == Pattern::kRing) {
        std::rotate(back.devices.begin(), back.devices.end() - 1, back.devices.end());
      }
      std::swap(back.net_in, back.net_out);
      if (Replay(back)) return true;
    }
  }
  draft_ = {};
  std::fill(visited_.begin(), visited_.end(), uint8_t{0});
  candidates_.clear();
  return trial_.inter_host ? StartFromNet() : StartInside();
}

// Lays a channel that is already known, and all remaining channels after it.
bool Walk::Replay(const Draft& draft) {
  const std::vector<Leg> legs = LegsOf(table_, trial_.pattern, trial_.inter_host, draft);
  if (trial_.inter_host && !MayCross(draft.net_in, draft.net_out)) return false;
  if (!Spend(legs.size())) return false;
  size_t taken = 0;
  const auto bandwidth = [&](const Leg& leg) {
    const Kbps whole = leg.inter ? trial_.bandwidth_inter : trial_.bandwidth_intra;
    return leg.half ? whole / 2 : whole;
  };
  while (taken < legs.size() &&
         legs[taken].hop.kind <= (legs[taken].inter ? trial_.kind_inter : trial_.kind_intra) &&
         Take(legs[taken].hop, bandwidth(legs[taken]))) {
    ++taken;
  }
  if (taken == legs.size()) {
    ++starts_[draft.devices.front()];
    if (trial_.inter_host) ++net_starts_[draft.net_in];
    draft_ = draft;
    if (Done()) return true;
    --starts_[draft.devices.front()];
    if (trial_.inter_host) --net_starts_[draft.net_in];
  }
  while (taken > 0) {
    --taken;
    Give(legs[taken].hop, bandwidth(legs[taken]));
  }
  return false;
}

bool Walk::StartInside() {
  const uint32_t count = static_cast<uint32_t>(table_.device_count());
  // A ring may start anywhere. Chains start at each device in turn, for all devices to be spared
  // the exit once.
  const uint32_t tries = trial_.pattern == Pattern::kRing ? 1 : count;
  for (uint32_t i = 0; i < tries; ++i) {
    const uint32_t turn =
        trial_.pattern == Pattern::kRing ? 0 : static_cast<uint32_t>(laid_.size());
    const uint32_t device = (turn + i) % count;
    if (!Spend(1)) return false;
    draft_.devices.push_back(device);
    visited_[device] = 1;
    if (NextHop()) return true;
    visited_[device] = 0;
    draft_.devices.pop_back();
  }
  return false;
}

std::vector<uint32_t> Walk::NetsByUse() const {
  std::vector<uint32_t> nets(table_.net_count());
  std::iota(nets.begin(), nets.end(), 0U);
  std::stable_sort(nets.begin(), nets.end(),
                   [this](uint32_t a, uint32_t b) { return net_starts_[a] < net_starts_[b]; });
  return nets;
}

bool Walk::StartFromNet() {
  const bool back_on_its_rail =
      trial_.cross_nic == 2 && trial_.pattern == Pattern::kRing && laid_.size() % 2 == 1;
  for (const uint32_t net : NetsByUse()) {
    if (back_on_its_rail && net != laid_.back().net_out) continue;
    std::vector<Candidate> near;
    for (uint32_t device = 0; device < table_.device_count(); ++device) {
      if (!Spend(1)) return false;
      const Hop& hop = table_.In(net, device);
      if (!Fits(hop, trial_.kind_inter, trial_.bandwidth_inter)) continue;
      near.push_back({static_cast<uint64_t>(hop.kind) << 32 | starts_[device], device, device});
    }
    std::stable_sort(near.begin(), near.end(),
                     [](const Candidate& a, const Candidate& b) { return a.order < b.order; });
    for (const Candidate& candidate : near) {
      if (StartAt(net, candidate.device)) return true;
    }
  }
  return false;
}

bool Walk::StartAt(uint32_t net, uint32_t device) {
  const Hop& hop = table_.In(net, device);
  if (!Take(hop, trial_.bandwidth_inter)) return false;
  draft_ = {{device}, net, net};
  const Hop& out = table_.Out(device, net);
  const Kbps share = TreeShare(0);
  const bool fits = share == 0 || (out.kind <= trial_.kind_inter && Take(out, share));
  if (fits) {
    visited_[device] = 1;
    ++starts_[device];
    ++net_starts_[net];
    if (trial_.pattern == Pattern::kRing) MarkEnds();
    if ((trial_.pattern != Pattern::kRing || ends_left_ > 0 || table_.device_count() == 1) &&
        NextHop()) {
      return true;
    }
    --net_starts_[net];
    --starts_[device];
    visited_[device] = 0;
    if (share != 0) Give(out, share);
  }
  Give(hop, trial_.bandwidth_inter);
  draft_ = {};
  return false;
}

// Returns how much the device at place `depth` of a tree sends out of the host; 0 for nothing.
Kbps Walk::TreeShare(size_t depth) const {
  const Kbps whole = trial_.bandwidth_inter;
  if (!trial_.inter_host || depth > 1) return 0;
  const bool alone = table_.device_count() == 1;
  switch (trial_.pattern) {
    case Pattern::kRing:
      return 0;
    case Pattern::kTree:
      return depth == 0 ? whole : 0;
    case Pattern::kSplitTree:
      return (depth == 1) != alone ? whole : 0;
    case Pattern::kBalancedTree:
      return alone ? whole : whole / 2;
  }
  return 0;
}

// Returns whether the current channel may leave by `net_out` after it entered by `net_in`.
bool Walk::MayCross(uint32_t net_in, uint32_t net_out) const {
  if (trial_.pattern != Pattern::kRing) return net_in == net_out;
  if (trial_.cross_nic == 1) return true;
  if (trial_.cross_nic == 2) {
    // Channels go in pairs of opposite direction; the last of an odd number has no partner.
    if (laid_.size() % 2 == 1) {
      return net_in == laid_.back().net_out && net_out == laid_.back().net_in;
    }
    if (laid_.size() + 1 < trial_.channels) return true;
  }
  return table_.port(net_in) == table_.port(net_out);
}

void Walk::MarkEnds() {
  ends_left_ = 0;
  for (uint32_t device = 0; device < table_.device_count(); ++device) {
    is_end_[device] = 0;
    for (uint32_t net = 0; net < table_.net_count() && is_end_[device] == 0; ++net) {
      if (!MayCross(draft_.net_in, net)) continue;
      if (Fits(table_.Out(device, net), trial_.kind_inter, trial_.bandwidth_inter)) {
        is_end_[device] = 1;
      }
    }
    if (is_end_[device] != 0 && visited_[device] == 0) ++ends_left_;
  }
}

bool Walk::NextHop() {
  if (draft_.devices.size() == table_.device_count()) return Close();
  const size_t first = candidates_.size();
  if (!Spend(table_.device_count() - draft_.devices.size())) return false;
  ListCandidates(draft_.devices.back());
  std::sort(candidates_.begin() + static_cast<std::ptrdiff_t>(first), candidates_.end(),
            [](const Candidate& a, const Candidate& b) {
              return a.order != b.order ? a.order < b.order : a.tie < b.tie;
            });
  for (size_t i = first; i < candidates_.size(); ++i) {
    if (TryHop(candidates_[i].device)) return true;
  }
  candidates_.resize(first);
  return false;
}

// Lists candidates: nearest kind first, devices that a ring needs as its end last. Equal candidates
// are ordered by the bandwidth that is left, in order to spread the channels; for the first
// channel, by the order of the machine.
void Walk::ListCandidates(uint32_t from) {
  const uint32_t count = static_cast<uint32_t>(table_.device_count());
  const bool ends = trial_.inter_host && trial_.pattern == Pattern::kRing;
  constexpr uint64_t kMostLeft = (uint64_t{1} << 40) - 1;
  for (uint32_t distance = 1; distance < count; ++distance) {
    const uint32_t device = (from + distance) % count;
    if (visited_[device] != 0) continue;
    const Hop& hop = table_.Between(from, device);
    if (hop.kind > trial_.kind_intra) continue;
    const Kbps left = Left(hop);
    if (left < trial_.bandwidth_intra) continue;
    const auto want_much = [&](Kbps much) {
      return laid_.empty() ? 0 : kMostLeft - std::min(kMostLeft, static_cast<uint64_t>(much));
    };
    const uint64_t end = ends && is_end_[device] != 0 ? 1 : 0;
    const uint64_t kind = static_cast<uint64_t>(hop.kind);
    candidates_.push_back({kind << 41 | end << 40 | want_much(left),
                           want_much(table_.Most(hop)) << 16 | distance, device});
  }
}

bool Walk::TryHop(uint32_t device) {
  const size_t depth = draft_.devices.size();
  const bool ends = trial_.inter_host && trial_.pattern == Pattern::kRing;
  const bool last = depth + 1 == table_.device_count();
  if (ends && is_end_[device] != 0 && ends_left_ == 1 && !last) return false;
  const Hop& hop = table_.Between(draft_.devices.back(), device);
  if (!Take(hop, trial_.bandwidth_intra)) return false;
  const Kbps share = TreeShare(depth);
  bool fits = true;
  const Hop* out = nullptr;
  if (share != 0) {
    out = &table_.Out(device, draft_.net_in);
    fits = out->kind <= trial_.kind_inter && Take(*out, share);
  }
  if (fits) {
    visited_[device] = 1;
    draft_.devices.push_back(device);
    if (ends && is_end_[device] != 0) --ends_left_;
    if (NextHop()) return true;
    if (ends && is_end_[device] != 0) ++ends_left_;
    draft_.devices.pop_back();
    visited_[device] = 0;
    if (share != 0) Give(*out, share);
  }
  Give(hop, trial_.bandwidth_intra);
  return false;
}

bool Walk::Close() {
  if (trial_.pattern != Pattern::kRing) return Done();
  if (trial_.inter_host) {
    // A channel leaves by the NIC of its entry where it may.
    if (CloseBy(draft_.net_in)) return true;
    const uint32_t net_in = draft_.net_in;
    for (const uint32_t net : NetsByUse()) {
      if (net != net_in && MayCross(net_in, net) && CloseBy(net)) return true;
    }
    return false;
  }
  if (draft_.devices.size() == 1) return Done();
  const Hop& hop = table_.Between(draft_.devices.back(), draft_.devices.front());
  if (hop.kind > trial_.kind_intra || !Take(hop, trial_.bandwidth_intra)) return false;
  if (Done()) return true;
  Give(hop, trial_.bandwidth_intra);
  return false;
}

bool Walk::CloseBy(uint32_t net) {
  const Hop& hop = table_.Out(draft_.devices.back(), net);
  if (!Spend(1) || !MayCross(draft_.net_in, net)) return false;
  if (hop.kind > trial_.kind_inter || !Take(hop, trial_.bandwidth_inter)) return false;
  const uint32_t before = draft_.net_out;
  draft_.net_out = net;
  if (Done()) return true;
  draft_.net_out = before;
  Give(hop, trial_.bandwidth_inter);
  return false;
}

// Finishes a laid channel and goes on to the next. When no set of further channels fits, the
// channel is as before.
bool Walk::Done() {
  std::vector<Candidate> candidates = std::move(candidates_);
  candidates_.clear();
  const std::vector<uint8_t> is_end = is_end_;
  const uint32_t ends_left = ends_left_;
  laid_.push_back(draft_);
  const uint32_t remaining = trial_.channels - static_cast<uint32_t>(laid_.size());
  if (CountsFit(remaining) && NextChannel()) return true;
  draft_ = std::move(laid_.back());
  laid_.pop_back();
  candidates_ = std::move(candidates);
  is_end_ = is_end;
  ends_left_ = ends_left;
  for (const uint32_t device : draft_.devices) visited_[device] = 1;
  return false;
}

bool Walk::Take(const Hop& hop, Kbps bandwidth) {
  const auto uses = table_.Uses(hop);
  for (size_t i = 0; i < uses.size(); ++i) {
    const Kbps cost = Cost(bandwidth, uses[i].load);
    if (left_[uses[i].resource] < cost) {
      for (size_t j = 0; j < i; ++j) left_[uses[j].resource] += Cost(bandwidth, uses[j].load);
      return false;
    }
    left_[uses[i].resource] -= cost;
  }
  return true;
}

void Walk::Give(const Hop& hop, Kbps bandwidth) {
  for (const Use& use : table_.Uses(hop)) left_[use.resource] += Cost(bandwidth, use.load);
}

Kbps Walk::Left(const Hop& hop) const {
  Kbps most = INT64_MAX;
  for (const Use& use : table_.Uses(hop)) {
    most = std::min(most, left_[use.resource] * kOnce / use.load);
  }
  return most;
}

bool Walk::Spend(uint64_t steps) {
  if (steps_left_ < steps) {
    steps_left_ = 0;
    return false;
  }
  steps_left_ -= steps;
  return true;
}

}  // namespace tutti::topology
