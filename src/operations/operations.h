#pragma once

// Operations run the tasks of a communicator. Three kinds exist, and comm/join.h chooses and makes
// them: for ranks on hosts (operations/host_operations.h), for GPUs that reach one another's memory
// (gpu/mesh.h), and for GPUs without such access (gpu/channels.h). A communicator owns one object
// of one kind and never asks for its kind.
//
// The kinds differ in one property that callers see: HandOver says who runs a task, and when.

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

// Holds a task and the stream of its call: a HostStream (null for the null stream) or a
// cudaStream_t, depending on the communicator's HandOver.
struct IssuedTask {
  Task task;
  void* stream = nullptr;
};

enum class HandOver : uint8_t {
  // A thread of the host runs the task after all tasks issued before. Run returns when the task is
  // done. A host stream decides on which thread the task runs.
  kInTurn,
  // The issuing thread queues the task on its device stream. Run returns at once.
  kOnStream,
};

// Says which ranks share a host, as the ranks found out when they were joined.
struct MachineMap {
  // For each rank, the lowest of the ranks that share memory with the rank.
  std::vector<int> leader;
  std::vector<int> here;  // The ranks of this rank's host, with the rank itself, ascending.
};

class Operations {
 public:
  virtual ~Operations() = default;
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  HandOver hand_over() const { return hand_over_; }

  // Checks the tasks of one group for mistakes that the caller can have made on this rank alone,
  // and allocates memory that could not be allocated while the tasks run. Run makes the same
  // checks. A group checks the tasks of all its communicators before running the first task. Any
  // thread.
  virtual Status CheckTasks(std::span<const IssuedTask> tasks) const = 0;
  // Returns InvalidUsage, on all ranks alike, if the ranks cannot fulfil the wishes of a call. Any
  // thread.
  virtual Status CheckWishes(const CollectiveTask& task) const = 0;
  // Takes the next place in the order of operations and returns the ticket of the place. The caller
  // must give every ticket to Run, also after a failure, or to DropTicket. With kOnStream the
  // ticket has no meaning. Any thread.
  virtual uint64_t TakeTicket() { return 0; }
  // Gives back a ticket that will not run, so that later tickets do not wait for the ticket.
  // REQUIRES: the communicator has stopped. Any thread.
  virtual void DropTicket(uint64_t /*ticket*/) noexcept {}
  // Runs the tasks of one group, or queues them: collectives in order, then all sends and receives
  // together. A failure stops the communicator if it leaves this rank out of step with its peers.
  // After any other failure the communicator is as before the call. Returns Timeout, and stops the
  // communicator, if the turn of `ticket` does not come because no operation has run for
  // TUTTI_TIMEOUT_S. Any thread.
  virtual Status Run(uint64_t ticket, std::span<const IssuedTask> tasks) = 0;
  // Waits until all tasks issued before are done, on the device too. Returns Timeout as Run does,
  // but does not stop the communicator. Any thread.
  virtual Status WaitForAll() = 0;

  // Ends all waits, now and later, that do not see the watch's stop flag. The communicator calls
  // Abort once it has stopped. Any thread.
  virtual void Abort() {}
  // Notes whether this rank's operations are done, for the leave notice of Finish. The communicator
  // calls NoteAbort before its user aborts it.
  virtual void NoteAbort() {}
  // Ends all operations under way, tells the other ranks that this rank leaves, and ends the
  // threads. The communicator calls Finish once, before the watch stops listening. REQUIRES: every
  // call has returned, and every ticket has run.
  virtual void Finish() = 0;

  // Returns whether this rank's device can map the memory of the ranks of its host. The result is
  // the same on all ranks.
  virtual bool MapsPeerMemory() const { return false; }
  // Returns how one-sided calls of ranks on hosts wait (window/one_sided.h).
  virtual WaitPolicy wait_policy() const { return {}; }
  // Holds the network for one-sided operations (transport/net/rma.h) with ranks whose memory this
  // rank's device does not map, and this rank's device of the network. `net` is null without such a
  // network or such ranks.
  struct OneSidedNetwork {
    std::shared_ptr<Net> net;
    int device = 0;
    // The groups replace `net` where all ranks can use the same group. Null: this rank has no
    // group.
    std::shared_ptr<RmaGroups> groups = nullptr;
  };
  virtual OneSidedNetwork one_sided_network() const = 0;
  // Describes a registered buffer (ncclCommRegister), or a window (window/window.h).
  struct ReachedWindow {
    std::span<std::byte> own;
    // Each rank's part, as this rank's device sees the part, for a window with equal parts that all
    // ranks reach. Otherwise empty.
    std::vector<std::byte*> parts;
  };
  // Lets later operations work directly in the window if they gain time. All ranks must call
  // Register alike for a window with parts. Returns a token for Forget, or null if operations gain
  // nothing.
  virtual const void* Register(ReachedWindow /*window*/) { return nullptr; }
  // Ends a registration once the device has done all work queued on the window. After a failure the
  // registration remains.
  virtual Status Forget(const void* /*token*/) { return Status::Ok(); }

  // Returns InvalidArgument if this rank's operations cannot work on the bytes, as far as is known
  // without running an operation. Serves NCCL_CHECK_POINTERS.
  virtual Status CheckBuffer(const void* /*begin*/, size_t /*bytes*/, const char* /*what*/) const {
    return Status::Ok();
  }

  // Returns how long a task takes by itself, in microseconds, as far as is known.
  virtual double PredictUs(const Task& task) const = 0;
  // Returns in words how Run would run a task.
  virtual std::string Describe(const CollectiveTask& task) const = 0;
  // Returns the kind of the ranks in words, for errors: "host ranks" or "ranks that are GPUs".
  virtual std::string_view RankKind() const = 0;
  // Returns in words how the ranks are joined, for the log.
  virtual std::string DescribeTransports() const = 0;
  // Returns how data reaches a rank: "shm", "gpu", or the name of the network.
  virtual std::string_view TransportTo(int peer) const = 0;
  virtual const MachineMap& machines() const = 0;
  // Returns how many bytes of memory, of a GPU or shared, only this communicator needs.
  virtual uint64_t MemoryBytes() const = 0;

  // Memory phases (ncclCommSuspend, comm/suspend.cc). All ranks take each of the following steps
  // together, and only after all ranks have taken the step before. No operation runs until the
  // memory is taken back.

  // Returns how many bytes, of a GPU, pinned or shared, GiveBackMemory gives back.
  virtual uint64_t SuspendableBytes() const = 0;
  // Returns how many bytes remain until the communicator ends.
  virtual uint64_t PersistentBytes() const = 0;
  // Returns InvalidUsage if the memory cannot be given back now: because operations of this rank
  // are under way, or because ranks of this kind can never give their memory back.
  virtual Status CheckIdle() const = 0;
  // Returns InvalidUsage if data of another rank wait here for an operation that this rank has not
  // called. REQUIRES: CheckIdle was ok on all ranks.
  virtual Status CheckNothingWaits() = 0;
  // Gives back the memory that only carries data. Addresses remain, and so do the counters by which
  // ranks know how much data has passed. A failure leaves the communicator unusable.
  virtual Status GiveBackMemory() = 0;
  // Takes memory at the same addresses. If one rank cannot get the memory, all ranks learn the
  // reason and give their memory back again. Fails if the ranks cannot talk to one another.
  virtual Result<Agreement> TakeBackMemory(Deadline deadline,
                                           const std::atomic<bool>* abort_flag) = 0;

  // Names the network between machines and the network's cipher (transport/net/net.h). Both names
  // are empty where no data passes a network.
  struct NetworkNames {
    std::string name;
    std::string cipher;

    static NetworkNames Of(const Net* net) {
      if (net == nullptr) return {};
      return {std::string(net->name()), std::string(net->cipher())};
    }
  };
  virtual NetworkNames network_names() const { return {}; }

 protected:
  explicit Operations(HandOver hand_over) : hand_over_(hand_over) {}

  // Runs the one-sided calls of a group: the waits if `waits`, else the puts and signals. Waits
  // come last in a group, because another rank may be waiting for an earlier task of the group.
  static Status RunOneSided(std::span<const IssuedTask> tasks, bool waits) {
    for (const IssuedTask& issued : tasks)
      if (const auto* const task = std::get_if<OneSidedTask>(&issued.task))
        if (task->call->waits() == waits) TUTTI_TRY(task->call->Run(issued.stream));
    return Status::Ok();
  }

 private:
  const HandOver hand_over_;
};

}  // namespace tutti
