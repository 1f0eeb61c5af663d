#pragma once

// The part that both ends of a connection over verbs share: the control socket, the queue pairs
// with their completion queue, this end's table, sleeping, and the wording of failures.
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
// Lost queue pairs are made again, on another port of the device where the one they had is down.
// What may be repeated, and why each message comes once:
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
#include "transport/net/verbs/nic.h"
#include "transport/net/verbs/queue_pair.h"
#include "transport/net/verbs/setup.h"

namespace tutti {

// Registered memory: for sends and receives, unless a derived class says otherwise.
class VerbsMemory : public NetMemory {
 public:
  VerbsMemory(const NetRegion& region, HeldRegistration held)
      : NetMemory(region), held_(std::move(held)) {}
  ~VerbsMemory() override {
    if (held_.made) held_.registration->Retire();
  }
  const Registration& registration() const { return *held_.registration; }
  bool Holds(const std::byte* data, size_t bytes) const {
    return data >= region().address && data + bytes <= region().address + region().bytes;
  }

 private:
  const HeldRegistration held_;
};

class VerbsChannel {
 public:
  // The most completions that are taken at once.
  static constexpr int kBatch = 16;

  struct Parts {
    std::shared_ptr<VerbsNic> nic;
    VerbsPort port;
    std::string peer;  // "10.0.0.2:41000 over mlx5_0"
    size_t table_bytes = 0;
    size_t outbox_bytes = 0;
    size_t queue_pairs = 1;
    QueuePairDepths depths;
    uint32_t loopback_depth = 0;  // reads that are under way at once; 0: it has no loop-back
    bool recovers = false;        // lost queue pairs are made again
  };
  static Result<std::unique_ptr<VerbsChannel>> Create(Parts parts);

  VerbsNic& nic() const { return *nic_; }
  const VerbsPort& port() const { return port_; }
  const VerbsOptions& options() const { return nic_->options(); }
  std::string_view peer() const { return peer_; }
  ControlSocket& control() { return control_; }
  void SetControl(ControlSocket control) { control_ = std::move(control); }

  size_t num_queue_pairs() const { return pairs_.size(); }
  QueuePair& pair(size_t index) const { return *pairs_[index]; }
  // Returns a queue pair that is joined with itself, so that what it reads comes from this host;
  // null before MakeLoopback.
  QueuePair* loopback() const { return loopback_.get(); }
  Status MakeLoopback();
  // This end's table, which the other end writes, and what this end writes into the other's.
  RegisteredPages& table() const { return *table_; }
  RegisteredPages& outbox() const { return *outbox_; }

  // Returns what the other end is told of this one.
  VerbsEnd Here(bool split) const;
  // Joins all queue pairs with those of the other end, which must be of the same kind.
  Status Join(const VerbsEnd& remote, uint8_t traffic_class);
  const VerbsEnd& remote() const { return remote_; }
  bool open() const { return stage_ == Stage::kOpen; }
  bool lost() const { return stage_ == Stage::kLost; }
  void SetOpen() { stage_ = Stage::kOpen; }

  // Takes notice of a completion with an error: ok where the queue pairs are stopped now and can be
  // made again, and else the failure.
  Status Lose(const ibv_wc& completion, std::string_view doing);
  // The same for another sign that they are lost. `tell` lets the other end know.
  Status Lose(Status why, bool tell);
  // Makes the stopped queue pairs ready to be joined again, on a port that is active.
  Status Renew();
  // Says that the connection goes on, with `repeated` messages sent a second time.
  void TellRecovered(size_t repeated);
  // Takes notice that something has come as a whole.
  void NoteWhole() { losses_in_a_row_ = 0; }
  // Marks the id of a request with the life of the queue pairs: bits 48 to 60.
  uint64_t Mark(uint64_t id) const { return id | uint64_t{life_} << kLifeShift; }
  // Returns whether a completion is of this life's queue pairs, and takes the mark from its id.
  bool Unmark(uint64_t& id) const;
  // Makes the next Listen look at the control socket.
  void LookClosely() { idle_calls_ = ~uint32_t{0}; }
  // Idle connections are looked at, because the other end may have lost its queue pairs.
  NetCare Care() const {
    return !recovers_ ? NetCare::kNone : lost() ? NetCare::kSoon : NetCare::kSeldom;
  }

  // Registers memory for sends and receives.
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region);
  // Returns the registration that holds the buffer; InternalError when it does not.
  Result<const Registration*> Check(NetMemory* memory, const std::byte* data, size_t bytes) const;

  // Takes completions that are there; at most kBatch. The span is valid until the next call.
  Result<std::span<const ibv_wc>> Poll();
  // Receives control messages now and then when `idle`, and always while the channel is not open.
  // Returns whether there was one, in `message`. A refusal fails the channel. So does the end of
  // the control socket; a moment later where answers are `due` to what this end has sent, because
  // the other end may leave as soon as it has what it wants.
  Result<bool> Listen(bool idle, bool due, ControlMessage& message);
  // Prepares to sleep until something completes or a control message comes. kProgress when
  // something has completed meanwhile.
  NetIdle PrepareToWait(std::vector<NetWait>& waits);
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
  explicit VerbsChannel(Parts&& parts);
  enum class Stage : uint8_t { kSettingUp, kOpen, kLost };
  static constexpr int kLifeShift = 48;
  static constexpr uint32_t kLives = 1u << 13;

  void Stash();
  Status CheckLost();

  const std::shared_ptr<VerbsNic> nic_;
  VerbsPort port_;
  const std::string peer_;
  ControlSocket control_;
  uint32_t first_packet_;
  std::unique_ptr<RegisteredPages> table_;
  std::unique_ptr<RegisteredPages> outbox_;
  std::unique_ptr<CompletionQueue> queue_;
  std::vector<std::unique_ptr<QueuePair>> pairs_;
  const uint32_t loopback_depth_;
  std::unique_ptr<QueuePair> loopback_;
  VerbsEnd remote_;
  Status left_;  // Says why the control socket ended, until that fails the channel.
  Deadline fails_at_ = Deadline::Never();
  Stage stage_ = Stage::kSettingUp;
  const bool recovers_;
  uint32_t life_ = 0;    // Counts the lives of the queue pairs, modulo kLives.
  Status lost_because_;  // the last time
  int64_t lost_since_ns_ = 0;
  int64_t told_ns_ = 0;      // A warning was last given then; 0 means never.
  int losses_in_a_row_ = 0;  // Nothing came as a whole in between.
  std::array<ibv_wc, kBatch> completions_ = {};
  int stashed_ = 0;  // completions that were taken and that Poll has not returned yet
  uint32_t idle_calls_ = 0;
  std::atomic<bool> shut_down_ = false;
  Status failure_;
};

}  // namespace tutti
