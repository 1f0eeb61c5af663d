#include "watch/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

// An agreement on broken connections for data ends within this time. The agreement takes 0.6 s
// after the last accusation (loss_agreement.h); a rank whose host is overloaded takes longer.
constexpr int64_t kAgreeNs = 30'000'000'000;

}  // namespace

Watch::Watch(Bootstrap& bootstrap, Options options, observe::OwnedRecord record)
    : bootstrap_(bootstrap),
      options_(std::move(options)),
      label_(options_.name.empty()
                 ? fmt::format("communicator {:016x}", bootstrap.id())
                 : fmt::format("communicator {} ({:016x})", options_.name, bootstrap.id())),
      record_(std::move(record)),
      log_(bootstrap.num_ranks(), record_->operations),
      timeout_ns_(options_.timeout_ns),
      present_timeout_ns_(options_.timeout_ns),
      broken_data_(bootstrap.rank(), bootstrap.num_ranks()) {}

void Watch::Start() {
  if (const MutexLock lock(mutex_); reason_.ok())
    record_->state.Store({.since_ns = NowNs(), .phase = observe::Phase::kInOperation});
  if (options_.board != nullptr) options_.board->Add(*this);
  bootstrap_.SetWaitListener(this);
  bootstrap_.SetEvents({
      .ranks_lost = [this](std::span<const LostRank> lost) { OnLost(lost); },
      .peer_left = [this](int rank) { OnPeerLeft(rank); },
      .control = [this](int from, std::span<const std::byte> payload) { OnControl(from, payload); },
      .failed = [this](const Status& why) { Stop(why, /*tell=*/true); },
  });
}

void Watch::StopListening(EventLoop& loop) {
  if (options_.board != nullptr) options_.board->Remove(*this);
  bootstrap_.SetWaitListener(nullptr);
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
    record_->state.Store({.since_ns = NowNs(),
                          .phase = observe::Phase::kStopped,
                          .code = static_cast<int32_t>(reason_.code()),
                          .reason = observe::ToShortText<496>(reason_.message())});
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
// Lost ranks: how the watch reports them, which calls they end, and how the ranks agree on whom to
// exclude when connections for data break although both ends live.

Status Watch::LossStatus(std::span<const LostRank> lost) const {
  std::string text;
  for (const LostRank& one : lost) {
    const bool here = one.rank == bootstrap_.rank();
    text += fmt::format("{}{} was {}: {}", text.empty() ? "" : "; ", NameOf(one.rank),
                        here ? "excluded by the other ranks" : "lost", one.why);
  }
  return RemoteError("{}: {}. The communicator cannot go on; abort it, or shrink it without {}",
                     label_, text, lost.size() == 1 ? "that rank" : "these ranks");
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
  const bool over = AwaitOver(peer, Deadline::After(options_.explain_ns));
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
    case Message::kHung:
      return OnHung(body);
    case Message::kLetter:
    case Message::kPace:
      return OnLetter(static_cast<Message>(payload[0]), body);
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
  return PrintableText(bytes.first(std::min(bytes.size(), kMaxTextBytes)));
}

std::string Watch::NameOf(int rank) const { return options_.rank_names[static_cast<size_t>(rank)]; }

std::string Watch::NameAll(std::span<const int> ranks) const {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxRanksShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", NameOf(ranks[i]));
  if (ranks.size() > kMaxRanksShown)
    text += fmt::format(" and {} more", ranks.size() - kMaxRanksShown);
  return text;
}

}  // namespace tutti
