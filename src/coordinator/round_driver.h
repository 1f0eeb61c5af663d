#pragma once

// When a process set begins a round, what this rank brings to it, and where the set stands: the
// state machine of a process set. It decides and remembers; the threads that act on it are the
// process set's.
//
//   from          event        to            what the process set does
//   kIdle         kBegin       kNegotiating  calls the others in if the last round was quiet, takes
//                                            what is new, and exchanges it without the lock
//   kNegotiating  kExchanged   kDispatching  hands the results over
//   kDispatching  kDispatched  kIdle
//   kDispatching  kEnd         kEnded        a rank leaves: all that is pending fails
//   kIdle         kFail        kEnded        breaks the exchange off; all that is pending fails
//   kNegotiating  kFail        kEnding       breaks the exchange off; the thread that drives comes
//   kDispatching  kFail        kEnding       out of it and ends the set
//   kEnding       kEnd         kEnded        all that is pending fails
//   kEnding       kExchanged   kEnding
//   kEnding, kEnded  kFail     the same      the first reason stays
//
// One thread drives at a time: the one that brought the set from kIdle to kNegotiating.
//
// A round takes all ranks and blocks until all have come. A rank that has something new begins one.
// Whether it comes without news is decided after each round (Attendance).
//
// One thread at a time: the process set guards it.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "coordinator/controller.h"
#include "coordinator/ticket.h"

namespace tutti::coordinator {

class RoundDriver {
 public:
  enum class State { kIdle, kNegotiating, kDispatching, kEnding, kEnded };
  enum class Event { kBegin, kExchanged, kDispatched, kFail, kEnd };

  // Moves on by the table above. `reason` is why the set fails or ends; others than the first are
  // dropped. Returns the new state.
  State Advance(Event event, const Status& reason = Status::Ok());

  State state() const { return state_; }
  // Returns whether the set has failed or ended; `ended` says why, or ok.
  bool has_ended() const { return state_ >= State::kEnding; }
  const Status& ended() const { return ended_; }
  bool driving() const { return state_ != State::kIdle && state_ != State::kEnded; }
  bool in_round() const { return state_ == State::kNegotiating; }
  uint64_t next_round() const { return next_round_; }
  // Returns the first round that can bring what is said from now on.
  uint64_t first_open_round() const { return in_round() ? next_round_ + 1 : next_round_; }

  // Reasons for a round beside the queue's and the pending failures'.
  void Leave(const std::string& reason) { leaving_ = reason; }
  bool leaving() const { return leaving_.has_value(); }
  void AskForStallCheck() { stall_check_ = true; }
  void Tune(const std::optional<Tuning>& tuning) { tuning_ = tuning; }
  bool tuning() const { return tuning_.has_value(); }

  // This rank's join. It is announced in one round and done in a later one.
  bool joining() const { return join_ != JoinState::kNone; }
  void Join(TicketHold ticket) {
    join_ = JoinState::kAsked;
    join_ticket_ = std::move(ticket);
  }
  // Ends the join and returns its ticket, which is empty where nobody has joined.
  TicketHold EndJoin() {
    join_ = JoinState::kNone;
    return std::move(join_ticket_);
  }

  // Returns whether a round is due for a reason other than `has_news`.
  bool IsDue(bool has_news) const;
  // Another rank calls all into rounds up to this one. Returns false for a call that can come from
  // no rank.
  bool OnRoundCall(uint64_t round);
  // Returns whether the others must be called into `round`: they have not been so far.
  bool MustCall(uint64_t round);
  // Returns whether the others must be called into the round that begins: they stay out after a
  // quiet one.
  bool CallsOthers() const { return attendance_ == Attendance::kCalled; }
  // Fills in what this rank brings to the round that begins, except for tensors and failures.
  void FillInput(RoundInput& input);
  // Decides by a round's result when this rank comes to the next.
  void Settle(bool news, const Controller& controller);

 private:
  // Says when this rank comes to the next round.
  enum class Attendance {
    kWithNews,  // when it has news, or is called
    kAlways,    // It comes at once: something here waits for ranks that may have news.
    kCalled,    // As kWithNews, but it calls the others, of whom none had news in the last round.
  };
  enum class JoinState { kNone, kAsked, kAnnounced };

  State state_ = State::kIdle;
  Status ended_;
  uint64_t next_round_ = 0;
  Attendance attendance_ = Attendance::kWithNews;
  uint64_t called_rounds_ = 0;  // this rank is called into all rounds below this one
  uint64_t rung_rounds_ = 0;    // the others have been called into all rounds below this one
  bool unsent_ = false;         // the controller has requests that it has yet to send
  bool stall_check_ = false;
  JoinState join_ = JoinState::kNone;
  TicketHold join_ticket_;
  std::optional<std::string> leaving_;
  std::optional<Tuning> tuning_;
};

}  // namespace tutti::coordinator
