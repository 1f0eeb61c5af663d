#include "watch/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/exceptions.h"

namespace tutti {

Watch::Watch(Bootstrap& bootstrap, int64_t timeout_ns, std::vector<std::string> rank_names,
             int64_t explain_ns)
    : bootstrap_(bootstrap),
      timeout_ns_(timeout_ns),
      explain_ns_(explain_ns),
      rank_names_(std::move(rank_names)),
      log_(bootstrap.num_ranks()),
      present_timeout_ns_(timeout_ns),
      broken_data_(bootstrap.rank(), bootstrap.num_ranks()) {}

void Watch::Start() {
  bootstrap_.SetEvents({
      .ranks_lost = [this](std::span<const LostRank> lost) { OnLost(lost); },
      .peer_left = [this](int rank) { OnPeerLeft(rank); },
      .control = [this](int from, std::span<const std::byte> payload) { OnControl(from, payload); },
      .failed = [this](const Status& why) { Stop(why, /*tell=*/true); },
  });
}

void Watch::StopListening(EventLoop& loop) {
  bootstrap_.SetEvents({});
  loop.RunSync([] {});  // An event that was being handled is over now.
}

// ---------------------------------------------------------------------------------------------------------------------
// Stopping

void Watch::SetStopHook(std::function<void()> hook) {
  bool stopped_before = false;
  {
    const MutexLock lock(mutex_);
    stop_hook_ = hook;
    stopped_before = !reason_.ok();
  }
  if (stopped_before) hook();
}

// Only the first reason counts. The flag is raised under the mutex, so a waiting thread cannot miss
// it between its look and its sleep.
void Watch::Stop(const Status& reason, bool tell) {
  std::function<void()> hook;
  {
    const MutexLock lock(mutex_);
    if (!reason_.ok()) return;
    try {
      reason_ = reason;
    } catch (...) {  // The communicator stops also where no memory is left for its reason.
      reason_ = StatusOfException();
    }
    stop_.store(true, std::memory_order_release);
    changed_.NotifyAll();
    hook = stop_hook_;
    EndJointCalls(reason);
  }
  if (hook) hook();  // Without the mutex: the hook may ask the watch, or stop another watch.
  if (!tell) return;
  // Body: the code, a single byte, and the sentence.
  Bytes message = StartMessage(Message::kFailure);
  message.push_back(static_cast<std::byte>(reason.code()));
  AppendText(reason.message(), message);
  for (const int rank : bootstrap_.LinkedRanks()) bootstrap_.SendControl(rank, message);
}

void Watch::OnFailure(std::span<const std::byte> body) {
  if (body.empty()) return;
  const auto code = std::to_integer<uint8_t>(body[0]);
  const bool known = code >= 1 && code <= static_cast<uint8_t>(Code::kTimeout);
  Stop(Status(known ? static_cast<Code>(code) : Code::kRemoteError, TextOf(body.subspan(1))),
       /*tell=*/true);
}

Status Watch::StopReason() {
  const MutexLock lock(mutex_);
  return reason_.ok() ? InternalError("the communicator was stopped without a reason") : reason_;
}

// ---------------------------------------------------------------------------------------------------------------------
// Events and names

void Watch::OnControl(int from, std::span<const std::byte> payload) {
  if (payload.empty()) return;
  const auto body = payload.subspan(1);
  switch (static_cast<Message>(payload[0])) {
    case Message::kFailure:
      return OnFailure(body);
    case Message::kInquiry:
      return OnInquiry(from, body);
    case Message::kDoing:
      return OnDoing(from, body);
    case Message::kLeaving:
      return OnLeaveNotice(payload);
    case Message::kBrokenData:
      return OnBrokenData(body);
    case Message::kCallGivenUp:
      return OnCallGivenUp(body);
  }
}

void Watch::OnPeerLeft(int rank) {
  const MutexLock lock(mutex_);
  left_at_ns_.try_emplace(rank, NowNs());
  broken_data_.NoteLeft(rank);
  changed_.NotifyAll();
}

void Watch::AwaitChange(MutexLock& lock, int64_t until_ns) {
  changed_.WaitUntil(lock,
                     std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until_ns)));
}

bool Watch::HasLeft(int rank) const {
  const MutexLock lock(mutex_);
  return left_at_ns_.contains(rank);
}

// A text is the rest of its message.
void Watch::AppendText(std::string_view text, Bytes& bytes) {
  text = text.substr(0, kMaxTextBytes);
  const auto raw = std::as_bytes(std::span(text));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

std::string Watch::TextOf(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()),
                     std::min(bytes.size(), kMaxTextBytes));
}

std::string Watch::NameOf(int rank) const { return rank_names_[static_cast<size_t>(rank)]; }

std::string Watch::NameAll(std::span<const int> ranks) const {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxRanksShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", NameOf(ranks[i]));
  if (ranks.size() > kMaxRanksShown)
    text += fmt::format(" and {} more", ranks.size() - kMaxRanksShown);
  return text;
}

}  // namespace tutti
