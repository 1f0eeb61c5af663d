#pragma once

// Operations are what a communicator does with tasks. There are three kinds of operations, chosen
// and made by comm/join.h: those of ranks on hosts (operations/host_operations.h), of GPUs that
// reach one another's memory (gpu/mesh.h), and of GPUs that do not (gpu/channels.h). A communicator
// owns one object of one kind and never asks which.
//
// The kinds differ in one property that callers see, HandOver: who runs a task, and when.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/wait.h"
#include "operations/agreement.h"
#include "plan/task.h"
#include "transport/net/net.h"
#include "transport/net/rma_group.h"

namespace tutti {

// A task and the stream that it was issued on: a HostStream (null for the null stream) or a
// cudaStream_t, as the communicator's HandOver says.
struct IssuedTask {
  Task task;
  void* stream = nullptr;
};

enum class HandOver : uint8_t {
  // A thread of the host runs the task, when the tasks issued before it have run. Run returns when
  // it is done. Host streams say on which thread that happens.
  kInTurn,
  // The task is queued on its device stream by the thread that issues it. Run returns at once.
  kOnStream,
};

// Says which ranks share a machine, as was found out when they were joined.
struct MachineMap {
  std::vector<int> leader;  // For each rank, the lowest rank of those that share memory with it.
  std::vector<int> here;    // The ranks of this rank's machine, itself among them, ascending.
};

class Operations {
 public:
  virtual ~Operations() = default;
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  HandOver hand_over() const { return hand_over_; }

  // Checks the tasks of one group for what the caller can have got wrong on this rank alone, and
  // takes memory that could not be had while they run. Run does so too; a group has the tasks of
  // all its communicators checked before any of them is run. Any thread.
  virtual Status CheckTasks(std::span<const IssuedTask> tasks) const = 0;
  // Returns InvalidUsage where these ranks cannot do what one call wishes; on all ranks alike. Any
  // thread.
  virtual Status CheckWishes(const CollectiveTask& task) const = 0;
  // Takes the next place in the order of operations and returns its ticket. The caller must give
  // every ticket to Run, also after a failure, or to DropTicket. The ticket means nothing with
  // kOnStream. Any thread.
  virtual uint64_t TakeTicket() { return 0; }
  // Gives a ticket back that is not run, so that later ones do not wait for it. REQUIRES: the
  // communicator has stopped. Any thread.
  virtual void DropTicket(uint64_t /*ticket*/) noexcept {}
  // Runs the tasks of one group, or queues them: collectives in order, then all sends and receives
  // together. A failure that leaves this rank out of step with the others stops the communicator;
  // after any other one it is as if nothing had been called. Returns Timeout when nobody runs the
  // ticket whose turn it is for TUTTI_TIMEOUT_S, so that this one's turn does not come; that stops
  // the communicator. Any thread.
  virtual Status Run(uint64_t ticket, std::span<const IssuedTask> tasks) = 0;
  // Waits until everything issued so far is done, on the device too. Timeout as above, but stops
  // nothing. Any thread.
  virtual Status WaitForAll() = 0;

  // Ends the waits of everything that does not see the watch's stop flag, now and later. Called
  // once the communicator has stopped, on any thread.
  virtual void Abort() {}
  // Called before the communicator's user aborts it, so that the other ranks hear what was done by
  // then.
  virtual void NoteAbort() {}
  // Ends everything that is under way, tells the other ranks that this one leaves, and ends the
  // threads. Called once, before the watch ends to listen.
  // REQUIRES: every call has returned, and every ticket was run.
  virtual void Finish() = 0;

  // Returns whether this rank's device can map the memory of the ranks of its machine; the same on
  // all ranks.
  virtual bool MapsPeerMemory() const { return false; }
  // Holds what one-sided calls (window/one_sided.h) use of what the operations were made with.
  struct OneSidedSupport {
    WaitPolicy wait_policy;
    // The network for one-sided operations, and this rank's device in it. Null when all ranks share
    // the arena, or there are no one-sided operations.
    std::shared_ptr<Net> network;
    int network_device = 0;
    std::shared_ptr<RmaGroups> groups;  // as of OneSidedNetwork
  };
  // Returns null where the ranks make no one-sided calls, on all of them.
  virtual const OneSidedSupport* one_sided_support() const { return nullptr; }
  // The network for one-sided operations (transport/net/rma.h) with ranks whose memory this rank's
  // device does not map, and this rank's device in it; no network where there is none, or no such
  // ranks.
  struct OneSidedNetwork {
    std::shared_ptr<Net> net;
    int device = 0;
    // What takes its place where all ranks can use the same; null where this rank has nothing.
    std::shared_ptr<RmaGroups> groups = nullptr;
  };
  virtual OneSidedNetwork one_sided_network() const = 0;
  // A buffer that was registered (ncclCommRegister), or a window (window/window.h).
  struct ReachedWindow {
    std::span<std::byte> own;
    // Of a window that all ranks reach, with parts of one length: each rank's part, as this rank's
    // device sees it. Otherwise empty.
    std::vector<std::byte*> parts;
  };
  // Has operations work in it from now on where that gains something. All ranks call it alike for
  // what has parts. Returns what is to be given to Forget; null where nothing is gained.
  virtual const void* Register(ReachedWindow /*window*/) { return nullptr; }
  // Takes a registration back, when the device has done all that was queued on it. Where that
  // fails, the registration stays.
  virtual Status Forget(const void* /*token*/) { return Status::Ok(); }

  // Returns InvalidArgument where the bytes are not memory that this rank's operations can work on,
  // as far as can be told without running one. For NCCL_CHECK_POINTERS.
  virtual Status CheckBuffer(const void* /*begin*/, size_t /*bytes*/, const char* /*what*/) const {
    return Status::Ok();
  }

  // Returns how long a task takes by itself, in microseconds, as far as is known.
  virtual double PredictUs(const Task& task) const = 0;
  // Returns what Run would do with a task, in words.
  virtual std::string Describe(const CollectiveTask& task) const = 0;
  // Returns what the ranks are, in words, for errors: "host ranks" or "ranks that are GPUs".
  virtual std::string_view RankKind() const = 0;
  // Returns how the ranks are joined, in words, for the log.
  virtual std::string DescribeTransports() const = 0;
  // Returns how data gets to another rank: "shm", "gpu", or the name of the network.
  virtual std::string_view TransportTo(int peer) const = 0;
  virtual const MachineMap& machines() const = 0;
  // Returns how many bytes of memory (of a GPU, or shared) only this communicator needs.
  virtual uint64_t MemoryBytes() const = 0;

  // Memory phases (ncclCommSuspend, comm/suspend.cc). All ranks take each of these steps together,
  // and each one only when all ranks have taken the one before. Nothing is run meanwhile, nor until
  // the memory is taken back.

  // Returns how many bytes, of a GPU, pinned or shared, GiveBackMemory gives back.
  virtual uint64_t SuspendableBytes() const = 0;
  // Returns how many stay until the communicator ends.
  virtual uint64_t PersistentBytes() const = 0;
  // Returns InvalidUsage where the memory cannot be given back now: because operations of this rank
  // are under way, or because ranks that are joined in this way cannot give it back.
  virtual Status CheckIdle() const = 0;
  // Returns InvalidUsage where data of another rank wait here for an operation that this rank has
  // not called. REQUIRES: CheckIdle was ok on all ranks.
  virtual Status CheckNothingWaits() = 0;
  // Gives back the memory that only carries data. Addresses stay as they are, and so do the
  // counters by which ranks know what has passed. A failure leaves the communicator unusable.
  virtual Status GiveBackMemory() = 0;
  // Takes memory at the same addresses. Where one rank cannot have it, all are told the reason and
  // give it back again. Fails when the ranks cannot talk.
  virtual Result<Agreement> TakeBackMemory(Deadline deadline,
                                           const std::atomic<bool>* abort_flag) = 0;

 protected:
  explicit Operations(HandOver hand_over) : hand_over_(hand_over) {}

 private:
  const HandOver hand_over_;
};

}  // namespace tutti
