#pragma once

// The part that both ends of a connection over verbs share: the control socket, the queue pairs
// with their completion queues, this end's table, sleeping, and the wording of failures.
//
// The queue pairs lie on the ports of the end's device (stripes.h), of which a device that was
// merged of several has several, and which may belong to several NICs. All of them have a number in
// the connection, which does not change: keys of buffers are given out for each, so that a port can
// take another's place at any time.
//
// A channel goes through these states; the ends add what they do in each:
//
//   from      | to       | condition                              | action
//   ----------+----------+----------------------------------------+---------------------------
//   setting up| open     | sender: the answer came; receiver:     | sender: join, say "ready"
//             |          | "ready" came                           |
//   open      | lost     | a completion or event says that a queue| stop all queue pairs, tell
//             |          | pair or the way failed; "lost" came    | the other end
//   lost      | open     | as from "setting up"                   | repeat what may not have come
//   any       | failed   | a failure, a refusal, Shutdown         | keep the sentence
//
// Lost queue pairs are made again on the ports that can be used then: a port that is down, whose
// NIC has failed, or behind which the other end did not answer is left to the others of the device,
// and when there is none to its spares. When it can be used again the queue pairs are given up on
// purpose, and made again there. What may be repeated, and why each message comes once:
//
//   - A write may be repeated as long as its buffer has not been handed to the receiver's user: it
//     puts the same bytes at the same place. So may a grant, and the records of a group.
//   - The immediate value is not repeatable: it uses up a receive. The receiver therefore decides.
//     It stops its queue pairs, takes every completion that is there (behind the last one comes that
//     of a marker, which it posts to the stopped queue pair), and tells the sender which groups have
//     come. Those that have not begin anew, with fresh receives; the sender repeats what belongs
//     to them.
//   - No write of the old queue pairs arrives after that, because they were stopped before, and
//     renewed ones expect other packet numbers.
//   - A message whose writes have all completed at the sender has come, with its immediate value,
//     and is never repeated: the sender's buffer may have other contents by then. A request is done
//     at the sender only when the last of its writes has completed, and repeated as a whole else.
//   - Completions of old queue pairs that are taken late are known by the life in their id.
//
// Atomic additions cannot be repeated: connections for one-sided operations end where these go on.
// So do those over iWARP, whose queue pairs TCP keeps alive, and which cannot be renewed.
//
// Threads: as NetComm.

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/net/net.h"
#include "transport/net/verbs/manager.h"
#include "transport/net/verbs/ports.h"
#include "transport/net/verbs/queue_pair.h"
#include "transport/net/verbs/setup.h"
#include "transport/net/verbs/stripes.h"

namespace tutti {

// Says where the queue pairs of an end lie.
PairPlaces PlacesOf(const VerbsEnd& end);

class VerbsChannel {
 public:
  // The most completions that are taken at once.
  static constexpr int kBatch = 16;

  struct Parts {
    PortSet ports;
    std::string peer;  // "10.0.0.2:41000 over mlx5_0"
    size_t table_bytes = 0;
    size_t outbox_bytes = 0;
    size_t queue_pairs = 1;
    QueuePairDepths depths;
    uint32_t loopback_depth = 0;  // reads that are under way at once; 0: it has no loop-back
    bool recovers = false;        // lost queue pairs are made again
    bool notices = false;         // Sends tell of messages instead of immediate values.
  };
  // Makes the queue pairs; with `offer`, the other end's, they are placed to go with them.
  static Result<std::unique_ptr<VerbsChannel>> Create(Parts parts, const VerbsEnd* offer);

  const PortSet& ports() const { return ports_; }
  VerbsNic& nic() const { return *ports_.ports.front().nic; }
  const VerbsOptions& options() const { return nic().options(); }
  std::string_view peer() const { return peer_; }
  ControlSocket& control() { return control_; }
  void SetControl(ControlSocket control) { control_ = std::move(control); }

  // A queue pair, and the number of the port that it lies on.
  struct Pair {
    std::unique_ptr<QueuePair> pair;
    size_t port = 0;
  };
  size_t num_queue_pairs() const { return pairs_.size(); }
  QueuePair& pair(size_t index) const { return *pairs_[index].pair; }
  size_t port_of(size_t index) const { return pairs_[index].port; }
  // Returns the port at which the other end has this queue pair's counterpart, once they are
  // joined.
  size_t remote_port_of(size_t index) const { return remote_.queue_pairs[index].port; }
  // Returns which share of a message each queue pair takes.
  std::span<const uint32_t> weights() const { return weights_; }
  // Returns queue pairs that are joined with themselves, so that what they read comes from this
  // host: one on each NIC that is in use. Empty before MakeLoopbacks.
  std::span<const Pair> loopbacks() const { return loopbacks_; }
  // Returns whether they carry reads. They do while queue pairs are lost at the other end alone.
  bool loops() const { return loops_; }
  Status MakeLoopbacks();
  // This end's table, which the other end writes, and what this end writes into the other's. They
  // are registered for each port.
  RegisteredPages& table() const { return *table_; }
  RegisteredPages& outbox() const { return *outbox_; }

  // Returns what the other end is told of this one.
  VerbsEnd Here() const;
  // Joins all queue pairs with those of the other end, which must be of the same kind. Those of
  // iWARP are left to BeginToConnect and IsJoined.
  Status Join(const VerbsEnd& remote, uint8_t traffic_class);
  // iWARP: has the end that connects begin. REQUIRES: the other end calls Listen from now on.
  Status BeginToConnect() { return managed_->Begin(); }
  // Returns whether all queue pairs are joined as far as this end can see. The sending end of
  // iWARP may use them only when something has come over each.
  bool IsJoined() const { return !managed_ || managed_->joined(); }
  bool notices() const { return notices_; }
  const VerbsEnd& remote() const { return remote_; }
  bool open() const { return stage_ == Stage::kOpen; }
  bool lost() const { return stage_ == Stage::kLost; }
  void SetOpen() { stage_ = Stage::kOpen; }

  // How it is known that queue pairs are lost.
  enum class Loss : uint8_t {
    kSeen,        // This end has seen them fail.
    kUnanswered,  // The other end answers no more.
    kTold,        // The other end has said so.
    kPlanned,     // They are given up, because other ports are to carry them.
  };
  // Takes notice of a completion with an error: ok where the queue pairs are stopped now and can be
  // made again, and else the failure.
  Status Lose(const ibv_wc& completion, std::string_view doing);
  // The same for another sign that they are lost.
  Status Lose(Status why, Loss loss);
  // Makes the stopped queue pairs ready to be joined again, on ports that can be used. `offer` as
  // in Create.
  Status Renew(const VerbsEnd* offer);
  // Says that the connection goes on, with `repeated` messages sent a second time.
  void TellRecovered(size_t repeated);
  // Takes notice that something has come as a whole.
  void NoteWhole() { losses_in_a_row_ = 0; }
  // Marks the id of a request with the life of the queue pairs: bits 48 to 60.
  uint64_t Mark(uint64_t id) const { return id | uint64_t{life_} << kLifeShift; }
  // Returns whether a completion is of this life's queue pairs, and takes the mark from its id.
  bool Unmark(uint64_t& id) const;
  // Makes the next Listen look at the control socket.
  void LookClosely() { idle_calls_ = uint32_t{1} << 30; }
  // Idle connections are looked at, because the other end may have lost its queue pairs.
  NetCare Care() const {
    return !recovers_ ? NetCare::kNone : lost() ? NetCare::kSoon : NetCare::kSeldom;
  }

  // Registers memory for sends and receives. A spare whose NIC refuses is not used any more.
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region);
  // Returns the memory, which holds the buffer; InternalError when it does not.
  Result<const VerbsMemory*> Check(NetMemory* memory, const std::byte* data, size_t bytes) const;

  // Takes completions that are there; at most kBatch. The span is valid until the next call.
  Result<std::span<const ibv_wc>> Poll();
  // Receives control messages now and then when `idle`, and always while the channel is not open.
  // Returns whether there was one, in `message`. A refusal fails the channel. So does the end of
  // the control socket; a moment later where answers are `due` to what this end has sent, because
  // the other end may leave as soon as it has what it wants.
  Result<bool> Listen(bool idle, bool due, ControlMessage& message);
  // Prepares to sleep until something completes or a control message comes. kProgress when
  // something has completed meanwhile. `hears`: it is likely that a control message ends the sleep,
  // so that the next Listen looks for one; else one of a few does.
  NetIdle PrepareToWait(std::vector<NetWait>& waits, bool hears = true);
  void AppendFds(std::vector<int>& fds) const;
  void Shutdown();

  // Keeps and returns the first failure.
  Status Fail(Status status);
  // Does the same, and tells the other end why.
  Status Refuse(Status status);
  Status FailCompletion(const ibv_wc& completion, std::string_view doing);
  // Returns ok, or the first failure, also where it is the device's.
  Status failure();

 private:
  enum class Stage : uint8_t { kSettingUp, kOpen, kLost };
  // The completions of all queue pairs on one NIC.
  struct Queue {
    std::unique_ptr<CompletionQueue> queue;
    VerbsNic* nic = nullptr;
    bool used = false;  // Queue pairs report to it.
  };
  struct Source {
    size_t port = 0;
    bool is_loopback = false;
  };
  static constexpr int kLifeShift = 48;
  static constexpr uint32_t kLives = 1u << 13;
  // How long after queue pairs had to leave a port it is looked at for the first time.
  static constexpr int64_t kReturnAfterNs = 1'000'000'000;

  explicit VerbsChannel(const Parts& parts);
  static Result<std::unique_ptr<VerbsChannel>> Make(const Parts& parts, const VerbsEnd* offer);
  Status MakeTables(size_t table_bytes, size_t outbox_bytes);
  Status MakeQueues();
  // Return ports, a bit each: the device's own ones; those that are active, on NICs that have not
  // failed; those of them on which queue pairs are to be put.
  uint32_t Own() const { return (1u << ports_.own) - 1; }
  uint32_t Active() const;
  uint32_t Usable();
  // Puts all queue pairs on ports that can be used, and the loop-backs along with them.
  Status Place(const VerbsEnd* offer);
  Status PlaceLoopbacks();
  Status Put(Pair& pair, size_t port, const QueuePairDepths& depths) const;
  Status Stop(const std::vector<Pair>& pairs) const;
  std::vector<uint32_t> Numbers() const;
  Result<bool> ReceiveControl(ControlMessage& message);
  VerbsEnd::Port Describe(size_t port) const;
  Status Describe(const ibv_wc& completion, std::string_view doing, size_t port) const;
  // Returns the queue pair that one of the completions that Poll has returned last is of.
  Source SourceOf(const ibv_wc& completion) const;
  std::string Where(size_t port) const;
  std::string PortsInUse() const;
  Result<int> Fetch();
  void Stash();
  Status CheckLost();
  Status LeaveNic(Status fault);
  Status CheckPairs(const VerbsNic& nic);
  Status CheckPorts();

  PortSet ports_;
  const std::string peer_;
  const QueuePairDepths depths_;
  ControlSocket control_;
  uint32_t first_packet_;
  std::unique_ptr<RegisteredPages> table_;
  std::unique_ptr<RegisteredPages> outbox_;
  std::unique_ptr<ManagedPairs> managed_;  // iWARP only. It outlives the queue pairs.
  std::vector<Queue> queues_;
  std::array<size_t, kMaxPorts> queue_of_ = {};  // The key is a port.
  size_t next_queue_ = 0;
  size_t fetched_from_ = 0;  // The queue that completions_ were taken from.
  std::vector<Pair> pairs_;
  std::vector<uint32_t> weights_;
  const uint32_t loopback_depth_;
  bool loops_back_ = false;
  bool loops_ = false;
  std::vector<Pair> loopbacks_;
  VerbsEnd remote_;
  Status left_;  // Says why the control socket ended, until that fails the channel.
  Deadline fails_at_ = Deadline::Never();
  Stage stage_ = Stage::kSettingUp;
  const bool notices_;
  const bool recovers_;
  uint32_t life_ = 0;    // Counts the lives of the queue pairs, modulo kLives.
  Status lost_because_;  // the last time
  int64_t lost_since_ns_ = 0;
  int64_t told_ns_ = 0;  // A warning was last given then; 0 means never.
  // Ports, a bit each:
  uint32_t barred_ = 0;    // Spares whose NIC does not have all of the memory.
  uint32_t suspects_ = 0;  // The other end did not answer behind them.
  uint32_t missed_ = 0;    // Own ones that could not be used when the queue pairs were placed.
  uint32_t seen_changes_ = 0;
  int64_t return_at_ns_ = 0;  // Those that are missed are looked at then.
  int64_t return_after_ns_ = kReturnAfterNs;
  int losses_in_a_row_ = 0;  // Nothing came as a whole in between.
  std::array<ibv_wc, kBatch> completions_ = {};
  int stashed_ = 0;  // completions that were taken and that Poll has not returned yet
  uint32_t idle_calls_ = 0;
  std::atomic<bool> shut_down_ = false;
  Status failure_;
};

}  // namespace tutti
