// Lost ranks: how the watch reports them, which calls they end, and how the ranks agree on whom to
// exclude when connections for data break although both ends live.

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "watch/watch.h"

namespace tutti {
namespace {

// An agreement on broken connections for data ends within this time. The agreement takes 0.6 s
// after the last accusation (loss_agreement.h); a rank whose host is overloaded takes longer.
constexpr int64_t kAgreeNs = 30'000'000'000;

}  // namespace

Status Watch::LossStatus(std::span<const LostRank> lost) const {
  std::string text;
  for (const LostRank& one : lost) {
    const bool here = one.rank == bootstrap_.rank();
    text += fmt::format("{}{} was {}: {}", text.empty() ? "" : "; ", NameOf(one.rank),
                        here ? "excluded by the other ranks" : "lost", one.why);
  }
  return RemoteError("{}. The communicator cannot go on; abort it, or shrink it without {}", text,
                     lost.size() == 1 ? "that rank" : "these ranks");
}

// Every rank hears of a loss from its own bootstrap, so nobody need tell the others.
void Watch::OnLost(std::span<const LostRank> lost) {
  const Status reason = LossStatus(lost);
  {
    const MutexLock lock(mutex_);
    for (const LostRank& one : lost) lost_.insert(one.rank);
    if (lost_reason_.ok()) lost_reason_ = reason;
    EndJointCalls(reason);
  }
  Stop(reason, /*tell=*/false);
}

// A failure that is not the peer's needs no explanation from elsewhere.
Status Watch::FirstReason(Status seen, std::optional<int> peer) {
  if (stopped()) return StopReason();
  if (seen.code() != Code::kRemoteError) return seen;
  const bool over = AwaitOver(peer, Deadline::After(explain_ns_));
  if (!over && peer) AgreeOnBroken(*peer, seen);
  return stopped() ? StopReason() : seen;
}

bool Watch::IsOver(std::optional<int> peer) const {
  return !reason_.ok() || (peer && left_at_ns_.contains(*peer));
}

bool Watch::AwaitOver(std::optional<int> peer, Deadline deadline) {
  MutexLock lock(mutex_);
  while (!IsOver(peer) && !deadline.Passed()) AwaitChange(lock, deadline.at_ns());
  return IsOver(peer);
}

// Every rank with a broken connection is in this function, so one of them decides. This rank
// decides when its turn has come (wake_at_ns).
void Watch::AgreeOnBroken(int peer, const Status& seen) {
  const Deadline deadline = Deadline::After(kAgreeNs);
  MutexLock lock(mutex_);
  broken_data_.Accuse(peer, /*certain=*/false,
                      fmt::format("a connection for data: {}", seen.message()), NowNs());
  changed_.NotifyAll();
  for (;;) {
    lock.Unlock();
    FollowBrokenData();
    lock.Lock();
    if (IsOver(peer) || deadline.Passed()) return;
    AwaitChange(lock, std::min(deadline.at_ns(), broken_data_.wake_at_ns().value_or(INT64_MAX)));
    broken_data_.Advance(NowNs());
  }
}

// Tells the other ranks the news of the agreement, and takes its decisions. Must be called after
// every change of the agreement.
void Watch::FollowBrokenData() {
  Bytes news;
  std::vector<LostRank> decided;
  {
    const MutexLock lock(mutex_);
    news = broken_data_.TakeNews();
    decided = broken_data_.TakeDecided();
  }
  if (!news.empty()) {
    Bytes message(1 + news.size(), static_cast<std::byte>(Message::kBrokenData));
    std::copy(news.begin(), news.end(), message.begin() + 1);
    for (const int rank : bootstrap_.LinkedRanks()) bootstrap_.SendControl(rank, message);
  }
  if (!decided.empty()) OnLost(decided);
}

void Watch::OnBrokenData(std::span<const std::byte> body) {
  {
    const MutexLock lock(mutex_);
    if (!broken_data_.Take(body, NowNs()).ok()) return;
    changed_.NotifyAll();
  }
  FollowBrokenData();
}

std::vector<int> Watch::LostRanks() const {
  const MutexLock lock(mutex_);
  return std::vector<int>(lost_.begin(), lost_.end());
}

}  // namespace tutti
