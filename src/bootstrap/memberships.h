#pragma once

// Memberships: the communicators of an Endpoint (membership.h): the frames that arrive for them,
// their events, and the reasons why their waits end.
//
// Threads: every call is made with the mutex of the Endpoint held.

#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "bootstrap/links.h"
#include "bootstrap/membership.h"

namespace tutti {

using MembershipPtr = std::shared_ptr<Membership>;

class Memberships {
 public:
  // The most bytes of messages that have not been asked for, of all communicators together. A rank
  // this far ahead of another has a defect, and must not use up the other's memory.
  static constexpr size_t kMaxHeldBytes = 256u << 20;
  // The most communicators of which frames may come before this rank joins them.
  static constexpr size_t kMaxEarlyCommunicators = 1024;
  // The most communicators left by this rank whose late frames are dropped.
  static constexpr size_t kMaxRememberedLeft = 4096;

  struct EarlyFrame {
    int peer;
    FrameHeader header;
    Bytes payload;
  };
  // An event, and the callbacks to hand it to.
  using Delivery = std::pair<MembershipEvent, std::shared_ptr<const Bootstrap::Events>>;

  // `deliver` is called when events wait to be told. The callback must have NextEvent called on the
  // loop's thread, until NextEvent returns nothing.
  Memberships(const EndpointOptions& options, const Peers& peers, Links& links,
              std::function<void()> deliver)
      : options_(options), peers_(peers), links_(links), deliver_(std::move(deliver)) {}

  // Adds a communicator. Returns the frames for the communicator that have come already, in order.
  std::vector<EarlyFrame> Add(const MembershipPtr& membership);
  // Removes a communicator, with its messages, events and callbacks. Returns whether it was known.
  bool Remove(const MembershipPtr& membership);
  bool empty() const { return by_id_.empty(); }

  // Take a frame of endpoint rank `peer`. They fail where the peer breaks the rules.
  Status Take(int peer, const FrameHeader& header, Bytes payload);
  Status TakeFor(const MembershipPtr& membership, int peer, const FrameHeader& header,
                 Bytes payload);
  // Returns the first message of this key, or nothing, and removes the message.
  std::optional<Bytes> TakeMail(Membership& membership, const Membership::MailKey& key);

  void SetEvents(const MembershipPtr& membership, Bootstrap::Events events);
  std::optional<Delivery> NextEvent();

  // Returns why nothing is to be sent to, or expected of, rank `rank` of the communicator.
  Status CheckMember(const Membership& membership, int rank) const;
  // Returns why no further message of rank `rank` will come. REQUIRES: the messages that have come
  // are taken.
  Status CheckAwaited(const Membership& membership, int rank) const;
  // Returns a text such as "rank 2 (pid 7 on node5)". A communicator that is being made from
  // another communicator has no ranks that its users know, so the text names the parent's rank.
  std::string NameOf(const Membership& membership, int rank) const;
  void Cancel(Membership& membership, Status reason);
  // Tells the members that this rank gives up. Returns the frame with the reason; nothing where the
  // frame was sent before.
  Bytes GiveUp(Membership& membership, const Status& reason);
  // Sends to all members with a link, or an attempt to open a link.
  void SendToMembers(const Membership& membership, const Bytes& frame);

  // Tells the communicators that these endpoint ranks are lost.
  void TakeLost(std::span<const LostRank> lost);
  // Tells one communicator that these members, by their rank in it, are lost.
  void MarkLost(const MembershipPtr& membership, std::span<const LostRank> lost);
  // Ends the communicators that are being made: the process cannot accept another rank, and they
  // would wait for that rank in vain. A communicator that has been made may not need the rank.
  void TakeShortage(const Status& why);
  // Ends the communicators that this rank and `peer` belong to, because this rank cannot connect.
  void FailWith(int peer, const Status& failure);
  // Has every wait look at its condition again.
  void WakeAll();

 private:
  bool Hold(size_t bytes);
  Status HoldFor(const Bytes& payload);
  void PushEvent(const MembershipPtr& membership, MembershipEvent event);
  void TellLater(const MembershipPtr& membership);
  void TakeGivingUp(const MembershipPtr& membership, std::span<const std::byte> payload);
  std::string LossText(const Membership& membership, const LostRank& lost) const;
  void ForgetMail(Membership& membership);

  const EndpointOptions& options_;
  const Peers& peers_;
  Links& links_;
  const std::function<void()> deliver_;

  std::map<uint64_t, MembershipPtr> by_id_;
  std::map<uint64_t, std::vector<EarlyFrame>> early_;
  std::set<uint64_t> left_;
  std::deque<uint64_t> left_order_;
  size_t held_bytes_ = 0;
  std::list<MembershipPtr> with_events_;
  bool delivering_ = false;
};

}  // namespace tutti
