#pragma once

// The executor runs a communicator's operations on the host: it asks the planner for a plan, and
// visits the plan's algorithm (a template of kernels/) with primitives of backend/host over the
// communicator's connections, on the calling thread. The same Visit with primitives that only count
// tells beforehand what will pass each connection.
//
// One thread at a time uses the executor: HostOperations gives the turns.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backend/host/mesh_primitives.h"
#include "backend/host/messages.h"
#include "backend/host/pull_primitives.h"
#include "backend/host/stage_primitives.h"
#include "kernels/counting.h"
#include "kernels/two_level_blocks.h"
#include "operations/connections.h"
#include "operations/profiler/profiler.h"
#include "operations/pull.h"
#include "plan/lower.h"
#include "plan/planner.h"
#include "watch/watch.h"

namespace tutti {

class Executor {
 public:
  struct Parts {
    int rank = 0;
    int num_ranks = 1;
    PlanContext plan;
    std::vector<int> ring;    // The ranks in ring order.
    std::vector<int> leader;  // The first rank of each rank's host.
    Connections* connections = nullptr;
    StageGroup* stages = nullptr;  // Null unless all ranks are local.
    PullReach* pull = nullptr;     // Null: peers never read user buffers.
    Watch* watch = nullptr;
    CostAdviser* adviser = nullptr;  // Null: the cost model alone chooses.
    Profiler* profiler = nullptr;    // Null: nobody is told of operations.
    WaitPolicy wait_policy;
  };
  explicit Executor(Parts parts);

  // Runs one collective to its end. The arguments were checked before, so that RunCollective fails
  // for other reasons only.
  Status RunCollective(const CollectiveTask& task);
  // Returns InvalidUsage where the task demands algorithms of which none serves the task.
  Status CheckWishes(const CollectiveTask& task) const {
    return planner_.CheckWishes(task, CertainBuffers(task));
  }
  // Runs sends and receives together. The messages of the rank to itself have to meet (OwnCopies).
  Status RunMessages(std::span<const MessageTask> messages);

  // Returns what RunCollective would do, in words.
  std::string Describe(const CollectiveTask& task) const;
  // Returns the time that the cost model predicts, in microseconds.
  double PredictUs(const Task& task) const;

 private:
  // Describes one collective under way.
  struct Operation {
    const Plan* plan = nullptr;
    OpSignature signature;
    HostWork work;
    Status status;
  };

  // Counts what passes one direction of a connection in an operation.
  struct ConnectionTraffic {
    int peer;
    bool is_send;
    kernels::Traffic traffic;
  };
  // Give the algorithm of a plan its primitives: those that move data (executor_run.cc), and those
  // that count (executor_traffic.cc).
  class Running;
  class Counting;
  // Runs the plan's algorithm over the primitives of a Running or a Counting.
  template <class Links>
  void Visit(const CollectiveTask& task, const Plan& plan, Links& links) const;

  // Returns the traffic of a collective, in the order in which operations begin on connections.
  std::vector<ConnectionTraffic> TrafficOf(const CollectiveTask& task, const Plan& plan) const;
  // Opens the connections of an operation and tells their proxy connections what will pass.
  Status OpenAndBegin(std::span<const ConnectionTraffic> all, uint32_t op_tag);

  // Return what is known of the buffers of an operation before the ranks describe them to one
  // another, which is the same on all ranks; and how peers' buffers can be read whatever memory
  // they are.
  Buffers BuffersOf(const CollectiveTask& task) const;
  Buffers CertainBuffers(const CollectiveTask& task) const;

  Status RunAlone(const CollectiveTask& task);
  // Runs what a task was lowered to.
  Status RunLowered(const Lowered& lowered);
  // Runs the operation from its begin to its end, as the watch sees it.
  void RunWatched(const CollectiveTask& task, Buffers buffers, Operation& op);
  // Sets how an operation runs, and what follows from the plan.
  void SetPlan(const CollectiveTask& task, const Plan& plan, Operation& op);
  Status RunPlanned(const CollectiveTask& task, Operation& op);
  // Pulls if the buffers of all ranks allow it and it is still the cheapest algorithm then. Returns
  // false when it is not, and nothing has happened.
  Result<bool> TryPull(const CollectiveTask& task, Operation& op);
  void RunPull(const CollectiveTask& task, Operation& op, HostPullPrimitives& p);
  // Runs a collective that is made of messages.
  Status RunExchange(const CollectiveTask& task, Operation& op);

  kernels::HostsView HostsOf(const Plan& plan) const;
  RingView Ring() const { return {ring_index_, num_ranks_, ring_.data()}; }
  TreeView TreeOf(bool second) const;
  // Runs the messages between this rank and others. `calls` are those of `messages`, in their order.
  Status ExchangeWithOthers(std::span<const MessageTask> messages, std::span<MessageCall> calls);
  Status OpenFor(std::span<const MessageTask> messages);
  void AddMessage(const MessageTask& message, MessageBatch& batch, uint32_t tag);
  // Returns how the elements are combined. An average multiplies every input by 1/n, rather than
  // divide the sum, where the algorithm stores partial sums that could overflow. REQUIRES: the task
  // is a reduction.
  ReduceSpec ReduceSpecFor(const CollectiveTask& task, AddingOrder order) const;

  const int rank_;
  const int num_ranks_;
  Planner planner_;
  const std::vector<int> ring_;
  int ring_index_ = 0;
  std::vector<int> host_ranks_;   // All ranks, host by host.
  std::vector<int> host_begins_;  // Where the ranks of each host begin there, and where all end.
  int host_ = 0;                  // This rank's host.
  int local_ = 0;                 // This rank's number in its host.
  Connections& connections_;
  StageGroup* const stages_;
  PullReach* const pull_;
  Watch& watch_;
  Profiler* const profiler_;
  WaitContext wait_;
  uint32_t last_tag_ = 0;  // The tag of the last collective.
  std::vector<std::byte> packed_;
  std::vector<std::byte> blocks_;  // The work area of a ReduceScatter or AlltoAll in blocks.
  MeshLinks mesh_links_;
};

}  // namespace tutti
