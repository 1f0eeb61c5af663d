#pragma once

// Finds slow ranks of a communicator from counters: ranks that are alive, but keep all others
// waiting (slow_rank_judge.h says when). Rank 0 says so in a warning when slow ranks are found and
// when they have recovered, and all ranks show the slow ranks on their boards (observe/record.h).
//
//   a collective of rank 0 or 1 waits for longer than a message takes
//     └─▶ rank 0 asks ──▶ a binomial tree of asks ──▶ each rank answers with its totals
//           └─▶ all answers are there: a round of the judge; the next ask comes after a while
//
// Where rank 0 is slow, rank 1 waits, and vice versa; hence these two ranks suffice to begin. Ranks
// that never wait cost nothing: no timer runs and no message is sent. Rank 0 asks again after 20 ms
// as long as a rank is under suspicion, and otherwise less and less often, up to three times a
// second. An ask that some rank does not answer is dropped. An ask also carries the slow ranks.
//
// Messages go over existing links (watch_letters.cc) from rank to rank; an ask goes from a rank to
// its children in the tree, to each at a distance that is a power of two.
//
// The communicator owns the finder. All functions but OnWaited run on the loop's thread.

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sys/event_loop.h"
#include "watch/slow_rank_judge.h"
#include "watch/watch.h"

namespace tutti {

class SlowRankFinder final : public PaceListener {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 2;  // at least two
  };
  // `loop` and `watch` must outlive the finder. REQUIRES: no operation has begun.
  SlowRankFinder(EventLoop& loop, Watch& watch, const Options& options);
  // REQUIRES: the caller is not on the loop's thread, and no operation is under way.
  ~SlowRankFinder() override;
  SlowRankFinder(const SlowRankFinder&) = delete;
  SlowRankFinder& operator=(const SlowRankFinder&) = delete;

  void OnWaited() override;
  void OnPace(int from, std::span<const std::byte> message) override;

 private:
  // The first byte of a message.
  enum class Kind : uint8_t {
    kWaits = 1,  // rank 1 to rank 0: a collective has waited
    kAsk = 2,    // u64 number of the ask, SlowRecord without `since_ns`
    kTotals = 3  // u64 number of the ask, RankTotals
  };

  void BeginToAsk();
  void Ask();
  void Look();
  void PassAsk(std::span<const std::byte> ask) const;
  void OnAsk(std::span<const std::byte> message);
  void OnTotals(int from, std::span<const std::byte> message);
  void JudgeAnswers();
  void SayNews(SlowRankJudge::News news);
  RankTotals Totals() const;
  observe::SlowRecord SlowNow() const;
  void Show(const observe::SlowRecord& slow);

  EventLoop& loop_;
  Watch& watch_;
  const int rank_;
  const int num_ranks_;
  // The shortest time between two asks: all answers pass through the loop of rank 0.
  const int64_t fewest_ns_;

  std::atomic<bool> asking_ = false;  // rank 0: the timer runs, or is about to
  int64_t told_ns_ = 0;               // rank 1: when OnWaited told rank 0 last

  // Of rank 0.
  SlowRankJudge judge_;
  EventLoop::TimerId timer_ = 0;
  bool ended_ = false;
  uint64_t number_ = 0;  // of the last ask
  std::vector<std::optional<RankTotals>> answers_;
  int64_t waited_ns_ = 0;   // by all ranks, at the last look
  uint64_t rounds_ = 0;     // of the judge, at the last look
  bool told_slow_ = false;  // the ask before the last look told of slow ranks
  std::vector<int> named_;
  int64_t interval_ns_ = 0;
};

}  // namespace tutti
