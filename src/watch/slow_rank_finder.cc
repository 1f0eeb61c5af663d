#include "watch/slow_rank_finder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/log.h"
#include "bootstrap/wire.h"

namespace tutti {
namespace {

// An answer takes some microseconds of the loop's thread of rank 0; asks then take at most some
// hundredths of the thread.
constexpr int64_t kNsPerRank = 200'000;
// Larger totals than a rank can have in a century come from a broken peer.
constexpr uint64_t kMostTotal = uint64_t{1} << 62;

// Returns whether the numbers of ranks are possible.
bool IsSane(const observe::SlowRecord& slow, int num_ranks) {
  return slow.num_ranks >= 0 && slow.num_ranks <= num_ranks &&
         std::ranges::all_of(slow.ranks, [&](int r) { return r >= 0 && r < num_ranks; });
}

// Returns the number of collectives in which every rank waits for every other.
uint64_t CountCollectives(const observe::OperationRecord& operations) {
  uint64_t sum = 0;
  for (int i = 0; i < kNumCollectives; ++i)
    if (AllWaitForAll(static_cast<Collective>(i)))
      sum += operations.begun[static_cast<size_t>(i)].load(std::memory_order_relaxed);
  return sum;
}

}  // namespace

SlowRankFinder::SlowRankFinder(EventLoop& loop, Watch& watch, const Options& options)
    : loop_(loop),
      watch_(watch),
      options_(options),
      rank_(options.rank),
      num_ranks_(options.num_ranks),
      ask_every_ns_(std::max(kAskEveryNs, options.num_ranks * kNsPerRank)) {
  if (rank_ == 0) answers_.resize(static_cast<size_t>(num_ranks_));
  watch_.SetPaceListener(this, loop_);
}

SlowRankFinder::~SlowRankFinder() {
  watch_.SetPaceListener(nullptr, loop_);
  loop_.RunSync([this] {
    ended_ = true;
    if (timer_ != 0) loop_.CancelTimer(timer_);
  });
}

void SlowRankFinder::OnWaited() {
  if (rank_ == 0) {
    if (!asking_.load(std::memory_order_relaxed) && !asking_.exchange(true))
      loop_.Post([this] { Begin(); });
    return;
  }
  if (rank_ != 1 && rank_ != num_ranks_ / 2) return;
  const int64_t now_ns = options_.now_ns();
  if (now_ns < quiet_until_ns_.load(std::memory_order_relaxed)) return;
  quiet_until_ns_.store(now_ns + ask_every_ns_, std::memory_order_relaxed);
  if (!asked_.load(std::memory_order_relaxed) && ++told_ >= kPatience) {
    if (told_ == kPatience) WarnOfSilence();
    return;
  }
  const auto message = static_cast<std::byte>(Kind::kWaits);
  watch_.SendPace(0, std::span(&message, 1));
}

void SlowRankFinder::OnPace(int from, std::span<const std::byte> message) {
  if (message.empty()) return;
  switch (static_cast<Kind>(message[0])) {
    case Kind::kWaits:
      if (rank_ == 0 && !asking_.exchange(true)) Begin();
      return;
    case Kind::kAsk:
      return OnAsk(message);
    case Kind::kTotals:
      return OnTotals(from, message.subspan(1));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rank 0

void SlowRankFinder::Begin() {
  if (timer_ != 0) loop_.CancelTimer(timer_);
  asking_.store(true);
  interval_ns_ = ask_every_ns_;
  Ask();
}

void SlowRankFinder::Ask() {
  if (ended_ || watch_.stopped()) return;
  ++number_;
  const observe::SlowRecord slow = SlowNow();
  told_slow_ = slow.num_ranks > 0;
  WireWriter ask;
  ask.U8(static_cast<uint8_t>(Kind::kAsk));
  ask.U64(number_);
  ask.U64(static_cast<uint64_t>(slow.per_collective_ns));
  ask.U32(static_cast<uint32_t>(slow.cost_ppm));
  ask.U32(static_cast<uint32_t>(slow.num_ranks));
  for (const int32_t rank : slow.ranks) ask.U32(static_cast<uint32_t>(rank));
  TakeAnswer(0, Totals());
  PassAsk(std::move(ask).Take());
  timer_ = loop_.AddTimer(interval_ns_, [this] { Look(); });
}

// Ends to ask where no rank has waited since the last look, and all boards show that no rank is
// slow. A later wait begins anew.
void SlowRankFinder::Look() {
  timer_ = 0;
  if (number_ == kPatience) WarnOfSilence();
  const bool waited = std::exchange(waited_, false), moved = std::exchange(moved_, false);
  if (!waited && judge_.slow() == nullptr && !told_slow_) return asking_.store(false);
  const bool idle = !waited && !moved;
  asking_.store(!idle);
  interval_ns_ = idle ? 2 * interval_ns_ : ask_every_ns_;
  Ask();
}

void SlowRankFinder::OnTotals(int from, std::span<const std::byte> message) {
  WireReader reader(message);
  if (reader.U64() != number_ || rank_ != 0) return;
  std::array<uint64_t, 4> values;
  for (uint64_t& value : values) value = reader.U64();
  if (reader.failed() || std::ranges::max(values) > kMostTotal) return;
  TakeAnswer(from, {.now_ns = static_cast<int64_t>(values[0]),
                    .collectives = values[1],
                    .waited_ns = static_cast<int64_t>(values[2]),
                    .without_core_ns = static_cast<int64_t>(values[3])});
}

void SlowRankFinder::TakeAnswer(int from, const RankTotals& totals) {
  Answer& answer = answers_[static_cast<size_t>(from)];
  if (answer.ask == number_) return;
  waited_ |= totals.waited_ns != answer.totals.waited_ns;
  moved_ |= totals.collectives != answer.totals.collectives;
  answer = {number_, totals};
  if (std::ranges::all_of(answers_, [this](const Answer& one) { return one.ask == number_; }))
    JudgeAnswers();
}

void SlowRankFinder::JudgeAnswers() {
  std::vector<RankTotals> totals;
  for (const Answer& one : answers_) totals.push_back(one.totals);
  judge_.Add(totals);
  SayNews();
  Show(SlowNow());
}

// Says that ranks are slow, and then that they have recovered.
void SlowRankFinder::SayNews() {
  const SlowRanks* const slow = judge_.slow();
  if (slow == nullptr) {
    if (said_ranks_.empty()) return;
    TUTTI_WARN("{}: {} no longer {} the other ranks waiting", watch_.label(),
               watch_.NameAll(said_ranks_), said_ranks_.size() == 1 ? "keeps" : "keep");
    said_ranks_.clear();
  } else if (!std::ranges::includes(said_ranks_, slow->ranks)) {
    const int64_t now_ns = options_.now_ns();
    if (said_ns_ && now_ns - *said_ns_ < kSayEveryNs) return;
    said_ns_ = now_ns;
    said_ranks_ = slow->ranks;
    SaySlow(*slow);
  }
}

void SlowRankFinder::SaySlow(const SlowRanks& slow) {
  const bool one = slow.ranks.size() == 1;
  const std::string load = slow.share_without_core ? fmt::format("for {:.0f} % of the time",
                                                                 100 * *slow.share_without_core)
                                                   : "for a time that is unknown";
  TUTTI_WARN(
      "{}: {} {} slow: in the last {} collectives the other ranks have waited {:.2f} ms for {} in "
      "each, {:.0f} % of the time; {} wanted a processor and had none {}. "
      "TUTTI_FIND_SLOW_RANKS=0 ends the search for slow ranks",
      watch_.label(), watch_.NameAll(slow.ranks), one ? "is" : "are", slow.collectives,
      static_cast<double>(slow.per_collective_ns) / 1e6, one ? "this rank" : "these ranks",
      100 * slow.share, one ? "its process" : "their processes", load);
}

// The ranks that do not search for slow ranks neither ask nor answer.
void SlowRankFinder::WarnOfSilence() {
  std::vector<int> silent;
  if (rank_ != 0) silent.push_back(0);
  for (size_t i = 0; i < answers_.size(); ++i)
    if (answers_[i].ask == 0) silent.push_back(static_cast<int>(i));
  if (silent.empty()) return;
  TUTTI_WARN(
      "{}: slow ranks are not searched for, because {} {} not take part; TUTTI_FIND_SLOW_RANKS "
      "must be the same on all ranks",
      watch_.label(), watch_.NameAll(silent), silent.size() == 1 ? "does" : "do");
}

observe::SlowRecord SlowRankFinder::SlowNow() const {
  observe::SlowRecord record;
  const SlowRanks* const slow = judge_.slow();
  if (slow == nullptr) return record;
  record.per_collective_ns = slow->per_collective_ns;
  record.cost_ppm = static_cast<int32_t>(1e6 * slow->share);
  record.num_ranks = static_cast<int32_t>(slow->ranks.size());
  std::copy_n(slow->ranks.begin(), std::min(slow->ranks.size(), record.ranks.size()),
              record.ranks.begin());
  return record;
}

// ---------------------------------------------------------------------------------------------------------------------
// Every rank

// The children of a rank are the ranks that have one more bit, below its lowest bit.
void SlowRankFinder::PassAsk(std::span<const std::byte> ask) const {
  for (int bit = 1; bit < num_ranks_ && (rank_ & bit) == 0; bit *= 2)
    if (rank_ + bit < num_ranks_) watch_.SendPace(rank_ + bit, ask);
}

void SlowRankFinder::OnAsk(std::span<const std::byte> message) {
  WireReader reader(message.subspan(1));
  const uint64_t number = reader.U64();
  observe::SlowRecord slow;
  slow.per_collective_ns = static_cast<int64_t>(reader.U64());
  slow.cost_ppm = static_cast<int32_t>(reader.U32());
  slow.num_ranks = static_cast<int32_t>(reader.U32());
  for (int32_t& rank : slow.ranks) rank = static_cast<int32_t>(reader.U32());
  if (reader.failed() || rank_ == 0 || !IsSane(slow, num_ranks_)) return;
  asked_.store(true, std::memory_order_relaxed);
  quiet_until_ns_.store(options_.now_ns() + 2 * ask_every_ns_, std::memory_order_relaxed);
  PassAsk(message);
  Show(slow);
  const RankTotals totals = Totals();
  WireWriter answer;
  answer.U8(static_cast<uint8_t>(Kind::kTotals));
  answer.U64(number);
  answer.U64(static_cast<uint64_t>(totals.now_ns));
  answer.U64(totals.collectives);
  answer.U64(static_cast<uint64_t>(totals.waited_ns));
  answer.U64(static_cast<uint64_t>(totals.without_core_ns));
  watch_.SendPace(0, std::move(answer).Take());
}

RankTotals SlowRankFinder::Totals() const {
  const observe::CommunicatorRecord& record = watch_.record();
  return {.now_ns = options_.now_ns(),
          .collectives = CountCollectives(record.operations),
          .waited_ns = record.waited_ns.load(std::memory_order_relaxed),
          .without_core_ns = options_.run_delay_ns()};
}

void SlowRankFinder::Show(const observe::SlowRecord& slow) {
  observe::SharedValue<observe::SlowRecord>& shown = watch_.record().slow;
  const std::optional<observe::SlowRecord> before = shown.Load();
  if (slow.num_ranks == 0) {
    if (before) shown.Clear();
    return;
  }
  observe::SlowRecord now = slow;
  const bool same = before && before->num_ranks == slow.num_ranks && before->ranks == slow.ranks;
  now.since_ns = same ? before->since_ns : options_.now_ns();
  shown.Store(now);
}

}  // namespace tutti
