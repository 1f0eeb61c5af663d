#pragma once

// Losses: how an Endpoint finds out which ranks are lost.
//
// A rank whose link broke and cannot be made again (links.h) is suspected (peer.h): the two ranks
// exchange no more frames of communicators, and this rank accuses the other (loss_agreement.h). The
// accusation is certain where the other process has ended. When the agreement has decided, every
// communicator learns at once which of its members are lost, on all ranks alike.
//
// Threads: every call is made with the mutex of the Endpoint held, on the loop's thread.

#include <optional>
#include <vector>

#include "bootstrap/loss_agreement.h"
#include "bootstrap/memberships.h"

namespace tutti {

class Losses {
 public:
  Losses(LockedLoop& loop, const EndpointOptions& options, Peers& peers, Links& links,
         Memberships& memberships)
      : loop_(loop),
        options_(options),
        peers_(peers),
        links_(links),
        memberships_(memberships),
        agreement_(options.rank, options.num_ranks) {}

  // Takes note that no link to `peer` can be made. `certain`: the process of the peer has ended.
  void Suspect(int peer, bool certain, const std::string& why);
  // Takes note that `peer` has closed its links with kEnd.
  void NoteEnd(int peer);
  // Takes the facts of a kLosses frame.
  Status TakeFacts(std::span<const std::byte> facts);
  // Sends all facts of this rank on a link that has just been opened.
  void Greet(const Links::LinkPtr& link);
  // Returns the members that are lost, by their rank in the communicator.
  std::vector<LostRank> LostAmong(const Membership& membership) const;
  // Ends the timer. Called when the links close.
  void Stop() { loop_.CancelTimer(timer_); }

 private:
  void FollowAgreement();
  void TellNews();
  void TakeDecision(const std::vector<LostRank>& lost);

  LockedLoop& loop_;
  const EndpointOptions& options_;
  Peers& peers_;
  Links& links_;
  Memberships& memberships_;

  LossAgreement agreement_;
  bool news_posted_ = false;
  EventLoop::TimerId timer_ = 0;
  std::optional<std::string> excluded_;  // the reason why the others go on without this rank
};

}  // namespace tutti
