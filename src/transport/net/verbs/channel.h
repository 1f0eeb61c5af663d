#pragma once

// The part that both ends of a connection over verbs share: the control socket, this end's table,
// sleeping, the wording of failures, and three parts with headers of their own: the queue pairs on
// their ports (placement.h), the completion queues (completion_queues.h), and the state of the
// connection with the rules of recovery (recovery.h).
//
// A channel carries out the actions of the state machine. The ends handle the messages of the
// control socket, and add their own part of each step:
//
//   step       | the sending end                     | the receiving end
//   -----------+-------------------------------------+--------------------------------------
//   Create     | offers its queue pairs              | joins with the offer, and answers
//   Join, Open | takes the answer, says "ready"      | takes "ready", and grants
//   Lose       | takes all completions               | takes all completions up to a marker
//   Renew      | offers again                        | joins with the offer, answers again
//   Join, Open | repeats missing messages, "ready"   | takes "ready", and grants again
//
// Threads: as NetComm.

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/net/net.h"
#include "transport/net/verbs/completion_queues.h"
#include "transport/net/verbs/manager.h"
#include "transport/net/verbs/placement.h"
#include "transport/net/verbs/ports.h"
#include "transport/net/verbs/queue_pair.h"
#include "transport/net/verbs/recovery.h"
#include "transport/net/verbs/setup.h"

namespace tutti {

class VerbsChannel {
 public:
  struct Parts {
    PortSet ports;
    std::string peer;  // "10.0.0.2:41000 over mlx5_0"
    size_t table_bytes = 0;
    size_t outbox_bytes = 0;
    size_t queue_pairs = 1;
    QueuePairDepths depths;
    uint32_t loopback_depth = 0;  // reads under way at once on a loop-back; 0: no loop-backs
    bool recovers = false;        // Lost queue pairs are made again.
    bool notices = false;         // Sends announce messages instead of immediate values.
  };
  // Makes the queue pairs. With an `offer` of the peer, the queue pairs are placed to match the
  // offered queue pairs.
  static Result<std::unique_ptr<VerbsChannel>> Create(Parts parts, const VerbsEnd* offer);
  // Takes an authenticated socket, and offers the queue pairs to the peer.
  Status Offer(SealedSocket control);
  // Answers or refuses an `offer` that has come over `control`. `make` must return a channel that
  // is joined with the offered end, or the reason to refuse.
  using Maker = std::function<Result<std::unique_ptr<VerbsChannel>>(const VerbsEnd& offered)>;
  static Result<std::unique_ptr<VerbsChannel>> Answer(ControlSocket control,
                                                      const ControlMessage& offer,
                                                      std::string_view peer, const Maker& make);

  const PortSet& ports() const { return ports_; }
  VerbsNic& nic() const { return *ports_.ports.front().nic; }
  const VerbsOptions& options() const { return nic().options(); }
  std::string_view peer() const { return peer_; }
  bool notices() const { return notices_; }
  ControlSocket& control() { return control_; }

  Placement& placement() { return placement_; }
  size_t num_queue_pairs() const { return placement_.size(); }
  QueuePair& pair(size_t index) const { return placement_.pair(index); }
  size_t port_of(size_t index) const { return placement_.port_of(index); }
  // Returns the port of a queue pair's counterpart at the peer. REQUIRES: both are joined.
  size_t remote_port_of(size_t index) const { return remote_.queue_pairs[index].port; }
  // Returns the share of a message for each queue pair.
  std::span<const uint32_t> weights() const { return weights_; }
  // Return this end's table, which the peer writes, and the memory from which this end writes into
  // the peer's table. Both are registered for each port.
  RegisteredPages& table() const { return *table_; }
  RegisteredPages& outbox() const { return *outbox_; }

  // Returns the description of this end for the peer.
  VerbsEnd Here() const;
  const VerbsEnd& remote() const { return remote_; }
  // Joins all queue pairs with the peer's, which must be of the same kind. Over iWARP the
  // connection manager joins the queue pairs after BeginToConnect, until IsJoined.
  Status Join(const VerbsEnd& remote, uint8_t traffic_class);
  // Has the connecting end of iWARP begin. REQUIRES: the peer calls Listen from now on.
  Status BeginToConnect() { return managed_->Begin(); }
  // Returns whether all queue pairs are joined as far as this end can see. The sending end of iWARP
  // may use a queue pair only after a greeting has come over the queue pair.
  bool IsJoined() const { return !managed_ || managed_->joined(); }

  Recovery::State state() const { return recovery_.state(); }
  bool open() const { return recovery_.open(); }
  bool lost() const { return recovery_.lost(); }
  // Opens the connection. After a loss, logs that the connection goes on, with `repeated` messages
  // sent a second time. Returns false in a state without a transition for the event kOpen.
  bool Open(size_t repeated = 0);
  // Takes notice of a completion with an error. Returns ok where the queue pairs are stopped now
  // and can be made again, and else the failure.
  Status Lose(const ibv_wc& completion, std::string_view doing);
  // Takes notice of a loss without a completion, with the same result.
  Status Lose(Status why, Recovery::Loss loss);
  // Makes the stopped queue pairs ready to be joined again, on usable ports. `offer` as in Create.
  Status Renew(const VerbsEnd* offer);
  // Takes notice of a message that has come or gone as a whole.
  void NoteWhole() { recovery_.NoteWhole(); }
  uint64_t Mark(uint64_t id) const { return recovery_.Mark(id); }
  bool Unmark(uint64_t& id) const { return recovery_.Unmark(id); }
  // Makes the next Listen look at the control socket.
  void LookClosely() { idle_calls_ = uint32_t{1} << 30; }
  // Returns how soon an idle connection must be driven, because the peer may have lost its queue
  // pairs.
  NetCare Care() const {
    return !recovery_.recovers() ? NetCare::kNone : lost() ? NetCare::kSoon : NetCare::kSeldom;
  }

  // Registers memory for sends and receives. A spare whose NIC refuses is not used any more.
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region);
  // Returns `memory` after a check that the memory holds the buffer; InternalError otherwise.
  Result<const VerbsMemory*> Check(NetMemory* memory, const std::byte* data, size_t bytes) const;

  // Takes completions (CompletionQueues::Poll).
  Result<std::span<const ibv_wc>> Poll();
  // Receives a control message: now and then when `idle`, and always while the channel is not open.
  // Returns whether a message is stored in `message`. A refusal fails the channel. The end of the
  // control socket fails the channel too, but a moment later where answers are `due` to requests of
  // this end, because the peer may leave as soon as the peer has all messages.
  Result<bool> Listen(bool idle, bool due, ControlMessage& message);
  // Prepares to sleep until a request completes or a control message comes. Returns kProgress when
  // a request has completed meanwhile. `hears` says that a control message will probably end the
  // sleep, so that the next Listen looks for a message; without `hears` every few calls of Listen
  // look.
  NetIdle PrepareToWait(std::vector<NetWait>& waits, bool hears = true);
  void AppendFds(std::vector<int>& fds) const;
  void Shutdown();

  // Keeps and returns the first failure.
  Status Fail(Status status);
  // Returns ok, or fails the channel where `status` is a failure.
  Status FailUnlessOk(Status status) { return status.ok() ? status : Fail(std::move(status)); }
  // Keeps and returns the first failure, and tells the peer.
  Status Refuse(Status status);
  Status FailCompletion(const ibv_wc& completion, std::string_view doing);
  // Returns ok, or the first failure of the connection or of its devices.
  Status failure();

 private:
  explicit VerbsChannel(const Parts& parts);
  static Result<std::unique_ptr<VerbsChannel>> Make(const Parts& parts, const VerbsEnd* offer);
  Result<bool> ReceiveControl(ControlMessage& message);
  Status Describe(const ibv_wc& completion, std::string_view doing, size_t port) const;
  Status CheckNics();
  Status Keep(Status status);

  const PortSet ports_;
  const std::string peer_;
  const bool notices_;
  ControlSocket control_;
  std::unique_ptr<RegisteredPages> table_;
  std::unique_ptr<RegisteredPages> outbox_;
  std::unique_ptr<ManagedPairs> managed_;  // iWARP only. Outlives the queue pairs.
  CompletionQueues completions_;           // Outlive the queue pairs.
  Placement placement_;
  std::vector<uint32_t> weights_;
  VerbsEnd remote_;
  Recovery recovery_;
  Status left_;  // the reason for the end of the control socket, until the channel fails
  Deadline fails_at_ = Deadline::Never();
  uint32_t idle_calls_ = 0;
  std::atomic<bool> shut_down_ = false;
  Status failure_;
};

}  // namespace tutti
