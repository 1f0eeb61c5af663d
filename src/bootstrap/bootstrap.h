#pragma once

// The bootstrap: how the ranks of a job find one another and exchange small values before (and
// beside) the transports.
//
//   ncclGetUniqueId → Root (serves addresses)
//   every rank → Bootstrap::Create → links at distance 2^k
//
// A UniqueId names a root and carries a random key. Every rank opens one listening socket, for the
// other ranks, and registers it with the root in charge of it, over a connection that stays open
// for the answer (docs/adr/one-listening-socket.md): the addresses of the ranks at distance 1, 2,
// 4, … from it.
// Those links close the ring and give a log-depth all-gather, which tells every rank all addresses;
// further links are made when a message needs one. Both ends of every connection prove that they
// hold the key before a byte is parsed (bootstrap/auth.h).
//
// A communicator made from another one (split, shrink) is a Bootstrap over the same endpoint with
// its own id: it needs no new sockets and no exchange.
//
// While a communicator is being made, which lasts until Complete, the loss of one member, or its
// GiveUp, ends the waits of all members with the same reason. Afterwards a loss is an event. Who is
// lost is agreed on among the ranks that are left (loss_agreement.h): all of them hear of the same
// ranks, and a rank that lives and is excluded all the same hears of itself.
//
// Threads: sockets are served by one EventLoop; messages that arrive early wait in a mailbox until
// they are asked for. The blocking calls may be made from any one thread at a time per Bootstrap;
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
#include "config/settings.h"
#include "sys/event_loop.h"

namespace tutti {

using Bytes = std::vector<std::byte>;

class Endpoint;

class Bootstrap {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 1;
    std::vector<UniqueId> ids;              // There is one for each root.
    Deadline deadline = Deadline::Never();  // It bounds the whole of Create.
    // Every wait ends soon after it becomes true. May be null; else it must outlive the Bootstrap.
    // The Bootstrap raises it itself when the making of the communicator is cancelled, so that
    // other waits that look at it end as well.
    std::atomic<bool>* abort_flag = nullptr;
    // Returns what the other ranks are told when abort_flag ends Create. May be empty.
    std::function<Status()> abort_reason = {};
  };

  // Callbacks for what happens without a call of this rank. They are called on the loop's thread,
  // in order, never concurrently for one Bootstrap.
  struct Events {
    // These ranks are lost: their processes ended, or their hosts are out of reach, or the others
    // go on without them because a connection broke (this rank may be one of them). What was
    // decided at once is told at once.
    std::function<void(std::span<const LostRank>)> ranks_lost;
    // `rank` has destroyed its communicator.
    std::function<void(int rank)> peer_left;
    // `rank` has sent a control message (see SendControl).
    std::function<void(int rank, std::span<const std::byte> payload)> control;
    // This rank cannot go on for a reason of its own, such as a lack of file descriptors.
    std::function<void(const Status&)> failed;
  };

  // Finds all ranks. Blocks. Fails on every rank, with the reason, when ranks are missing at the
  // deadline (named), one number is taken twice (both named) or the ranks disagree on num_ranks.
  static Result<std::unique_ptr<Bootstrap>> Create(EventLoop& loop, const Settings& settings,
                                                   const Options& options);
  // Tells the root of these ids why this rank will not come to Create, so that the other ranks need
  // not wait for it. Best effort; takes a second at most.
  static void Decline(const Options& options, const Status& why);
  // Tells the ranks with a link that this one has left the communicator.
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;
  // Returns a number that all ranks of this communicator have, and no other communicator.
  virtual uint64_t id() const = 0;
  // Returns the id whose key authenticates further connections of this job.
  virtual const UniqueId& key_holder() const = 0;

  // Exchanges `bytes_per_rank` bytes of each rank. `data` has a part for each rank; the caller has
  // filled its own, and all are filled on return. `abort_flag` ends this one exchange besides the
  // Bootstrap's own: an exchange of a parent that serves to make a child ends when the child is
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

  // Delivers `payload` to the control event of `peer` (connecting if need be), without waiting. Any
  // thread. Best effort: nothing is reported when the peer is gone.
  virtual void SendControl(int peer, std::span<const std::byte> payload) = 0;
  // Returns the ranks with which this rank has a link from the beginning: those at distance 2^k in
  // both directions. What each rank passes on to them reaches every rank.
  virtual std::vector<int> LinkedRanks() const = 0;
  // Returns the shortest time in which the host of `peer` has answered on the link to it so far; 0
  // where there is no link, or it is not known.
  virtual int64_t RoundTripNs(int peer) = 0;

  // Sets the callbacks for events from now on. Events that came earlier are delivered at once, on
  // the loop's thread.
  virtual void SetEvents(Events events) = 0;

  // Says that the communicator is made: from now on a lost rank is an event, and a wait for one
  // rank ends for the loss of that one only. Fails with the reason where the making has been
  // cancelled.
  virtual Status Complete() = 0;

  // Tells the other ranks that this one cannot go on making the communicator, and why. Their making
  // ends with `reason`; for those that have completed it this rank is lost. To be called before
  // destruction, which alone would not give the reason.
  virtual void GiveUp(const Status& reason) = 0;

  // Ends the calling thread's wait (if any) and all later ones with `reason`. Any thread.
  virtual void Cancel(Status reason) = 0;
  // Returns why the waits of this communicator end; success while they do not. Any thread.
  virtual Status CancelReason() = 0;

  // Returns the ranks that are lost as far as this rank knows, in order. Any thread.
  virtual std::vector<LostRank> LostRanks() = 0;

  // Makes the communicator of `parent_ranks`, in the order of their new ranks. This rank must be
  // among them, and all of them must make it alike. `child_id` must be the same on all members and
  // new. Links are made on demand, the ring's at once (no waiting). The child obeys `abort_flag`
  // (as in Options) and not the parent's: it lives on when its parent is aborted. Where a member is
  // lost already, the child is cancelled from the beginning.
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
