#pragma once

// The state machine of a process set: when the set begins a round, the input of this rank to the
// round, and the state of the set. The driver decides and remembers; the threads that act on its
// decisions are the process set's.
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
// One thread drives at a time: the thread that brought the set from kIdle to kNegotiating.
//
// A round takes all ranks and blocks until all have come. A rank that has something new begins a
// round. Whether the rank comes without news is decided after each round (Attendance).
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

  // Moves on by the table above. `reason` says why the set fails or ends; all reasons but the first
  // are dropped. Returns the new state.
  State Advance(Event event, const Status& reason = Status::Ok());

  State state() const { return state_; }
  // Returns whether the set has failed or ended; `ended` says why, or ok.
  bool has_ended() const { return state_ >= State::kEnding; }
  const Status& ended() const { return ended_; }
  bool driving() const { return state_ != State::kIdle && state_ != State::kEnded; }
  bool in_round() const { return state_ == State::kNegotiating; }
  uint64_t next_round() const { return next_round_; }
  // Returns the first round that can carry news from now on.
  uint64_t first_open_round() const { return in_round() ? next_round_ + 1 : next_round_; }

  // Reasons for a round beside the queue's and the pending failures'.
  void Leave(const std::string& reason) { leaving_ = reason; }
  bool leaving() const { return leaving_.has_value(); }
  void AskForStallCheck() { stall_check_ = true; }
  void Tune(const std::optional<Tuning>& tuning) { tuning_ = tuning; }
  bool tuning() const { return tuning_.has_value(); }

  // This rank's join, which is announced in a round and done in a later round.
  bool joining() const { return join_ != JoinState::kNone; }
  void Join(TicketHold ticket) {
    join_ = JoinState::kAsked;
    join_ticket_ = std::move(ticket);
  }
  // Ends the join and returns its ticket, which is empty where the rank has not joined.
  TicketHold EndJoin() {
    join_ = JoinState::kNone;
    return std::move(join_ticket_);
  }

  // Returns whether a round is due for a reason other than `has_news`.
  bool IsDue(bool has_news) const;
  // Notes that another rank calls all ranks into rounds up to this round. Returns false for a call
  // that can come from no rank.
  bool OnRoundCall(uint64_t round);
  // Returns whether the others must be called into `round`, because they have not been called so
  // far.
  bool MustCall(uint64_t round);
  // Returns whether the others must be called into the new round, because they stay out after a
  // quiet round.
  bool CallsOthers() const { return attendance_ == Attendance::kCalled; }
  // Fills in the input of this rank to the new round, except for tensors and failures.
  void FillInput(RoundInput& input);
  // Decides by a round's result when this rank comes to the next.
  void Settle(bool news, const Controller& controller);

 private:
  // Says when this rank comes to the next round.
  enum class Attendance {
    kWithNews,  // when the rank has news, or is called
    kAlways,    // at once: a tensor here waits for ranks that may have news
    kCalled,  // as kWithNews, and the rank calls the others, because none had news in the last round
  };
  enum class JoinState { kNone, kAsked, kAnnounced };

  State state_ = State::kIdle;
  Status ended_;
  uint64_t next_round_ = 0;
  Attendance attendance_ = Attendance::kWithNews;
  uint64_t called_rounds_ = 0;  // this rank is called into all rounds below this one
  uint64_t rung_rounds_ = 0;    // the others have been called into all rounds below this one
  bool unsent_ = false;         // the controller has requests to send
  bool stall_check_ = false;
  JoinState join_ = JoinState::kNone;
  TicketHold join_ticket_;
  std::optional<std::string> leaving_;
  std::optional<Tuning> tuning_;
};

}  // namespace tutti::coordinator
