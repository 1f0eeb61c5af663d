// Lost ranks: how the watch says so, which calls end because of it, and which rank is excluded when
// a connection for data breaks although both ends live.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "watch/watch.h"

namespace tutti {
namespace {

// The reason why a peer has closed a connection arrives within this. The bootstrap brings it in
// milliseconds, or, where the ranks must find out whether one that was cut off is alive, within the
// bounds of loss_agreement.h.
constexpr int64_t kExplainBrokenNs = 1'000'000'000;

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
  const Deadline deadline = Deadline::After(kExplainBrokenNs);
  while (!stopped() && !deadline.Passed() && !left())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (stopped()) return StopReason();
  if (!peer || left()) return seen;
  const int here = bootstrap_.rank();
  Exclude(
      {std::max(here, *peer),
       fmt::format("a connection for data between rank {} and rank {} broke, both live, and one "
                   "of them has to go: {}",
                   std::min(here, *peer), std::max(here, *peer), seen.message())});
  return StopReason();
}

// Passes on what is new, so that all ranks hear of it, the excluded one too. Body: the rank, 4
// bytes, and the reason.
void Watch::Exclude(const LostRank& excluded) {
  {
    const MutexLock lock(mutex_);
    if (lost_.contains(excluded.rank)) return;
  }
  const int32_t rank = excluded.rank;
  Bytes message(1 + sizeof(rank), static_cast<std::byte>(Message::kExcluded));
  std::memcpy(message.data() + 1, &rank, sizeof(rank));
  AppendText(excluded.why, message);
  for (const int linked : bootstrap_.LinkedRanks()) bootstrap_.SendControl(linked, message);
  OnLost(std::span(&excluded, 1));
}

void Watch::OnExcluded(std::span<const std::byte> body) {
  int32_t rank = 0;
  if (body.size() < sizeof(rank)) return;
  std::memcpy(&rank, body.data(), sizeof(rank));
  if (rank < 0 || rank >= bootstrap_.num_ranks()) return;
  Exclude({rank, TextOf(body.subspan(sizeof(rank)))});
}

std::vector<int> Watch::LostRanks() const {
  const MutexLock lock(mutex_);
  return std::vector<int>(lost_.begin(), lost_.end());
}

}  // namespace tutti
