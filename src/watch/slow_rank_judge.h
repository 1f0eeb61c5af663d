#pragma once

// Decides from counters whether a rank is slow: alive, but the rank for which all others wait.
//
// In a collective in which every rank waits for every other, the slowest rank waits least. Each
// rank counts the time for which its collectives waited; the judge gets the totals of all ranks
// again and again, and looks at the growth between two of them, a round:
//
//   waiting share of a rank   waited time / time of the round
//   cost                      the median share minus the share of the rank that waits least
//   slow ranks of a round     all ranks whose share is nearer to the least share than to the median;
//                             at most a quarter of the ranks (at least one)
//
// A round speaks against these ranks where their cost is at least a fifth of the time. A loaded
// machine disturbs now this rank and now that one, and therefore a rank is slow only when twelve
// rounds in a row, of two and a half seconds together, speak against the rank. Time for which the
// threads of a slow rank wanted a processor and had none, outside of the rank's own waits, is the
// machine's. Where the cost in the row is a fifth only with this time, the cost must be two fifths,
// and the row must last five seconds, because schedulers even out such differences within seconds.
// Where this time is unknown, all time counts as the machine's.
//
// A rank that was found has recovered after twelve rounds in a row in which the rank's cost is less
// than a tenth of the time.
//
// A value without clocks, for one thread.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/work.h"

namespace tutti {

// Returns whether every rank needs as much data of each rank as every other rank, and the slowest
// rank therefore waits least. Where the parts have various lengths, a rank with more data is not
// slow.
constexpr bool AllWaitForAll(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAlltoAll:
    case Collective::kBarrier:
      return true;
    default:
      return false;
  }
}

// The totals of a rank since its communicator was made.
struct RankTotals {
  int64_t now_ns = 0;  // a monotonic clock of the rank's own host
  uint64_t collectives = 0;
  int64_t waited_ns = 0;  // for other ranks, in collectives
  // The time for which threads of the rank's process wanted a processor; 0: unknown.
  int64_t without_core_ns = 0;
};

// What slow ranks cost the job.
struct SlowRanks {
  std::vector<int> ranks;
  double share = 0;  // of the time
  int64_t per_collective_ns = 0;
  // The time for which these ranks wanted a processor; nothing: unknown.
  std::optional<double> share_without_core;
  uint64_t collectives = 0;  // over which this was seen
};

class SlowRankJudge {
 public:
  static constexpr double kShareOfSlow = 0.2;
  static constexpr double kShareOfSlowUnderLoad = 0.4;
  static constexpr double kShareOfRecovered = 0.1;
  static constexpr int kRounds = 12;
  // A single late collective is no evidence. Twelve rounds of long collectives would take minutes.
  static constexpr uint64_t kFewestCollectives = 4;
  static constexpr uint64_t kFewestLongCollectives = 2;
  static constexpr int64_t kLongRoundNs = 1'000'000'000;
  // A shorter round would show the time slices of the scheduler.
  static constexpr int64_t kShortestRoundNs = 10'000'000;
  // A rank that is slow for a shorter time costs a job little, and nobody can look at the rank.
  static constexpr int64_t kShortestRowNs = 2'500'000'000;
  static constexpr int64_t kShortestRowUnderLoadNs = 5'000'000'000;

  // Takes the totals of all ranks, by rank. Totals that make no whole round yet are kept.
  void Add(std::span<const RankTotals> totals);
  // Returns the slow ranks that were found and have not recovered; null: none.
  const SlowRanks* slow() const { return slow_ ? &*slow_ : nullptr; }

 private:
  // The growth of the totals in a round.
  struct Round {
    std::vector<double> shares;                       // the waiting shares, by rank
    std::vector<std::optional<double>> without_core;  // nothing: unknown
    int64_t ns = 0;
    uint64_t collectives = 0;
    double median = 0;
  };
  // Rounds in a row that speak against the same ranks.
  struct Row {
    int rounds = 0;
    std::vector<int> ranks;
    int64_t ns = 0;
    double cost_ns = 0;
    double without_core_ns = 0;
    bool knows_load = true;
    uint64_t collectives = 0;
  };
  Round Compare(std::span<const RankTotals> totals) const;
  void AddToRow(const Round& round);
  void FollowRow();
  void FollowRecovery(const Round& round);

  std::vector<RankTotals> base_;  // the totals at the begin of the round; empty before the first
  Row row_;
  std::optional<SlowRanks> slow_;
  int good_rounds_ = 0;  // the row of rounds in which the slow ranks cost little
};

}  // namespace tutti
