// Waits that last: this rank asks the awaited ranks, warns, and ends the wait at the time-out; the
// ranks that did not answer then.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "watch/watch.h"

namespace tutti {
namespace {

// A rank that has said goodbye may have finished the operation already. Its data in the FIFOs
// arrives within this time.
constexpr int64_t kLeftGraceNs = 1'000'000'000;
// A peer that waits itself reports a timeout first, because the peer is closer to the rank that
// holds up the others.
constexpr int64_t kNearerGraceNs = 1'000'000'000;

// A live rank answers within milliseconds, or within tenths of a second on an overloaded machine.
constexpr int64_t kSilentNs = 1'000'000'000;
// A sentence tells what ranks did at most this long ago where the time-out is short.
constexpr int64_t kFreshNs = 2'000'000'000;

// Returns since when an answer counts at `now_ns`: an answer to one of the last two questions.
int64_t FreshSince(int64_t now_ns, int64_t timeout_ns) {
  return now_ns - std::max(kFreshNs, 2 * LongWait::AskInterval(timeout_ns));
}

// Returns how long a rank that is silent leaves a question unanswered.
int64_t SilentAfter(int64_t timeout_ns) {
  return timeout_ns == 0 ? kSilentNs : std::min(kSilentNs, timeout_ns / 2);
}

}  // namespace

// Notes the wait for questions of other ranks. Returns whether a peer waits itself.
bool Watch::NoteWait(std::span<const int> peers, int64_t timeout_ns, Awaited& awaited) {
  const int64_t now_ns = NowNs();
  awaited.ranks.assign(peers.begin(), peers.end());
  awaited.at_ns = now_ns;
  return std::any_of(peers.begin(), peers.end(), [&](int peer) {
    mutex_.AssertHeld();
    const Answer* const answer = AnswerOf(peer, FreshSince(now_ns, timeout_ns));
    return answer != nullptr && !answer->waits_for.empty();
  });
}

Status Watch::CheckTheyAreHere(std::span<const int> peers, const LongWait& wait) const {
  if (wait.waited_ns() <= kLeftGraceNs) return Status::Ok();
  const MutexLock lock(mutex_);
  for (const int peer : peers) {
    const auto left = left_at_ns_.find(peer);
    if (left != left_at_ns_.end() && NowNs() - left->second > kLeftGraceNs)
      return RemoteError("{} has destroyed {} while {} waits for it {}", NameOf(peer), label_,
                         NameOf(bootstrap_.rank()), WhatThisDoes());
  }
  return Status::Ok();
}

Status Watch::CheckNotAlone() const {
  const auto others = static_cast<size_t>(bootstrap_.num_ranks()) - 1;
  const MutexLock lock(mutex_);
  if (others == 0 || left_at_ns_.size() < others) return Status::Ok();
  const int64_t now_ns = NowNs();
  for (const auto& [rank, at_ns] : left_at_ns_)
    if (now_ns - at_ns <= kLeftGraceNs) return Status::Ok();
  return RemoteError("all other ranks have destroyed their communicators");
}

// Follows the waits of ranks, beginning with the peers, and returns all ranks on the way. The last
// rank of the chain holds up all ranks before. In a call of all ranks the last rank may be held up
// by a rank that it cannot tell, while it maps memory, for example; the chain then goes on with the
// ranks that have a link with this rank.
std::vector<int> Watch::Chain(std::span<const int> peers, int64_t since_ns) const {
  std::vector<int> chain(peers.begin(), peers.end());
  for (size_t i = 0; i < chain.size(); ++i) {
    const Answer* const answer = AnswerOf(chain[i], since_ns);
    if (answer == nullptr) continue;
    for (const int rank : answer->waits_for) {
      const bool known = std::find(chain.begin(), chain.end(), rank) != chain.end();
      if (!known && rank != bootstrap_.rank() && chain.size() < kMaxChain) chain.push_back(rank);
    }
  }
  if (steps_.empty() || AnswerOf(chain.back(), since_ns) == nullptr) return chain;
  for (const int rank : LinkedRanksHere()) {
    const bool known = std::find(chain.begin(), chain.end(), rank) != chain.end();
    if (!known && chain.size() < kMaxChain) chain.push_back(rank);
  }
  return chain;
}

std::vector<int> Watch::LinkedRanksHere() const {
  std::vector<int> ranks = bootstrap_.LinkedRanks();
  std::erase_if(ranks, [&](int rank) {
    mutex_.AssertHeld();
    return lost_.contains(rank) || left_at_ns_.contains(rank);
  });
  return ranks;
}

std::vector<int> Watch::ChainNow(std::span<const int> peers, int64_t timeout_ns) const {
  const MutexLock lock(mutex_);
  return Chain(peers, FreshSince(NowNs(), timeout_ns));
}

// Called again and again during a wait of an operation. Stops the communicator at the timeout.
Status Watch::OnLongWait(std::span<const int> peers, LongWait& wait) {
  if (stopped()) return StopReason();
  CompareEarly();
  int64_t timeout_ns = present_timeout_ns_;
  {
    const MutexLock lock(mutex_);
    if (NoteWait(peers, timeout_ns, in_operation_) && timeout_ns > 0) timeout_ns += kNearerGraceNs;
    ShowWait(peers, wait.since_ns());
  }
  const LongWait::Due due = wait.Look(NowNs(), timeout_ns);
  TUTTI_TRY(CheckTheyAreHere(peers, wait));
  if (due.ask) {
    AskAboutPresent(peers);
    const std::vector<int> chain = ChainNow(peers, timeout_ns);
    AskWhatTheyDo(std::span(chain).subspan(peers.size()));
  }
  Status stalled = Report(peers, wait, due, timeout_ns, "TUTTI_TIMEOUT_S");
  if (!stalled.ok()) Stop(stalled, /*tell=*/true);
  return stalled;
}

// The caller of the joint call decides what becomes of the communicator.
Status Watch::OnJointWait(int rank, LongWait& wait, int64_t timeout_ns) {
  const std::span peers(&rank, 1);
  {
    const MutexLock lock(mutex_);
    static_cast<void>(NoteWait(peers, timeout_ns, in_joint_call_));
  }
  const LongWait::Due due = wait.Look(NowNs(), timeout_ns);
  if (due.ask) AskWhatTheyDo(ChainNow(peers, timeout_ns));
  return Report(peers, wait, due, timeout_ns, options_.joint_setting);
}

// Warns where a warning is due. Returns the sentence as a failure where the wait is over.
Status Watch::Report(std::span<const int> peers, const LongWait& wait, LongWait::Due due,
                     int64_t timeout_ns, const std::string& setting) {
  if (!due.warn && !due.over) return Status::Ok();
  Status stalled;
  std::vector<int> silent;
  {
    const MutexLock lock(mutex_);
    const int64_t now_ns = NowNs();
    // Several threads of this rank may wait at the same time.
    if (!due.over && now_ns - warned_ns_ < LongWait::WarnInterval(timeout_ns)) return Status::Ok();
    warned_ns_ = now_ns;
    const int64_t since_ns = FreshSince(now_ns, timeout_ns);
    const std::vector<int> chain = Chain(peers, since_ns);
    for (const int rank : chain)
      if (IsSilent(rank, now_ns, SilentAfter(timeout_ns))) silent.push_back(rank);
    stalled = Timeout(
        "{}: {} has waited {:.1f} s for {}, {}{}. {} sets how long a call waits without progress",
        label_, NameOf(bootstrap_.rank()), wait.waited_s(), NameAll(peers), WhatThisDoes(),
        Answers(silent, chain, since_ns), setting);
  }
  if (!due.over) {
    TUTTI_WARN("{}", stalled.message());
    return Status::Ok();
  }
  NoteHung(silent);
  record_.LogPicture("a time-out");
  return stalled;
}

// ---------------------------------------------------------------------------------------------------------------------
// Hung ranks

std::vector<int> Watch::HungRanks() const {
  const MutexLock lock(mutex_);
  return std::vector<int>(hung_.begin(), hung_.end());
}

void Watch::FindHungRanks() {
  const int64_t start_ns = NowNs();
  std::vector<int> silent;
  {
    const MutexLock lock(mutex_);
    if (hung_.empty()) silent = LinkedRanksHere();
  }
  AskWhatTheyDo(silent);
  {
    MutexLock lock(mutex_);
    const auto forget_those_who_answered = [&] {
      std::erase_if(silent, [&](int rank) {
        mutex_.AssertHeld();
        return AnswerOf(rank, start_ns) != nullptr || lost_.contains(rank) ||
               left_at_ns_.contains(rank);
      });
    };
    for (forget_those_who_answered();
         !silent.empty() && !stopped() && NowNs() < start_ns + kSilentNs;
         forget_those_who_answered())
      AwaitChange(lock, start_ns + kSilentNs);
    // All have answered; or the communicator has stopped, and the time for answers was too short.
    if (NowNs() < start_ns + kSilentNs) return;
  }
  NoteHung(silent);
}

// Each rank passes news on, so all ranks come to the same list.
void Watch::NoteHung(std::span<const int> ranks) {
  std::vector<int> news;
  {
    const MutexLock lock(mutex_);
    for (const int rank : ranks)
      if (hung_.insert(rank).second) news.push_back(rank);
  }
  if (news.empty()) return;
  Bytes message = StartMessage(Message::kHung);
  AppendRanks(news, message);
  for (const int rank : bootstrap_.LinkedRanks()) bootstrap_.SendControl(rank, message);
}

void Watch::OnHung(std::span<const std::byte> body) {
  if (const std::optional<std::vector<int>> ranks = ReadRanks(body)) NoteHung(*ranks);
}

// The form of ranks in a message: their number (a byte), and 4 bytes for each rank.
void Watch::AppendRanks(std::span<const int> ranks, Bytes& bytes) {
  ranks = ranks.first(std::min<size_t>(ranks.size(), kMaxChain));
  bytes.push_back(static_cast<std::byte>(ranks.size()));
  const auto raw = std::as_bytes(ranks);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

std::optional<std::vector<int>> Watch::ReadRanks(std::span<const std::byte>& bytes) const {
  if (bytes.empty()) return std::nullopt;
  std::vector<int> ranks(std::to_integer<size_t>(bytes[0]));
  const size_t size = ranks.size() * sizeof(int);
  if (ranks.size() > kMaxChain || bytes.size() < 1 + size) return std::nullopt;
  if (size > 0) std::memcpy(ranks.data(), &bytes[1], size);
  bytes = bytes.subspan(1 + size);
  const bool valid = std::all_of(ranks.begin(), ranks.end(),
                                 [&](int r) { return r >= 0 && r < bootstrap_.num_ranks(); });
  return valid ? std::optional(std::move(ranks)) : std::nullopt;
}

}  // namespace tutti
