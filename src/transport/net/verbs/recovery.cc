#include "transport/net/verbs/recovery.h"

#include "base/log.h"

namespace tutti {
namespace {

constexpr int64_t kBetweenWarningsNs = 60'000'000'000;

}  // namespace

Recovery::Action Recovery::Advance(Event event) {
  for (const Transition& row : kTransitions) {
    if (row.from != state_ || row.event != event) continue;
    state_ = row.to;
    if (row.action == Action::kPlace) life_ = (life_ + 1) % kLives;
    return row.action;
  }
  return Action::kRefuse;
}

// Counts only losses that this end has seen: the peer counts its own, and a planned loss says
// nothing about the way between the ends.
Recovery::Event Recovery::EventOf(Loss loss) {
  const bool counts = loss == Loss::kSeen || loss == Loss::kUnanswered;
  const bool last = counts && ++losses_in_a_row_ > kMostLossesInARow;
  return recovers_ && !last ? Event::kLose : Event::kFail;
}

Status Recovery::Because(std::string_view consequence) const {
  return Status(why_.code(), fmt::format("{}; {}", why_.message(), consequence));
}

Status Recovery::CheckTime(int64_t now_ns) const {
  if (!lost() || now_ns - lost_at_ns_ < resume_within_ns_) return Status::Ok();
  return Because(
      fmt::format("the queue pairs could not be joined again within {} s (TUTTI_RESUME_TIMEOUT_S)",
                  resume_within_ns_ / 1'000'000'000));
}

// A connection that loses its queue pairs again and again must not fill the log with warnings.
void Recovery::Report(std::string_view peer, std::string_view over, size_t repeated,
                      int64_t now_ns) {
  const std::string line = fmt::format(
      "net IB: the connection with {} lost its queue pairs ({}) and goes on over {} after {} ms; "
      "{} messages are sent a second time",
      peer, why_.message(), over, (now_ns - lost_at_ns_) / 1'000'000, repeated);
  if (warned_at_ns_ != 0 && now_ns - warned_at_ns_ < kBetweenWarningsNs) {
    TUTTI_INFO(kLogNet, "{}", line);
    return;
  }
  warned_at_ns_ = now_ns;
  TUTTI_WARN("{}", line);
}

}  // namespace tutti
