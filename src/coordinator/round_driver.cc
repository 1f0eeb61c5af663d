#include "coordinator/round_driver.h"

#include <algorithm>

namespace tutti::coordinator {
namespace {

// Rounds take all ranks, and no rank is more than a few rounds ahead, but for early round calls of
// a new set.
constexpr uint64_t kMostAhead = 1024;

}  // namespace

RoundDriver::State RoundDriver::Advance(Event event, const Status& reason) {
  switch (event) {
    case Event::kBegin:
      if (state_ == State::kIdle) state_ = State::kNegotiating;
      break;
    case Event::kExchanged:
      ++next_round_;
      if (state_ == State::kNegotiating) state_ = State::kDispatching;
      break;
    case Event::kDispatched:
      if (state_ == State::kDispatching) state_ = State::kIdle;
      break;
    case Event::kFail:
      if (has_ended()) break;
      ended_ = reason;
      state_ = driving() ? State::kEnding : State::kEnded;
      break;
    case Event::kEnd:
      if (!has_ended()) ended_ = reason;
      state_ = State::kEnded;
      break;
  }
  return state_;
}

bool RoundDriver::IsDue(bool has_news) const {
  if (has_ended()) return false;
  return has_news || unsent_ || join_ == JoinState::kAsked || leaving_ || stall_check_ || tuning_ ||
         called_rounds_ > next_round_ || attendance_ == Attendance::kAlways;
}

bool RoundDriver::OnRoundCall(uint64_t round) {
  // Ranks are never far apart. A call from further ahead would keep all in rounds for ever.
  if (has_ended() || round > next_round_ + kMostAhead) return false;
  called_rounds_ = std::max(called_rounds_, round + 1);
  return true;
}

bool RoundDriver::MustCall(uint64_t round) {
  if (rung_rounds_ > round) return false;
  rung_rounds_ = round + 1;
  return true;
}

void RoundDriver::FillInput(RoundInput& input) {
  input.leaving = leaving_;
  input.joining = join_ == JoinState::kAsked;
  if (input.joining) join_ = JoinState::kAnnounced;
  input.stall_check = std::exchange(stall_check_, false);
  input.tuning = std::exchange(tuning_, std::nullopt);
}

void RoundDriver::Settle(bool news, const Controller& controller) {
  const bool waits = controller.HasPending() || controller.joined();
  attendance_ = !news ? Attendance::kCalled : waits ? Attendance::kAlways : Attendance::kWithNews;
  unsent_ = controller.HasUnsent();
}

}  // namespace tutti::coordinator
