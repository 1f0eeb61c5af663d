// The activity of ranks: how this rank tells its own, how it asks others, and the sentence about a
// rank that makes no progress.

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "watch/watch.h"

namespace tutti {
namespace {

// Answers that a failing call waits for arrive within this time.
constexpr int64_t kAnswersNs = 1'000'000'000;
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

void Watch::ShowWait(std::span<const int> peers, int64_t since_ns, int64_t now_ns) {
  observe::Awaited awaited = {.since_ns = since_ns,
                              .seen_ns = now_ns,
                              .collective = log_.last_collective(),
                              .num_ranks = static_cast<int32_t>(peers.size())};
  const size_t shown = std::min(peers.size(), awaited.ranks.size());
  std::copy_n(peers.begin(), shown, awaited.ranks.begin());
  record_->awaited.Store(awaited);
}

std::string Watch::PresentWait() const {
  const std::optional<observe::Awaited> awaited = record_->awaited.Load();
  if (!awaited || !log_.busy() || NowNs() - awaited->seen_ns >= kStillWaitsNs) return {};
  const auto count = static_cast<size_t>(awaited->num_ranks);
  const size_t shown = std::min(count, awaited->ranks.size());
  std::string text = ", and waits for " + NameAll(std::span(awaited->ranks).first(shown));
  if (count > shown) text += fmt::format(" and {} more", count - shown);
  return text;
}

std::string Watch::WhatThisDoes() const {
  return steps_.empty() ? log_.Describe() : steps_.back()->what_;
}

void Watch::AskWhatTheyDo(std::span<const int> peers) {
  for (const int peer : peers) Ask(peer, Shown::kNothing, OpSignature());
}

// Body: a single byte, 1 if this rank waits for another rank, and the text.
void Watch::AnswerWhatThisDoes(int to) {
  Bytes message = StartMessage(Message::kDoing);
  {
    const MutexLock lock(mutex_);
    const std::string wait = PresentWait();
    message.push_back(static_cast<std::byte>(!wait.empty()));
    AppendText(WhatThisDoes() + wait, message);
  }
  bootstrap_.SendControl(to, message);
}

void Watch::OnDoing(int from, std::span<const std::byte> body) {
  if (body.empty()) return;
  const MutexLock lock(mutex_);
  answers_[from] = {TextOf(body.subspan(1)), body[0] != std::byte{0}, NowNs()};
  changed_.NotifyAll();
}

bool Watch::AllAnswered(std::span<const int> peers, int64_t since_ns) const {
  for (const int peer : peers) {
    const auto answer = answers_.find(peer);
    if (answer == answers_.end() || answer->second.at_ns < since_ns) return false;
  }
  return true;
}

// Returns the peers' answers since `since_ns`, such as "; rank 2 (…) does not answer; rank 1 (…) is
// idle …". The silent ranks come first, because they are the likeliest reason.
std::string Watch::Answers(std::span<const int> peers, int64_t since_ns) const {
  std::string text;
  size_t shown = 0;
  for (const bool silent : {true, false}) {
    for (const int rank : peers) {
      if (shown == kMaxRanksShown) break;
      const auto answer = answers_.find(rank);
      const bool answered = answer != answers_.end() && answer->second.at_ns >= since_ns;
      if (answered == silent) continue;
      ++shown;
      text += silent ? fmt::format("; {} does not answer", NameOf(rank))
                     : fmt::format("; {} is {}", NameOf(rank), answer->second.doing);
    }
  }
  return text;
}

Status Watch::Stalled(std::span<const int> peers, int64_t waited_ns) const {
  const MutexLock lock(mutex_);
  return Timeout(
      "{} has waited {:.1f} s for {}, {}{}. TUTTI_TIMEOUT_S sets how long an "
      "operation may make no progress",
      NameOf(bootstrap_.rank()), static_cast<double>(waited_ns) / 1e9, NameAll(peers),
      WhatThisDoes(), Answers(peers, NowNs() - waited_ns));
}

Status Watch::Explain(const Status& timeout, std::span<const int> peers) {
  const int64_t asked_ns = NowNs();
  record_.LogPicture("a time-out");
  AskWhatTheyDo(peers);
  const Deadline deadline = Deadline::After(kAnswersNs);
  MutexLock lock(mutex_);
  while (!AllAnswered(peers, asked_ns) && !deadline.Passed()) AwaitChange(lock, deadline.at_ns());
  return Status(timeout.code(), fmt::format("{}{}", timeout.message(), Answers(peers, asked_ns)));
}

}  // namespace tutti
