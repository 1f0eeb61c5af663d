#pragma once

// The state of a connection over verbs: from the set-up over the loss and renewal of queue pairs to
// the failure. kTransitions is the whole state machine, and Recovery::Advance alone changes the
// state.
//
// Lost queue pairs are made again on ports that are usable at the time (port_choice.h). Every
// message arrives once, although writes are repeated:
//
//   - A write may be repeated until its buffer has been handed to the receiver's user, because a
//     repeated write puts the same bytes at the same place. Grants and records of a group may be
//     repeated for the same reason.
//   - An immediate value must not be repeated, because each value uses up a receive. The receiver
//     therefore decides. The receiver stops its queue pairs, takes all completions up to the
//     completion of a marker that is posted last, and tells the sender which groups have come. All
//     missing groups begin anew with fresh receives, and the sender repeats their messages.
//   - No write of the old queue pairs arrives after the renewal, because the old queue pairs were
//     stopped before, and the renewed queue pairs expect new packet numbers.
//   - A message whose writes have all completed at the sender has come, with its immediate value.
//     The sender never repeats such a message, since its buffer may have new contents by then. A
//     request is done at the sender when its last write has completed, and is repeated as a whole
//     before that.
//   - The id of each request names the life of its queue pairs, by which late completions of old
//     queue pairs are recognised.
//
// Connections for one-sided operations end with a loss, because atomic additions cannot be
// repeated. Connections over iWARP end with a loss, because TCP keeps their queue pairs alive and
// nobody can renew them.
//
// Threads: one at a time.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace tutti {

class Recovery {
 public:
  enum class State : uint8_t {
    kSettingUp,  // The queue pairs of this end wait for the answer or the offer.
    kJoined,     // The queue pairs are joined, but the peer may not be ready.
    kOpen,       // Messages may go.
    kLost,       // The queue pairs are stopped, and their completions are being taken.
    kRenewed,    // The queue pairs were made again and wait to be joined.
    kRejoined,   // The queue pairs are joined again, but the peer may not be ready.
    kFailed,     // The connection has failed; the channel keeps the reason.
  };
  enum class Event : uint8_t {
    kJoin,   // This end has joined its queue pairs with the peer's.
    kOpen,   // Sender: all is joined. Receiver: "ready" came.
    kLose,   // The queue pairs are lost and may be made again; EventOf decides.
    kRenew,  // This end begins to make its queue pairs again.
    kFail,   // A failure, a refusal, a final loss or Shutdown.
  };
  enum class Action : uint8_t {
    kNone,
    kStop,    // Stop the queue pairs, and tell the peer unless the peer has told.
    kPlace,   // Put the queue pairs on usable ports. Completions of the old life are void.
    kReport,  // Say that the connection goes on.
    kKeep,    // Keep the reason, and close the control socket.
    kRefuse,  // The table has no such transition: the event came at the wrong time.
  };
  struct Transition {
    State from;
    Event event;
    State to;
    Action action;
  };
  static constexpr Transition kTransitions[] = {
      {State::kSettingUp, Event::kJoin, State::kJoined, Action::kNone},
      {State::kJoined, Event::kOpen, State::kOpen, Action::kNone},
      {State::kOpen, Event::kLose, State::kLost, Action::kStop},
      {State::kLost, Event::kRenew, State::kRenewed, Action::kPlace},
      {State::kRenewed, Event::kJoin, State::kRejoined, Action::kNone},
      {State::kRejoined, Event::kOpen, State::kOpen, Action::kReport},
      // Requests of lost queue pairs fail, and both ends may notice one loss.
      {State::kLost, Event::kLose, State::kLost, Action::kNone},
      {State::kRenewed, Event::kLose, State::kRenewed, Action::kNone},
      {State::kRejoined, Event::kLose, State::kRejoined, Action::kNone},
      // A connection that was never open has nothing to go on with.
      {State::kSettingUp, Event::kLose, State::kFailed, Action::kKeep},
      {State::kJoined, Event::kLose, State::kFailed, Action::kKeep},
      {State::kSettingUp, Event::kFail, State::kFailed, Action::kKeep},
      {State::kJoined, Event::kFail, State::kFailed, Action::kKeep},
      {State::kOpen, Event::kFail, State::kFailed, Action::kKeep},
      {State::kLost, Event::kFail, State::kFailed, Action::kKeep},
      {State::kRenewed, Event::kFail, State::kFailed, Action::kKeep},
      {State::kRejoined, Event::kFail, State::kFailed, Action::kKeep},
      // The first failure counts.
      {State::kFailed, Event::kLose, State::kFailed, Action::kNone},
      {State::kFailed, Event::kFail, State::kFailed, Action::kNone},
  };

  // Says how an end knows that queue pairs are lost.
  enum class Loss : uint8_t {
    kSeen,        // This end has seen queue pairs fail.
    kUnanswered,  // The peer no longer answers.
    kTold,        // The peer has told of the loss.
    kPlanned,     // This end gives the queue pairs up to move them to better ports.
  };

  // Losses in a row, without a message in between, until the connection fails. Each loss may cost
  // the time that NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT set.
  static constexpr int kMostLossesInARow = 3;
  // The life is in bits 48 to 60 of an id, and is counted modulo kLives.
  static constexpr int kLifeShift = 48;
  static constexpr uint32_t kLives = 1u << 13;

  // A connection that `recovers` makes lost queue pairs again, within `resume_within_ns`.
  Recovery(bool recovers, int64_t resume_within_ns)
      : recovers_(recovers && resume_within_ns > 0), resume_within_ns_(resume_within_ns) {}

  State state() const { return state_; }
  bool recovers() const { return recovers_; }
  bool open() const { return state_ == State::kOpen; }
  // Returns whether queue pairs were lost, and the connection is not open again.
  bool lost() const { return state_ >= State::kLost && state_ <= State::kRejoined; }
  // Moves to the next state by kTransitions, and returns the action for the caller to carry out.
  Action Advance(Event event);

  // Counts a loss, and returns the event for Advance: kFail where lost queue pairs are not made
  // again, or were lost too often in a row, and else kLose.
  Event EventOf(Loss loss);
  // Takes notice of a message that has come or gone as a whole.
  void NoteWhole() { losses_in_a_row_ = 0; }
  int losses_in_a_row() const { return losses_in_a_row_; }
  // Keeps the reason and the time of a loss.
  void Remember(Status why, int64_t now_ns) {
    why_ = std::move(why);
    lost_at_ns_ = now_ns;
  }
  // Returns the reason of the last loss, with the consequence behind it.
  Status Because(std::string_view consequence) const;
  // Returns a failure once lost queue pairs could not be joined again in time.
  Status CheckTime(int64_t now_ns) const;
  // Logs that the connection with `peer` goes on over the ports `over`. Warns at most once a
  // minute.
  void Report(std::string_view peer, std::string_view over, size_t repeated, int64_t now_ns);

  // Marks the id of a request with the life of the queue pairs.
  uint64_t Mark(uint64_t id) const { return id | uint64_t{life_} << kLifeShift; }
  // Takes the mark from the id of a completion. Returns whether the completion is of this life's
  // queue pairs.
  bool Unmark(uint64_t& id) const {
    constexpr uint64_t kMask = uint64_t{kLives - 1} << kLifeShift;
    const bool is_ours = (id & kMask) >> kLifeShift == life_;
    id &= ~kMask;
    return is_ours;
  }

 private:
  const bool recovers_;
  const int64_t resume_within_ns_;
  State state_ = State::kSettingUp;
  uint32_t life_ = 0;
  int losses_in_a_row_ = 0;
  Status why_;  // of the last loss
  int64_t lost_at_ns_ = 0;
  int64_t warned_at_ns_ = 0;  // 0: never
};

}  // namespace tutti
