#include "watch/slow_rank_finder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/wire.h"

namespace tutti {
namespace {

constexpr int64_t kFewestNs = 20'000'000;
constexpr int64_t kMostNs = 320'000'000;
// An answer takes some microseconds of the loop's thread; asks then take at most some hundredths of
// the thread.
constexpr int64_t kNsPerRank = 200'000;
// Larger totals than a rank can have in a century come from a broken peer.
constexpr uint64_t kMostTotal = uint64_t{1} << 62;
// A process with more threads shows the first of them, because reading takes microseconds each.
constexpr int kMostThreads = 64;

// Returns the time for which a thread wanted a processor, the second number of its file.
int64_t WithoutCore(const std::filesystem::path& thread) {
  std::ifstream file(thread / "schedstat");
  int64_t ran_ns = 0, without_core_ns = 0;
  return file >> ran_ns >> without_core_ns ? without_core_ns : 0;
}

// Returns 0 where the kernel does not tell.
int64_t WithoutCoreOfThisProcess() {
  int64_t total_ns = 0;
  int threads = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end;
       !error && it != end && threads < kMostThreads; it.increment(error), ++threads)
    total_ns += WithoutCore(it->path());
  return total_ns;
}

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
      rank_(options.rank),
      num_ranks_(options.num_ranks),
      fewest_ns_(std::max(kFewestNs, options.num_ranks * kNsPerRank)),
      interval_ns_(fewest_ns_) {
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
      loop_.Post([this] { Ask(); });
  } else if (rank_ == 1) {
    const int64_t now_ns = NowNs();
    if (now_ns - told_ns_ < kFewestNs) return;
    told_ns_ = now_ns;
    const auto message = static_cast<std::byte>(Kind::kWaits);
    watch_.SendPace(0, std::span(&message, 1));
  }
}

void SlowRankFinder::OnPace(int from, std::span<const std::byte> message) {
  if (message.empty()) return;
  switch (static_cast<Kind>(message[0])) {
    case Kind::kWaits:
      if (rank_ == 0 && !asking_.exchange(true)) Ask();
      return;
    case Kind::kAsk:
      return OnAsk(message);
    case Kind::kTotals:
      return OnTotals(from, message.subspan(1));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rank 0

void SlowRankFinder::Ask() {
  if (ended_ || watch_.stopped()) return;
  ++number_;
  answers_.assign(static_cast<size_t>(num_ranks_), std::nullopt);
  answers_[0] = Totals();
  const observe::SlowRecord slow = SlowNow();
  WireWriter ask;
  ask.U8(static_cast<uint8_t>(Kind::kAsk));
  ask.U64(number_);
  ask.U64(static_cast<uint64_t>(slow.per_collective_ns));
  ask.U32(static_cast<uint32_t>(slow.cost_ppm));
  ask.U32(static_cast<uint32_t>(slow.num_ranks));
  for (const int32_t rank : slow.ranks) ask.U32(static_cast<uint32_t>(rank));
  PassAsk(std::move(ask).Take());
  timer_ = loop_.AddTimer(interval_ns_, [this] { Look(); });
}

// Ends to ask where no rank has waited since the last look, and all boards show that no rank is
// slow. A later wait begins anew.
void SlowRankFinder::Look() {
  timer_ = 0;
  int64_t waited_ns = 0;
  for (const std::optional<RankTotals>& one : answers_)
    if (one) waited_ns += one->waited_ns;
  const bool waited = std::exchange(waited_ns_, waited_ns) != waited_ns;
  const int64_t most_ns = std::max(kMostNs, fewest_ns_);
  // A round may need more than one look, where collectives take long.
  const bool judged = std::exchange(rounds_, judge_.num_rounds()) != judge_.num_rounds();
  interval_ns_ = judge_.suspects() && judged ? fewest_ns_ : std::min(2 * interval_ns_, most_ns);
  const bool shown = std::exchange(told_slow_, judge_.slow() != nullptr);
  if (waited || judge_.suspects() || judge_.slow() != nullptr || shown) return Ask();
  interval_ns_ = fewest_ns_;
  asking_.store(false);
}

void SlowRankFinder::OnTotals(int from, std::span<const std::byte> message) {
  WireReader reader(message);
  if (reader.U64() != number_ || rank_ != 0) return;
  std::array<uint64_t, 4> values;
  for (uint64_t& value : values) value = reader.U64();
  if (reader.failed() || std::ranges::max(values) > kMostTotal) return;
  std::optional<RankTotals>& answer = answers_[static_cast<size_t>(from)];
  if (answer) return;
  answer = {.now_ns = static_cast<int64_t>(values[0]),
            .collectives = values[1],
            .waited_ns = static_cast<int64_t>(values[2]),
            .without_core_ns = static_cast<int64_t>(values[3])};
  if (std::ranges::all_of(answers_, [](const auto& one) { return one.has_value(); }))
    JudgeAnswers();
}

void SlowRankFinder::JudgeAnswers() {
  std::vector<RankTotals> totals;
  for (const std::optional<RankTotals>& one : answers_) totals.push_back(*one);
  const SlowRankJudge::News news = judge_.Add(totals);
  if (news != SlowRankJudge::News::kNone) SayNews(news);
  Show(SlowNow());
}

void SlowRankFinder::SayNews(SlowRankJudge::News news) {
  if (news == SlowRankJudge::News::kRecovered) {
    TUTTI_WARN("{}: {} no longer {} the other ranks waiting", watch_.label(),
               watch_.NameAll(named_), named_.size() == 1 ? "keeps" : "keep");
    return;
  }
  const SlowRanks& slow = *judge_.slow();
  named_ = slow.ranks;
  TUTTI_WARN(
      "{}: {} {} slow: in the last {} collectives the other ranks have waited {:.2f} ms for {} in "
      "each, {:.0f} % of the time; {} wanted a processor and had none for {:.0f} % of the time. "
      "TUTTI_FIND_SLOW_RANKS=0 ends the search for slow ranks",
      watch_.label(), watch_.NameAll(named_), named_.size() == 1 ? "is" : "are", slow.collectives,
      static_cast<double>(slow.per_collective_ns) / 1e6,
      named_.size() == 1 ? "this rank" : "these ranks", 100 * slow.share,
      named_.size() == 1 ? "its process" : "their processes", 100 * slow.share_without_core);
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
  return {.now_ns = NowNs(),
          .collectives = CountCollectives(record.operations),
          .waited_ns = record.waited_ns.load(std::memory_order_relaxed),
          .without_core_ns = WithoutCoreOfThisProcess()};
}

void SlowRankFinder::Show(const observe::SlowRecord& slow) {
  observe::SharedValue<observe::SlowRecord>& shown = watch_.record().slow;
  const std::optional<observe::SlowRecord> before = shown.Load();
  if (slow.num_ranks == 0) {
    if (before) shown.Clear();
    return;
  }
  observe::SlowRecord now = slow;
  now.since_ns = before ? before->since_ns : NowNs();
  shown.Store(now);
}

}  // namespace tutti
