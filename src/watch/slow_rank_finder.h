#pragma once

// Finds slow ranks of a communicator from counters: ranks that are alive, but keep all others
// waiting (slow_rank_judge.h says when). Rank 0 says so in a warning when slow ranks are found and
// when they have recovered, and all ranks show the slow ranks on their boards (observe/record.h).
//
//   a collective of rank 0, 1 or n/2 waits for longer than a message takes
//     └─▶ rank 0 asks ──▶ a binomial tree of asks ──▶ each rank answers with its totals
//           └─▶ all answers are there: a round of the judge; the next ask comes after 200 ms
//
// At most a quarter of the ranks are slow, mostly those of a host; hence one of these three ranks
// waits. Ranks that never wait cost nothing: no timer runs and no message is sent. An ask that some
// rank does not answer is dropped. An ask also carries the slow ranks. Rank 0 ends to ask when no
// rank has waited since the last ask. While ranks are known to be slow, rank 0 goes on, in order to
// see their recovery; but after asks that found neither waits nor new collectives, the time to the
// next ask doubles, and a wait begins the asks anew.
//
// Messages go over existing links (watch_letters.cc) from rank to rank; an ask goes from a rank to
// its children in the tree, to each at a distance that is a power of two.
//
// The communicator owns the finder. All functions but OnWaited run on the loop's thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "sys/event_loop.h"
#include "watch/slow_rank_judge.h"
#include "watch/watch.h"

namespace tutti {

class SlowRankFinder final : public PaceListener {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 2;  // at least two
    // Returns the total of RunDelay. Called on the loop's thread.
    std::function<int64_t()> run_delay_ns = [] { return int64_t{0}; };
    std::function<int64_t()> now_ns = NowNs;
  };
  // The time between two asks.
  static constexpr int64_t kAskEveryNs = 200'000'000;
  // Slow ranks are told of once in this time, however often ranks become slow and recover.
  static constexpr int64_t kSayEveryNs = 600'000'000'000;
  // A rank that has never answered by the ask of this number, or rank 0 where another rank has told
  // of so many waits in vain, does not search for slow ranks.
  static constexpr uint64_t kPatience = 50;

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
    kWaits = 1,  // rank 1 or n/2 to rank 0: a collective has waited
    kAsk = 2,    // u64 number of the ask, SlowRecord without `since_ns`
    kTotals = 3  // u64 number of the ask, RankTotals
  };

  // The last answer of a rank.
  struct Answer {
    uint64_t ask = 0;  // the number of the ask; 0: there is no answer yet
    RankTotals totals;
  };

  void Begin();
  void Ask();
  void Look();
  void PassAsk(std::span<const std::byte> ask) const;
  void OnAsk(std::span<const std::byte> message);
  void OnTotals(int from, std::span<const std::byte> message);
  void TakeAnswer(int from, const RankTotals& totals);
  void JudgeAnswers();
  void SayNews();
  void SaySlow(const SlowRanks& slow);
  void WarnOfSilence();
  RankTotals Totals() const;
  observe::SlowRecord SlowNow() const;
  void Show(const observe::SlowRecord& slow);

  EventLoop& loop_;
  Watch& watch_;
  const Options options_;
  const int rank_;
  const int num_ranks_;
  const int64_t ask_every_ns_;

  // Of the ranks that tell rank 0 of waits.
  std::atomic<int64_t> quiet_until_ns_ = 0;  // rank 0 is asking, or has just been told
  std::atomic<bool> asked_ = false;          // an ask has come
  uint64_t told_ = 0;                        // how often rank 0 was told before the first ask

  // Of rank 0.
  std::atomic<bool> asking_ = false;  // a wait need not begin to ask
  SlowRankJudge judge_;
  EventLoop::TimerId timer_ = 0;
  bool ended_ = false;
  uint64_t number_ = 0;  // of the last ask
  std::vector<Answer> answers_;
  bool waited_ = false;     // a rank has waited, or
  bool moved_ = false;      // has begun collectives, as answers since the last look say
  bool told_slow_ = false;  // the last ask told of slow ranks
  int64_t interval_ns_ = 0;
  std::vector<int> said_ranks_;     // the slow ranks of the last warning that have not recovered
  std::optional<int64_t> said_ns_;  // the time of the last warning
};

}  // namespace tutti
