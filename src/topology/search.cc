#include "topology/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "topology/search_hops.h"
#include "topology/search_options.h"
#include "topology/search_walk.h"

namespace tutti::topology {
namespace {

// Returns a factor for the total bandwidth of a solution. Each channel costs blocks, memory and
// connections, so the factor of several channels is lower, the less bandwidth a channel has.
double WeightSize(size_t channels, Kbps bandwidth) {
  if (channels <= 1) return 1;
  return std::min(1.0, 0.7 + 0.03 * ToGbps(bandwidth));
}

// A channel above this bandwidth is split into two of half the bandwidth, for more blocks to work
// at once, as long as the channels stay few. Fewer are allowed between hosts, where each channel
// costs a connection per peer.
constexpr Kbps kSplitAbove = 32'000'000;
constexpr uint32_t kMostSplitInter = 8;

// Large machines need more looks for the same number of tries. The demanded steps grow by this
// number times the looks for one channel.
constexpr uint64_t kLooksPerChannel = 96;

// A group of trials with nearly the same total bandwidth.
struct Rung {
  std::vector<Trial> trials;
  Kbps total = 0;  // the highest total of the group
  std::vector<uint8_t> settled;
};

struct Found {
  Trial trial;
  std::vector<Draft> drafts;
  double weight = 1;
  Kbps bound = 0;

  Kbps Total() const {
    return static_cast<Kbps>(drafts.size()) *
           (trial.inter_host ? trial.bandwidth_inter : trial.bandwidth_intra);
  }
  double Score() const {
    const Kbps each = trial.inter_host ? trial.bandwidth_inter : trial.bandwidth_intra;
    return static_cast<double>(Total()) * weight * WeightSize(drafts.size(), each);
  }
};

struct Climb {
  std::vector<Rung>& rungs;  // highest total first
  double weight = 1;
  uint64_t end = 0;       // the climb stops when this many steps are left
  uint64_t patience = 0;  // steps for each trial
};

class Searcher {
 public:
  Searcher(const Graph& graph, const Paths& paths, const Demand& demand,
           std::span<const NodeIndex> devices, std::span<const NodeIndex> nets)
      : graph_(graph),
        demand_(demand),
        table_(graph, paths, devices, nets),
        walk_(table_),
        most_per_channel_(MostPerChannel(graph, devices)),
        straight_(devices.size() * (devices.size() + nets.size()) / 2 + 16),
        steps_(demand.steps + kLooksPerChannel * straight_),
        steps_left_(steps_) {}

  Result<Channels> Run();

 private:
  std::vector<Rung> ListRungs(const Option& option);
  void Improve(const Option& option, uint64_t steps);
  size_t Above(const Climb& climb) const;
  bool TryRung(Climb* climb, size_t index);
  bool TryOne(const Trial& trial, double weight, Kbps bound, uint64_t steps, bool* settled);
  void RaiseInside();
  void Stretch(Found* found) const;
  void Split(Found* found) const;
  Channels Describe(const Found& found) const;
  double ScoreToBeat() const { return best_ ? best_->Score() * (1 + 1e-6) : 0; }

  const Graph& graph_;
  const Demand& demand_;
  HopTable table_;
  Walk walk_;
  Kbps most_per_channel_;
  // number of looks for a channel when every look succeeds
  uint64_t straight_;
  uint64_t steps_;  // number of looks that may be taken in all
  uint64_t steps_left_;
  bool exhausted_ = false;
  std::optional<Found> best_;
};

// Returns the trials, with the most total bandwidth first. Among totals within a hundredth only a
// few are kept: once channels are found, Stretch gives them all the bandwidth of their links.
std::vector<Rung> Searcher::ListRungs(const Option& option) {
  constexpr double kStep = 1.01;
  constexpr size_t kPerStep = 3;
  // Totals below this part of the best total are not worth a try.
  constexpr double kLeastPart = 0.01;
  std::map<int, std::map<uint32_t, Trial>, std::greater<>> by_total;
  const double beat = ScoreToBeat() / option.weight;
  Trial trial = option.trial;
  for (const Kbps bandwidth : ListBandwidths(table_, demand_, most_per_channel_, trial)) {
    trial.bandwidth_intra = trial.bandwidth_inter = bandwidth;
    uint32_t low = 0;                          // fits
    uint32_t high = demand_.max_channels + 1;  // does not
    while (high - low > 1) {
      trial.channels = (low + high) / 2;
      (walk_.MayFit(trial) ? low : high) = trial.channels;
    }
    for (trial.channels = 1; trial.channels <= low; ++trial.channels) {
      const double total = static_cast<double>(trial.channels) * static_cast<double>(bandwidth);
      if (total <= beat) continue;
      auto& step = by_total[static_cast<int>(std::floor(std::log(total) / std::log(kStep)))];
      const auto [place, fresh] = step.try_emplace(trial.channels, trial);
      if (!fresh && place->second.bandwidth_intra < bandwidth) place->second = trial;
    }
  }
  std::vector<Rung> rungs;
  const auto total = [](const Trial& t) { return t.channels * t.bandwidth_intra; };
  for (const auto& [step, by_channels] : by_total) {
    Rung rung;
    for (const auto& [channels, one] : by_channels) {
      if (rung.trials.size() == kPerStep) break;
      rung.trials.push_back(one);
    }
    std::stable_sort(rung.trials.begin(), rung.trials.end(),
                     [&](const Trial& a, const Trial& b) { return total(a) > total(b); });
    rung.total = total(rung.trials.front());
    rung.settled.resize(rung.trials.size());
    if (!rungs.empty() &&
        static_cast<double>(rung.total) < static_cast<double>(rungs.front().total) * kLeastPart) {
      break;
    }
    rungs.push_back(std::move(rung));
  }
  return rungs;
}

// Looks for channels of this option that beat the best so far. The search halves the ladder of
// totals again and again, because a set of channels that fits at one total mostly fits below.
// Afterwards it tries the rungs above the best result with more patience, the highest first.
void Searcher::Improve(const Option& option, uint64_t steps) {
  std::vector<Rung> rungs = ListRungs(option);
  if (rungs.empty()) return;
  // Tries one channel, or a pair, with next to no bandwidth. When even this trial fails, no trial
  // can succeed.
  Trial least = option.trial;
  least.bandwidth_intra = least.bandwidth_inter = kGrain;
  if (least.cross_nic == 2) least.channels = 2;
  bool certain = false;
  const Kbps bound = rungs.front().total;
  if (!TryOne(least, option.weight, bound, std::min(steps, 256 * straight_), &certain)) return;
  Climb climb{rungs, option.weight, steps_left_ > steps ? steps_left_ - steps : 0};
  for (uint64_t patience = 32; patience <= 32768; patience *= 8) {
    climb.patience = patience * straight_;
    const size_t above = Above(climb);
    for (size_t i = 0; i < std::min<size_t>(above, 2); ++i) {
      if (TryRung(&climb, i)) break;
    }
    size_t low = 0;  // rungs before this one were tried and are too high
    size_t high = Above(climb);
    while (low < high && steps_left_ > climb.end) {
      const size_t middle = (low + high) / 2;
      if (TryRung(&climb, middle)) {
        high = std::min(middle, Above(climb));
      } else {
        low = middle + 1;
      }
    }
    bool all_settled = true;
    for (size_t i = 0; i < Above(climb); ++i) {
      if (patience > 32) (void)TryRung(&climb, i);
      const std::vector<uint8_t>& settled = rungs[i].settled;
      all_settled &= std::count(settled.begin(), settled.end(), uint8_t{0}) == 0;
    }
    if (all_settled) return;
    if (steps_left_ <= climb.end) break;
  }
  exhausted_ = true;
}

// Returns how many rungs, from the highest, would be better than the best so far.
size_t Searcher::Above(const Climb& climb) const {
  size_t count = 0;
  while (count < climb.rungs.size() &&
         static_cast<double>(climb.rungs[count].total) * climb.weight > ScoreToBeat()) {
    ++count;
  }
  return count;
}

// Returns true when one of the rung's trials found channels.
bool Searcher::TryRung(Climb* climb, size_t index) {
  Rung& rung = climb->rungs[index];
  for (size_t i = 0; i < rung.trials.size(); ++i) {
    const uint64_t spend =
        std::min(climb->patience, steps_left_ - std::min(steps_left_, climb->end));
    if (rung.settled[i] != 0 || spend == 0) continue;
    const Trial& trial = rung.trials[i];
    const double score = static_cast<double>(trial.channels * trial.bandwidth_intra) *
                         climb->weight * WeightSize(trial.channels, trial.bandwidth_intra);
    if (score <= ScoreToBeat()) {
      rung.settled[i] = 1;
      continue;
    }
    bool settled = false;
    const bool found = TryOne(trial, climb->weight, climb->rungs.front().total, spend, &settled);
    rung.settled[i] = settled ? 1 : 0;
    if (found) return true;
  }
  return false;
}

// Returns true when channels were found. `*settled` tells whether the answer is certain; it is not
// when the steps ran out.
bool Searcher::TryOne(const Trial& trial, double weight, Kbps bound, uint64_t steps,
                      bool* settled) {
  // Repeating channels finds the answer at once on uniform machines, and hides it on others. Each
  // way to search therefore gets its part of the steps.
  for (const auto& [replay, reverse] : {std::pair(true, true), {false, true}, {false, false}}) {
    uint64_t part = steps / 3 + 1;
    const uint64_t given = part;
    Found found{trial, {}, weight, bound};
    found.trial.replay = replay;
    found.trial.reverse = reverse;
    std::optional<std::vector<Draft>> drafts = walk_.Find(found.trial, &part);
    steps_left_ -= std::min(steps_left_, given - part);
    if (drafts) {
      found.drafts = std::move(*drafts);
      Stretch(&found);
      if (!best_ || found.Score() > best_->Score()) best_ = std::move(found);
      *settled = true;
      return true;
    }
    *settled = part > 0;
    if (*settled) break;
  }
  return false;
}

// Gives channels all the bandwidth that their links can bear.
void Searcher::Stretch(Found* found) const {
  std::vector<int64_t> inside(table_.capacities().size());  // loads, in fortieths
  std::vector<int64_t> outside(table_.capacities().size());
  for (const Draft& draft : found->drafts) {
    for (const Leg& leg : LegsOf(table_, found->trial.pattern, found->trial.inter_host, draft)) {
      for (const Use& use : table_.Uses(leg.hop)) {
        (leg.inter ? outside : inside)[use.resource] += leg.half ? use.load / 2 : use.load;
      }
    }
  }
  const bool is_ring = found->trial.pattern == Pattern::kRing;
  Trial& trial = found->trial;
  const bool together =
      is_ring || !trial.inter_host || trial.bandwidth_intra == trial.bandwidth_inter;
  Kbps both = most_per_channel_;
  for (size_t i = 0; i < inside.size(); ++i) {
    const int64_t load = inside[i] + outside[i];
    if (load > 0) both = std::min(both, table_.capacities()[i] * kOnce / load);
  }
  if (together) {
    trial.bandwidth_intra = trial.bandwidth_inter =
        std::max(trial.bandwidth_intra, both / kGrain * kGrain);
  }
  if (is_ring || !trial.inter_host) return;
  // A tree's inner links may carry twice the bandwidth of its exit, since the data goes up and
  // down.
  Kbps more = std::min(most_per_channel_, 2 * trial.bandwidth_inter);
  for (size_t i = 0; i < inside.size(); ++i) {
    const Kbps left = table_.capacities()[i] - trial.bandwidth_inter * outside[i] / kOnce;
    if (inside[i] > 0) more = std::min(more, left * kOnce / inside[i]);
  }
  trial.bandwidth_intra = std::max(trial.bandwidth_intra, more / kGrain * kGrain);
}

// Improves trees between hosts: with the bandwidth between hosts settled, looks for chains with
// more bandwidth inside.
void Searcher::RaiseInside() {
  if (!best_ || !demand_.inter_host || demand_.pattern == Pattern::kRing) return;
  std::vector<Kbps> bandwidths = ListBandwidths(table_, demand_, most_per_channel_, best_->trial);
  std::reverse(bandwidths.begin(), bandwidths.end());
  const Kbps most = std::min(most_per_channel_, 2 * best_->trial.bandwidth_inter);
  bandwidths.insert(bandwidths.begin(), most / kGrain * kGrain);
  const uint64_t each = steps_ / 20;
  for (const Kbps bandwidth : bandwidths) {
    if (bandwidth > most) continue;
    if (bandwidth <= best_->trial.bandwidth_intra) return;
    Found found = *best_;
    found.trial.bandwidth_intra = bandwidth;
    found.trial.channels = static_cast<uint32_t>(found.drafts.size());
    if (!walk_.MayFit(found.trial)) continue;
    uint64_t part = std::min(each, steps_left_);
    const uint64_t given = part;
    std::optional<std::vector<Draft>> drafts = walk_.Find(found.trial, &part);
    steps_left_ -= given - part;
    if (!drafts) continue;
    found.drafts = std::move(*drafts);
    Stretch(&found);
    best_ = std::move(found);
    return;
  }
}

// Splits each channel in two where the bandwidth suffices for two.
void Searcher::Split(Found* found) const {
  const bool inter = demand_.inter_host;
  Trial& trial = found->trial;
  while (!found->drafts.empty()) {
    const uint32_t twice = static_cast<uint32_t>(found->drafts.size()) * 2;
    const Kbps each = inter ? trial.bandwidth_inter : trial.bandwidth_intra;
    const bool wanted = found->drafts.size() < demand_.min_channels ||
                        (each > kSplitAbove && (!inter || twice <= kMostSplitInter));
    // Pairs that cross NICs must stay side by side.
    if (!wanted || twice > demand_.max_channels) return;
    if (trial.cross_nic == 2 && found->drafts.size() % 2 == 1) return;
    const std::vector<Draft> copies = found->drafts;
    found->drafts.insert(found->drafts.end(), copies.begin(), copies.end());
    trial.bandwidth_intra = trial.bandwidth_intra / 2 / kGrain * kGrain;
    trial.bandwidth_inter = trial.bandwidth_inter / 2 / kGrain * kGrain;
  }
}

Channels Searcher::Describe(const Found& found) const {
  Channels result;
  const Trial& trial = found.trial;
  result.pattern = trial.pattern;
  result.inter_host = trial.inter_host;
  result.bandwidth_intra_gbps = ToGbps(trial.bandwidth_intra);
  result.bandwidth_inter_gbps =
      ToGbps(trial.inter_host ? trial.bandwidth_inter : trial.bandwidth_intra);
  result.bound_gbps = std::max(ToGbps(found.bound), ToGbps(found.Total()));
  result.steps = steps_ - steps_left_;
  result.exhausted = exhausted_;
  for (const Draft& draft : found.drafts) {
    for (const Leg& leg : LegsOf(table_, trial.pattern, trial.inter_host, draft)) {
      PathKind& worst = leg.inter ? result.kind_inter : result.kind_intra;
      worst = std::max(worst, leg.hop.kind);
    }
    Channel channel;
    for (const uint32_t device : draft.devices) channel.devices.push_back(table_.devices()[device]);
    if (trial.inter_host) {
      channel.net_in = table_.nets()[draft.net_in];
      channel.net_out = table_.nets()[draft.net_out];
      if (table_.port(draft.net_in) != table_.port(draft.net_out)) {
        result.cross_nic = trial.cross_nic;
      }
    }
    result.channels.push_back(std::move(channel));
    result.same_channels &= result.channels.back() == result.channels.front();
  }
  return result;
}

Result<Channels> Searcher::Run() {
  const std::vector<Option> options = ListOptions(table_, demand_);
  for (const Option& option : options) Improve(option, std::max(steps_left_ / 3, steps_ / 50));
  if (!best_) {
    return InvalidUsage(
        "no {} joins the {} devices of this machine{}: some have no path to the others",
        demand_.pattern == Pattern::kRing ? "ring" : "tree", table_.device_count(),
        demand_.inter_host ? " and its network ports" : "");
  }
  Split(&*best_);
  Stretch(&*best_);
  RaiseInside();
  return Describe(*best_);
}

}  // namespace

Result<Channels> Search(const Graph& graph, const Paths& paths, const Demand& demand) {
  const std::span<const NodeIndex> all = graph.Devices();
  const std::span<const NodeIndex> devices =
      demand.devices.empty() ? all : std::span<const NodeIndex>(demand.devices);
  if (devices.empty()) return InvalidUsage("the machine has no GPU and no host device to join");
  if (devices.size() > kMostSearchedDevices) {
    return InvalidUsage("the machine has {} devices; channels are searched for up to {}",
                        devices.size(), kMostSearchedDevices);
  }
  if (demand.max_channels == 0 || demand.max_channels > 64) {
    return InvalidArgument("at most {} channels are asked for; it must be between 1 and 64",
                           demand.max_channels);
  }
  const auto nets = graph.OfKind(NodeKind::kNet);
  if (demand.inter_host && nets.empty()) {
    return InvalidUsage("the job has other hosts, but this machine has no network port");
  }
  return Searcher(graph, paths, demand, devices,
                  demand.inter_host ? nets : std::span<const NodeIndex>())
      .Run();
}

}  // namespace tutti::topology
