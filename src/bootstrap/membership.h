#pragma once

// Membership: a rank's part in a communicator, as its Endpoint sees it: who the members are, how
// they fare, the messages that wait to be asked for, the events that wait to be told.
//
// A plain record. The mutex of its Endpoint guards it; only the endpoint's parts touch it.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame.h"

namespace tutti {

struct MembershipEvent {
  enum class Kind { kLost, kLeft, kControl, kFailed };
  Kind kind = Kind::kLost;
  int rank = 0;                     // kLeft, kControl
  std::vector<LostRank> lost = {};  // kLost
  Bytes payload = {};               // kControl
  Status failure = {};              // kFailed
};

struct Membership {
  enum class PeerState : uint8_t { kHere, kLeft, kLost };
  // Messages are matched by type, sender and tag; each key's messages keep their order.
  using MailKey = std::tuple<LinkFrameType, int, uint32_t>;

  Membership(uint64_t frame_id_in, int rank_in, std::vector<int> members_in)
      : frame_id(frame_id_in), rank(rank_in), members(std::move(members_in)) {
    for (size_t i = 0; i < members.size(); ++i) rank_of[members[i]] = static_cast<int>(i);
    states.resize(members.size(), PeerState::kHere);
  }

  int size() const { return static_cast<int>(members.size()); }
  // Moves a member that is here to `state`. Returns false where the member has left or is lost.
  bool Advance(int member, PeerState state) {
    PeerState& present = states[static_cast<size_t>(member)];
    return present == PeerState::kHere && std::exchange(present, state) != state;
  }

  const uint64_t frame_id;  // the communicator field of its frames; 0 for the endpoint's first
  const int rank;
  const std::vector<int> members;        // The endpoint's rank of each rank of this communicator.
  std::unordered_map<int, int> rank_of;  // each member's rank in this communicator
  std::atomic<bool>* abort_flag = nullptr;
  std::string name;  // for sentences; may be empty
  // The communicator from which this communicator is made, and the members' ranks there; only while
  // this communicator is being made.
  std::shared_ptr<const Membership> parent;
  std::vector<int> parent_ranks;
  WaitListener* listener = nullptr;  // see Bootstrap::SetWaitListener
  int64_t warned_ns = 0;             // the time of the last warning of this rank without listener
  int64_t told_ns = 0;               // the time of the last kHeldUp of this rank
  // A deadline that came while this process stood still, and its new time.
  int64_t postponed_ns = 0;
  int64_t postponed_to_ns = 0;

  std::vector<PeerState> states;
  std::unordered_map<int, std::string> lost_why;
  std::map<MailKey, std::deque<Bytes>> mail;
  Status cancelled;  // ok: not cancelled
  // The communicator is being made: a member that is lost or gives up cancels the making. After the
  // making a lost member is an event.
  bool initialising = true;
  std::vector<int> link_sources;  // the ranks that open a link to this rank during the making
  bool gave_up = false;           // the other members were told that this rank gives up
  Bytes giving_up;                // the frame of this rank that gives up
  CondVar changed;

  std::deque<MembershipEvent> events;
  std::shared_ptr<const Bootstrap::Events> handlers;  // null: not set yet
};

}  // namespace tutti
