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
//   any       | failed   | a failure, a refusal, Shutdown         | keep the sentence
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
  bool open() const { return open_; }
  void SetOpen() { open_ = true; }

  // Registers memory for sends and receives.
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region);
  // Returns a registration for either use. InvalidUsage for a kind of memory that the NIC does not
  // take.
  Result<HeldRegistration> Hold(const NetRegion& region, MemoryUse use);
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
  void Stash();

  const std::shared_ptr<VerbsNic> nic_;
  const VerbsPort port_;
  const std::string peer_;
  ControlSocket control_;
  const uint32_t first_packet_;
  std::unique_ptr<RegisteredPages> table_;
  std::unique_ptr<RegisteredPages> outbox_;
  std::unique_ptr<CompletionQueue> queue_;
  std::vector<std::unique_ptr<QueuePair>> pairs_;
  const uint32_t loopback_depth_;
  std::unique_ptr<QueuePair> loopback_;
  VerbsEnd remote_;
  Status left_;  // why the control socket ended, until that fails the channel
  Deadline fails_at_ = Deadline::Never();
  bool open_ = false;
  std::array<ibv_wc, kBatch> completions_ = {};
  int stashed_ = 0;  // completions that were taken and that Poll has not returned yet
  uint32_t idle_calls_ = 0;
  std::atomic<bool> shut_down_ = false;
  Status failure_;
};

}  // namespace tutti
