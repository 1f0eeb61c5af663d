// Lost ranks: how the watch says so, which calls end because of it, and how the ranks agree on whom
// to exclude when connections for data break although both ends live.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "watch/watch.h"

namespace tutti {
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

// Every rank hears of a loss from its own bootstrap, so that nobody need tell the others.
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

Status Watch::FirstReason(Status seen, std::optional<int> peer) {
  if (stopped()) return StopReason();
  if (seen.code() != Code::kRemoteError) return seen;
  const auto left = [&] { return peer && HasLeft(*peer); };
  const Deadline deadline = Deadline::After(explain_ns_);
  while (!stopped() && !deadline.Passed() && !left())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (stopped()) return StopReason();
  if (!peer || left()) return seen;
  {
    const MutexLock lock(mutex_);
    broken_data_.Accuse(*peer, /*certain=*/false,
                        fmt::format("a connection for data: {}", seen.message()), NowNs());
  }
  FollowBrokenData();
  // The ranks whose connections broke are all here, and see to it that one of them decides.
  while (!stopped() && !left()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    {
      const MutexLock lock(mutex_);
      broken_data_.Advance(NowNs());
    }
    FollowBrokenData();
  }
  return stopped() ? StopReason() : seen;
}

// Tells the other ranks what the agreement has newly learned, and takes what it has decided. Called
// after everything that changes it.
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
  }
  FollowBrokenData();
}

std::vector<int> Watch::LostRanks() const {
  const MutexLock lock(mutex_);
  return std::vector<int>(lost_.begin(), lost_.end());
}

}  // namespace tutti
