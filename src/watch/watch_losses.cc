// What the watch knows of lost ranks: how it says so, which calls that ends, and who has to go
// where a connection for data breaks.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "watch/watch.h"

namespace tutti {
namespace {

// For the reason why a peer has closed a connection. The bootstrap brings it in milliseconds, or,
// where the ranks must find out whether one that was cut off is alive, within the bounds of
// loss_agreement.h.
constexpr int64_t kExplainBrokenNs = 1'000'000'000;
constexpr size_t kMaxWhyBytes = 2000;

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

// Every rank hears of it from its bootstrap.
void Watch::OnLost(std::span<const LostRank> lost) {
  const Status reason = LossStatus(lost);
  {
    std::lock_guard lock(mutex_);
    for (const LostRank& one : lost) lost_.insert(one.rank);
    if (lost_reason_.ok()) lost_reason_ = reason;
    for (JointCall* call : joint_calls_) call->EndLocked(reason);
  }
  Stop(reason, /*tell=*/false);
}

Status Watch::FirstReason(Status seen, std::optional<int> peer) {
  if (stopped()) return StopReason();
  if (seen.code() != Code::kRemoteError) return seen;
  const auto left = [&] {
    std::lock_guard lock(mutex_);
    return peer && left_[static_cast<size_t>(*peer)];
  };
  const Deadline deadline = Deadline::After(kExplainBrokenNs);
  while (!stopped() && !deadline.Passed() && !left())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!peer || stopped() || left()) return stopped() ? StopReason() : seen;
  const int here = bootstrap_.rank();
  Exclude(
      {std::max(here, *peer),
       fmt::format("a connection for data between rank {} and rank {} broke, both live, and one "
                   "of them has to go: {}",
                   std::min(here, *peer), std::max(here, *peer), seen.message())});
  return StopReason();
}

// Passes on what is new, so that all ranks hear of it, the excluded one too.
void Watch::Exclude(const LostRank& excluded) {
  {
    std::lock_guard lock(mutex_);
    if (lost_.contains(excluded.rank)) return;
  }
  const int32_t rank = excluded.rank;
  Bytes message(1 + sizeof(rank) + excluded.why.size());
  message[0] = static_cast<std::byte>(Message::kExcluded);
  std::memcpy(message.data() + 1, &rank, sizeof(rank));
  std::memcpy(message.data() + 1 + sizeof(rank), excluded.why.data(), excluded.why.size());
  for (const int linked : bootstrap_.LinkedRanks()) bootstrap_.SendControl(linked, message);
  OnLost(std::span(&excluded, 1));
}

void Watch::OnExcluded(std::span<const std::byte> payload) {
  int32_t rank = 0;
  if (payload.size() < 1 + sizeof(rank)) return;
  std::memcpy(&rank, payload.data() + 1, sizeof(rank));
  if (rank < 0 || rank >= bootstrap_.num_ranks()) return;
  const auto text = payload.subspan(1 + sizeof(rank));
  Exclude({rank, std::string(reinterpret_cast<const char*>(text.data()),
                             std::min(text.size(), kMaxWhyBytes))});
}

std::vector<int> Watch::LostRanks() const {
  std::lock_guard lock(mutex_);
  return std::vector<int>(lost_.begin(), lost_.end());
}

Watch::JointCall::JointCall(Watch& watch, std::atomic<bool>& flag) : watch_(watch), flag_(flag) {
  std::lock_guard lock(watch_.mutex_);
  watch_.joint_calls_.push_back(this);
  if (!watch_.lost_reason_.ok()) EndLocked(watch_.lost_reason_);
}

Watch::JointCall::~JointCall() {
  std::lock_guard lock(watch_.mutex_);
  std::erase(watch_.joint_calls_, this);
}

Status Watch::JointCall::reason() const {
  std::lock_guard lock(watch_.mutex_);
  return reason_;
}

// REQUIRES: the watch's mutex is held.
void Watch::JointCall::EndLocked(const Status& reason) {
  if (!reason_.ok()) return;
  reason_ = reason;
  flag_.store(true, std::memory_order_release);
}

}  // namespace tutti
