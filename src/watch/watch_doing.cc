// The activity of ranks: how this rank tells its own, how it asks others, and the sentence about a
// rank that makes no progress.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/clock.h"
#include "watch/watch.h"

namespace tutti {
namespace {

// A wait renews its word at least this often. A wait whose last word is older is over.
constexpr int64_t kStillWaitsNs = 500'000'000;

}  // namespace

Watch::Step::Step(Watch& watch, std::string what)
    : watch_(watch), what_(std::move(what)), since_ns_(NowNs()) {
  const MutexLock lock(watch_.mutex_);
  watch_.steps_.push_back(this);
  watch_.ShowStep();
}

Watch::Step::~Step() {
  const MutexLock lock(watch_.mutex_);
  std::erase(watch_.steps_, this);
  watch_.ShowStep();
}

void Watch::ShowStep() {
  observe::StepRecord shown;
  if (!steps_.empty()) {
    shown.since_ns = steps_.back()->since_ns_;
    shown.what = observe::ToShortText<sizeof(shown.what)>(steps_.back()->what_);
  }
  record_->step.Store(shown);
}

void Watch::ShowWait(std::span<const int> peers, int64_t since_ns) {
  observe::Awaited awaited = {.since_ns = since_ns,
                              .seen_ns = NowNs(),
                              .collective = log_.last_collective(),
                              .num_ranks = static_cast<int32_t>(peers.size())};
  const size_t shown = std::min(peers.size(), awaited.ranks.size());
  std::copy_n(peers.begin(), shown, awaited.ranks.begin());
  record_->awaited.Store(awaited);
}

std::string Watch::WhatThisDoes() const {
  return steps_.empty() ? log_.Describe() : steps_.back()->what_;
}

void Watch::AskWhatTheyDo(std::span<const int> peers) {
  for (const int peer : peers) Ask(peer, Shown::kNothing, OpSignature());
}

// Returns the wait of the thread whose activity WhatThisDoes tells, or null where the wait is over.
const Watch::Awaited* Watch::PresentWait() const {
  if (steps_.empty() && !log_.busy()) return nullptr;
  const Awaited& awaited = steps_.empty() ? in_operation_ : in_joint_call_;
  return NowNs() - awaited.at_ns < kStillWaitsNs ? &awaited : nullptr;
}

std::string Watch::DescribeWait() const {
  const MutexLock lock(mutex_);
  const Awaited* const wait = PresentWait();
  if (wait == nullptr) return "";
  return fmt::format("{} for {}, {}", label_, NameAll(wait->ranks), WhatThisDoes());
}

// Body: the number of ranks that this rank waits for (a byte), the ranks (4 bytes each), and the
// text.
void Watch::AnswerWhatThisDoes(int to) {
  Bytes message = StartMessage(Message::kDoing);
  std::string doing;
  bool idle = false;
  {
    const MutexLock lock(mutex_);
    doing = WhatThisDoes();
    idle = steps_.empty() && !log_.busy();
    const Awaited* const wait = PresentWait();
    if (wait != nullptr) doing += fmt::format(", and waits for {}", NameAll(wait->ranks));
    AppendRanks(wait != nullptr ? wait->ranks : std::vector<int>(), message);
  }
  if (idle && options_.board != nullptr) doing += options_.board->WaitsBeside(*this);
  AppendText(doing, message);
  bootstrap_.SendControl(to, message);
}

// While this rank waits, also asks the ranks that the answering rank waits for.
void Watch::OnDoing(int from, std::span<const std::byte> body) {
  std::optional<std::vector<int>> waits_for = ReadRanks(body);
  if (!waits_for) return;
  std::vector<int> further;
  {
    const MutexLock lock(mutex_);
    const int64_t now_ns = NowNs();
    unanswered_ns_.erase(from);
    if (PresentWait() != nullptr)
      std::copy_if(waits_for->begin(), waits_for->end(), std::back_inserter(further),
                   [&](int rank) {
                     mutex_.AssertHeld();
                     return rank != bootstrap_.rank() && !unanswered_ns_.contains(rank) &&
                            AnswerOf(rank, now_ns - LongWait::kAskAfterNs) == nullptr;
                   });
    answers_[from] = {TextOf(body), *std::move(waits_for), now_ns};
    changed_.NotifyAll();
  }
  AskWhatTheyDo(further);
}

const Watch::Answer* Watch::AnswerOf(int rank, int64_t since_ns) const {
  const auto answer = answers_.find(rank);
  return answer != answers_.end() && answer->second.at_ns >= since_ns ? &answer->second : nullptr;
}

bool Watch::IsSilent(int rank, int64_t now_ns, int64_t silent_ns) const {
  const auto question = unanswered_ns_.find(rank);
  return question != unanswered_ns_.end() && now_ns - question->second >= silent_ns;
}

// Returns a text such as "; rank 2 (…) does not answer; rank 1 (…) is idle …" with the answers of
// `peers` since `since_ns`. The silent ranks come first, because they are the likeliest reason.
std::string Watch::Answers(std::span<const int> silent, std::span<const int> peers,
                           int64_t since_ns) const {
  std::string text;
  size_t shown = 0;
  for (const int rank : silent)
    if (shown++ < kMaxRanksShown) text += fmt::format("; {} does not answer", NameOf(rank));
  for (const int rank : peers) {
    const Answer* const answer = AnswerOf(rank, since_ns);
    const bool is_silent = std::find(silent.begin(), silent.end(), rank) != silent.end();
    if (answer == nullptr || is_silent || shown++ >= kMaxRanksShown) continue;
    text += fmt::format("; {} is {}", NameOf(rank), answer->doing);
  }
  return text;
}

}  // namespace tutti
