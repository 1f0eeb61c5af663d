#pragma once

// The bootstrap: how the ranks of a job find one another and exchange small values before (and
// beside) the transports.
//
//   ncclGetUniqueId → Root (serves addresses)
//   every rank → Bootstrap::Create → links at distance 2^k
//
// A UniqueId names a root and carries a random key. Every rank opens a listening socket for the
// other ranks and registers its address with the root in charge of the rank. The connection to the
// root stays open for the answer (docs/adr/one-listening-socket.md): the addresses of the ranks at
// distance 1, 2, 4, … from the asking rank. The links to these ranks close the ring and give a
// log-depth all-gather, by which every rank learns all addresses; further links are made when a
// message needs them. Both ends of every connection prove that they hold the key before a byte is
// parsed (bootstrap/auth.h).
//
// A communicator made from another communicator (split, shrink) is a Bootstrap over the same
// endpoint with its own id: no new sockets and no exchange are needed.
//
// While a communicator is being made, until Complete, the loss of a member, or its GiveUp, ends the
// waits of all members with the same reason. After Complete a loss is an event. The remaining ranks
// agree on who is lost (loss_agreement.h): all of them hear of the same ranks, and a live rank that
// the others exclude hears of itself.
//
// Threads: sockets are served by an EventLoop; messages that arrive early wait in a mailbox until
// they are asked for. At most one thread at a time may make the blocking calls of a Bootstrap;
// Events are called on the loop's thread and must not block.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/loss_agreement.h"
#include "bootstrap/unique_id.h"
#include "bootstrap/wait_listener.h"
#include "bootstrap/wire.h"
#include "config/settings.h"
#include "sys/event_loop.h"

namespace tutti {

class Endpoint;

class Bootstrap {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 1;
    std::vector<UniqueId> ids;              // an id for each root
    Deadline deadline = Deadline::Never();  // bounds the whole of Create
    std::string name = {};                  // of the communicator, for sentences. May be empty.
    // Every wait ends soon after the flag becomes true. May be null; otherwise the flag must
    // outlive the Bootstrap. The Bootstrap itself raises the flag when the making of the
    // communicator is cancelled, and so ends all waits of its owner that look at the flag.
    std::atomic<bool>* abort_flag = nullptr;
    // Returns the reason for the other ranks when abort_flag ends Create. May be empty.
    std::function<Status()> abort_reason = {};

    WaitLimits limits() const { return {deadline, abort_flag}; }
  };

  // Callbacks for events without a call of this rank. They are called on the loop's thread, in
  // order, never concurrently for the same Bootstrap.
  struct Events {
    // These ranks are lost: their processes ended, or their hosts are out of reach, or the others
    // go on without them because a connection broke (this rank may be among them). All losses of a
    // single decision are told in a single call.
    std::function<void(std::span<const LostRank>)> ranks_lost;
    // `rank` has destroyed its communicator.
    std::function<void(int rank)> peer_left;
    // `rank` has sent a control message (see SendControl).
    std::function<void(int rank, std::span<const std::byte> payload)> control;
    // This rank cannot go on for a reason of its own, such as a lack of file descriptors.
    std::function<void(const Status&)> failed;
  };

  // Finds all ranks. Blocks. Fails on every rank, with the reason, when ranks are missing at the
  // deadline (named), two ranks take the same number (both named) or the ranks disagree on
  // num_ranks.
  static Result<std::unique_ptr<Bootstrap>> Create(EventLoop& loop, const Settings& settings,
                                                   const Options& options);
  // Tells the root of these ids why this rank will not come to Create, so that the other ranks need
  // not wait for this rank. Best effort; takes a second at most.
  static void Decline(const Settings& settings, const Options& options, const Status& why);
  // Tells the ranks with a link that this rank has left the communicator.
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;
  // Returns a number that all ranks of this communicator share, and no other communicator has.
  virtual uint64_t id() const = 0;
  // Returns the id whose key authenticates further connections of this job. The job's secret is in
  // the key already (Root::KeyOf).
  virtual const UniqueId& key_holder() const = 0;

  // Exchanges `bytes_per_rank` bytes of each rank. `data` has a part for each rank; the caller has
  // filled its own, and all are filled on return. `abort_flag` ends this exchange besides the
  // Bootstrap's own flag: an exchange of a parent for the making of a child ends when the child is
  // given up.
  virtual Status AllGather(void* data, size_t bytes_per_rank, Deadline deadline,
                           const std::atomic<bool>* abort_flag = nullptr) = 0;
  // Exchanges any number of bytes of each rank, at most kMaxFrameBytes in all.
  virtual Result<std::vector<Bytes>> AllGatherV(std::span<const std::byte> mine,
                                                Deadline deadline) = 0;
  virtual Status Barrier(Deadline deadline) = 0;

  // Send and Recv pass messages between two ranks. They are matched by sender and tag, in order.
  // Send never waits for the receiver.
  virtual Status Send(int peer, uint32_t tag, std::span<const std::byte> payload) = 0;
  virtual Result<Bytes> Recv(int peer, uint32_t tag, Deadline deadline) = 0;

  // Begins a wait for `peer` by other means than messages, and returns the function by which its
  // owner follows the wait, several times a second. The function tells the wait to the other ranks
  // and warns, as in Recv; a status that is not ok ends the wait. `what` is a text such as "the
  // memory of", and must be a literal. REQUIRES: the function is not called after the end of this
  // Bootstrap.
  virtual std::function<Status()> FollowWait(const char* what, int peer, Deadline deadline,
                                             const std::atomic<bool>* abort_flag) = 0;

  // Delivers `payload` to the control event of `peer` (connecting if need be), without waiting. Any
  // thread. Best effort: nothing is reported when the peer is gone.
  virtual void SendControl(int peer, std::span<const std::byte> payload) = 0;
  // Does the same over a link that exists already, and never makes a link. Returns whether the
  // message is on its way: false where there is no link, or `peer` has left or is lost.
  virtual bool SendControlIfLinked(int peer, std::span<const std::byte> payload) = 0;
  // Returns the ranks with which this rank has a link from the beginning: the ranks at distance 2^k
  // in both directions. A message that each rank passes on to its linked ranks reaches every rank.
  virtual std::vector<int> LinkedRanks() const = 0;
  // Returns the shortest time so far in which the host of `peer` has answered on its link; 0 where
  // there is no link, or the time is not known.
  virtual int64_t RoundTripNs(int peer) = 0;

  // Sets the callbacks for events from now on. Earlier events are delivered at once, on the loop's
  // thread.
  virtual void SetEvents(Events events) = 0;

  // Sets the listener for waits of this communicator, and of the communicators that are being made
  // from this communicator, by the ranks of this communicator. Null, as at first: the bootstrap
  // warns by itself. The listener must outlive all waits.
  virtual void SetWaitListener(WaitListener* listener) = 0;

  // Declares the communicator made: from now on a lost rank is an event, and ends only the waits
  // for this rank. Fails with the reason where the making has been cancelled.
  virtual Status Complete() = 0;

  // Tells the other ranks that this rank cannot go on making the communicator, and why. Their
  // making ends with `reason`; for ranks that have completed the communicator, this rank is lost.
  // The caller must call this before destruction, because destruction alone gives no reason.
  virtual void GiveUp(const Status& reason) = 0;

  // Ends the calling thread's wait (if any) and all later ones with `reason`. Any thread.
  virtual void Cancel(Status reason) = 0;
  // Returns why the waits of this communicator end; success while they do not. Any thread.
  virtual Status CancelReason() = 0;

  // Returns the ranks known to this rank as lost, in order. Any thread.
  virtual std::vector<LostRank> LostRanks() = 0;

  // Makes the communicator of `parent_ranks`, in the order of their new ranks. This rank must be
  // among them, and all of them must make the same call. `child_id` must be the same on all members
  // and new. Links are made on demand, the ring's links at once (without waiting). The child obeys
  // `abort_flag` (as in Options) and not the parent's flag: the child lives on when its parent is
  // aborted. Where a member is lost already, the child is cancelled from the beginning. Until
  // Complete of the child, a wait for a rank that has left this communicator fails, and sentences
  // name ranks by their numbers in this communicator.
  virtual std::unique_ptr<Bootstrap> CreateChild(uint64_t child_id, std::vector<int> parent_ranks,
                                                 std::atomic<bool>* abort_flag) = 0;

  // The wall time of each phase of Create, for TUTTI_PRINT_INIT_TIMES.
  struct PhaseTimes {
    int64_t register_ns = 0;
    int64_t link_ns = 0;
    int64_t exchange_ns = 0;
  };
  virtual PhaseTimes phase_times() const = 0;
};

}  // namespace tutti
