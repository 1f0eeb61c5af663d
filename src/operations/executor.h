#pragma once

// The executor runs a communicator's operations on the host, on the calling thread. It asks the
// planner for a plan and visits the plan's algorithm, a template of kernels/, with primitives of
// backend/host over the communicator's connections. A visit with primitives that only count yields
// the traffic of each connection beforehand.
//
// One thread at a time uses the executor. HostOperations lets the threads take turns.

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
#include "kernels/ring.h"
#include "kernels/two_level_blocks.h"
#include "operations/connections.h"
#include "operations/profiler/profiler.h"
#include "operations/pull.h"
#include "plan/lower.h"
#include "plan/plan.h"
#include "watch/watch.h"

namespace tutti {

// Calls f with the parts of the task's collective.
template <class F>
void WithParts(const CollectiveTask& task, F f) {
  if (task.parts)
    f(task.parts->recvs);
  else
    f(kernels::EqualParts{task.count});
}

class Executor {
 public:
  struct Parts {
    int rank = 0;
    int num_ranks = 1;
    PlanContext plan;
    std::vector<int> ring;    // The ranks in ring order.
    std::vector<int> leader;  // The first rank of each rank's host.
    Connections* connections = nullptr;
    StageGroup* stages = nullptr;  // Null unless all ranks are on one host.
    PullReach* pull = nullptr;     // Null: peers never read user buffers.
    Watch* watch = nullptr;
    CostAdviser* adviser = nullptr;  // Null: the cost model alone chooses.
    Profiler* profiler = nullptr;    // Null: no plugin hears of operations.
    WaitPolicy wait_policy;
  };
  explicit Executor(Parts parts);

  // Runs one collective to its end. The caller has checked the arguments: a failure has another
  // reason.
  Status RunCollective(const CollectiveTask& task);
  // Returns InvalidUsage if the task demands certain algorithms and none of them serves the task.
  Status CheckWishes(const CollectiveTask& task) const {
    return planner_.CheckWishes(task, CertainBuffers(task));
  }
  // Runs sends and receives together. OwnCopies must accept the messages of the rank to itself.
  Status RunMessages(std::span<const MessageTask> messages);

  // Returns in words how RunCollective would run the task.
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

  // Holds the traffic of one direction of a connection in an operation.
  struct ConnectionTraffic {
    int peer;
    bool is_send;
    kernels::Traffic traffic;
  };
  // Give an algorithm over FIFOs its primitives, which move data or count data (executor_fifos.cc).
  class Running;
  class Counting;
  // Runs the plan's algorithm over the primitives of a Running or a Counting.
  template <class Links>
  void Visit(const CollectiveTask& task, const Plan& plan, Links& links) const;

  // Returns the traffic of a collective, in the order in which its connections begin to work.
  std::vector<ConnectionTraffic> TrafficOf(const CollectiveTask& task, const Plan& plan) const;
  // Counts the data that the ranks of one host pass through their stages.
  kernels::StageCounting CountStages(const CollectiveTask& task, const Plan& plan) const;
  // Opens the connections of an operation and announces the traffic to their proxy connections.
  Status OpenAndBegin(std::span<const ConnectionTraffic> all, uint32_t op_tag);

  // Return how the ranks reach one another's buffers, as far as all ranks know before they describe
  // their buffers to one another. CertainBuffers assumes nothing of the memory in which peers'
  // buffers lie.
  Buffers BuffersOf(const CollectiveTask& task) const;
  Buffers CertainBuffers(const CollectiveTask& task) const;

  static void CopyAll(std::span<const CopyPiece> pieces);
  Status RunAlone(const CollectiveTask& task);
  // Runs the steps of a lowered task.
  Status RunLowered(const Lowered& lowered);
  // Runs the operation between its begin and its end for the watch.
  void RunWatched(const CollectiveTask& task, Buffers buffers, Operation& op);
  // Sets the plan of an operation, and the members that depend on the plan.
  void SetPlan(const CollectiveTask& task, const Plan& plan, Operation& op);
  Status RunPlanned(const CollectiveTask& task, Operation& op);
  // Run the plan's algorithm by the stages of one host, or over FIFOs.
  void RunStaged(const CollectiveTask& task, const Operation& op);
  Status RunOverFifos(const CollectiveTask& task, Operation& op);
  // Runs a barrier as an AllReduce of one byte by the plan of the barrier.
  Status RunBarrierOverFifos(const CollectiveTask& task, Operation& op);
  // Pulls if the buffers of all ranks allow pulling and pulling is still the cheapest algorithm.
  // Returns false, with no data moved, if the operation did not pull.
  Result<bool> TryPull(const CollectiveTask& task, Operation& op);
  void RunPull(const CollectiveTask& task, Operation& op, HostPullPrimitives& p);
  // Runs a collective that consists of messages.
  Status RunExchange(const CollectiveTask& task, Operation& op);

  kernels::HostsView HostsOf(const Plan& plan) const;
  RingView Ring() const { return {ring_index_, num_ranks_, ring_.data()}; }
  TreeView TreeOf(bool second) const;
  // Runs the messages between this rank and its peers. calls[i] describes messages[i].
  Status ExchangeWithOthers(std::span<const MessageTask> messages, std::span<MessageCall> calls);
  Status OpenFor(std::span<const MessageTask> messages);
  void AddMessage(const MessageTask& message, MessageBatch& batch, uint32_t tag);
  // Returns how the elements are combined. An average multiplies every input by 1/n instead of
  // dividing the sum if the algorithm stores partial sums that could overflow. REQUIRES: the task
  // is a reduction.
  ReduceSpec ReduceSpecFor(const CollectiveTask& task, AddingOrder order) const;

  const int rank_;
  const int num_ranks_;
  Planner planner_;
  const std::vector<int> ring_;
  int ring_index_ = 0;
  int next_ = 0;  // The neighbours of this rank in the ring.
  int previous_ = 0;
  std::vector<int> host_ranks_;  // All ranks, host by host.
  // The index in host_ranks_ of each host's first rank, and the number of ranks.
  std::vector<int> host_begins_;
  int host_ = 0;   // This rank's host.
  int local_ = 0;  // This rank's place in its host.
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
