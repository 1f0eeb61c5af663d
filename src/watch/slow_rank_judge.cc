#include "watch/slow_rank_judge.h"

#include <algorithm>
#include <iterator>

namespace tutti {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Returns whether all totals have grown by at least a round.
bool IsRound(std::span<const RankTotals> before, std::span<const RankTotals> now) {
  for (size_t i = 0; i < now.size(); ++i) {
    const int64_t ns = now[i].now_ns - before[i].now_ns;
    const uint64_t fewest = ns < SlowRankJudge::kLongRoundNs
                                ? SlowRankJudge::kFewestCollectives
                                : SlowRankJudge::kFewestLongCollectives;
    if (ns < SlowRankJudge::kShortestRoundNs || now[i].collectives < before[i].collectives + fewest)
      return false;
  }
  return true;
}

}  // namespace

void SlowRankJudge::Add(std::span<const RankTotals> totals) {
  if (totals.size() < 2) return;
  if (base_.size() != totals.size()) base_.assign(totals.begin(), totals.end());
  if (!IsRound(base_, totals)) return;
  const Round round = Compare(totals);
  base_.assign(totals.begin(), totals.end());
  AddToRow(round);
  FollowRecovery(round);
  FollowRow();
}

SlowRankJudge::Round SlowRankJudge::Compare(std::span<const RankTotals> totals) const {
  Round round;
  round.ns = totals[0].now_ns - base_[0].now_ns;
  round.collectives = totals[0].collectives - base_[0].collectives;
  for (size_t i = 0; i < totals.size(); ++i) {
    const auto time = static_cast<double>(totals[i].now_ns - base_[i].now_ns);
    const auto share = [&](int64_t now, int64_t before) {
      return std::clamp(static_cast<double>(now - before) / time, 0.0, 1.0);
    };
    round.shares.push_back(share(totals[i].waited_ns, base_[i].waited_ns));
    const int64_t before_ns = base_[i].without_core_ns, now_ns = totals[i].without_core_ns;
    round.without_core.emplace_back();
    if (before_ns > 0 && now_ns >= before_ns) round.without_core.back() = share(now_ns, before_ns);
  }
  round.median = Median(round.shares);
  return round;
}

// Adds a round to the row, or begins a row anew.
void SlowRankJudge::AddToRow(const Round& round) {
  const double least = *std::ranges::min_element(round.shares);
  const double cost = round.median - least;
  std::vector<int> ranks;
  double without_core = 1;
  bool knows_load = true;
  for (size_t i = 0; i < round.shares.size(); ++i) {
    if (round.shares[i] >= least + cost / 2) continue;
    ranks.push_back(static_cast<int>(i));
    // A wait that yields wants a processor all the time, and delays nobody.
    const double mine = round.without_core[i].value_or(1) - round.shares[i];
    without_core = std::min(without_core, std::max(0.0, mine));
    knows_load &= round.without_core[i].has_value();
  }
  const bool few = !ranks.empty() && ranks.size() <= std::max<size_t>(1, round.shares.size() / 4);
  std::vector<int> common;
  std::ranges::set_intersection(ranks, row_.ranks, std::back_inserter(common));
  const bool speaks = few && cost >= kShareOfSlow;
  if (!speaks || common.empty()) row_ = Row();
  if (!speaks) return;
  row_.ranks = common.empty() ? std::move(ranks) : std::move(common);
  ++row_.rounds;
  row_.ns += round.ns;
  row_.cost_ns += cost * static_cast<double>(round.ns);
  row_.without_core_ns += without_core * static_cast<double>(round.ns);
  row_.knows_load &= knows_load;
  row_.collectives += round.collectives;
}

// A row that is complete gives way to the next row, which tells the cost of its own time.
void SlowRankJudge::FollowRow() {
  if (row_.rounds < kRounds || row_.ns < kShortestRowNs) return;
  const auto ns = static_cast<double>(row_.ns);
  const bool own = row_.cost_ns - row_.without_core_ns >= kShareOfSlow * ns;
  const bool loaded =
      row_.cost_ns >= kShareOfSlowUnderLoad * ns && row_.ns >= kShortestRowUnderLoadNs;
  if (!own && !loaded) return;
  slow_ = SlowRanks{.ranks = row_.ranks,
                    .share = row_.cost_ns / ns,
                    .per_collective_ns =
                        static_cast<int64_t>(row_.cost_ns / static_cast<double>(row_.collectives)),
                    .share_without_core = {},
                    .collectives = row_.collectives};
  if (row_.knows_load) slow_->share_without_core = row_.without_core_ns / ns;
  row_ = Row();
  good_rounds_ = 0;
}

void SlowRankJudge::FollowRecovery(const Round& round) {
  if (!slow_) return;
  double least = 1;
  for (const int rank : slow_->ranks)
    least = std::min(least, round.shares[static_cast<size_t>(rank)]);
  good_rounds_ = round.median - least < kShareOfRecovered ? good_rounds_ + 1 : 0;
  if (good_rounds_ < kRounds) return;
  slow_.reset();
  good_rounds_ = 0;
}

}  // namespace tutti
