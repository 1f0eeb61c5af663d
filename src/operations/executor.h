#pragma once

// The executor runs a communicator's operations on the host: it chooses the algorithm (plan), gives
// the algorithm's template (kernels) its primitives (backend/host) over the communicator's
// connections, and runs it on the calling thread.
//
// One thread at a time uses it: HostOperations gives the turns.

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
#include "plan/choose.h"
#include "plan/pair_messages.h"
#include "plan/task.h"
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

  // Runs one collective to its end. The arguments were checked before, so that it fails for other
  // reasons only.
  Status RunCollective(const Task& task);
  // Returns InvalidUsage where sends and receives that this rank has with itself do not meet.
  Status CheckMessages(std::span<const Task* const> tasks) const;
  // Returns InvalidUsage where the task demands algorithms of which none serves it.
  Status CheckWishes(const Task& task) const;
  // Runs sends and receives together.
  Status RunMessages(std::span<const Task* const> tasks);

  // Returns what RunCollective would do, in words.
  std::string Describe(const Task& task) const;
  // Returns the time that the cost model predicts, in microseconds.
  double PredictUs(const Task& task) const;

 private:
  // Describes one collective under way.
  struct Operation {
    Choice choice;
    OpSignature signature;
    HostWork work;
    WorkShape shape;
    Status status;
  };

  // Counts what passes one direction of a connection in an operation.
  struct ConnectionTraffic {
    int peer;
    bool is_send;
    kernels::Traffic traffic;
  };
  // Returns the traffic of a collective, which is known before the first byte moves, in the order
  // in which operations begin on their connections.
  std::vector<ConnectionTraffic> TrafficOf(const Task& task, const Choice& choice) const;
  std::vector<ConnectionTraffic> RingTraffic(const Task& task, const Choice& choice) const;
  std::vector<ConnectionTraffic> TreeTraffic(const TreeView& tree, size_t begin, size_t count,
                                             size_t slice_elems) const;
  // That of recursive doubling among `num_ranks`; `rank_of` finds the rank of a number.
  template <class RankOf>
  static std::vector<ConnectionTraffic> DoublingTraffic(int number, int num_ranks, size_t count,
                                                        size_t slice_elems, const RankOf& rank_of);
  std::vector<ConnectionTraffic> BlockTraffic(const Task& task, const Choice& choice) const;
  std::vector<ConnectionTraffic> TwoLevelTraffic(const Task& task, const Choice& choice) const;
  std::vector<ConnectionTraffic> ExchangeTraffic(const Task& task) const;
  std::vector<ConnectionTraffic> MeshTraffic(const Task& task, const Choice& choice) const;
  // Opens the connections of an operation and tells their proxy connections what will pass.
  Status OpenAndBegin(const Task& task, const Operation& op);
  Status OpenAndBegin(std::span<const ConnectionTraffic> all, uint32_t op_tag);
  template <class P>
  void WalkRing(P& primitives, const Task& task, const WorkShape& shape) const;
  template <class P>
  static bool WalkStaged(P& primitives, const Task& task, Algorithm algorithm,
                         const WorkShape& shape);

  // Returns whether the algorithm swaps blocks of a work area.
  static bool MovesBlocks(const Task& task, Algorithm algorithm);
  kernels::HostsView HostsOf(const Choice& choice) const;
  template <class P>
  void WalkBlocks(P& primitives, const Task& task, const Choice& choice) const;
  template <class P, class AlongRail>
  void WalkTwoLevelAllReduce(P& primitives, const Task& task, const Choice& choice,
                             const AlongRail& along_rail) const;
  template <class P>
  static void WalkMesh(P& primitives, const Task& task, Algorithm algorithm,
                       const WorkShape& shape);

  // Returns the choice of the cost model, or of the tuner, which is asked each time.
  const Choice& ChoiceFor(const Task& task, size_t count, Reading reading);
  // Returns the choice among the algorithms that one call leaves.
  Choice ChoiceAmong(const Task& task, size_t count, Reading reading, CostAdviser* adviser) const;
  // Returns whether the call, or the whole communicator, adds in the order of the ranks.
  bool IsDeterministic(const Task& task) const {
    return plan_.deterministic || task.wishes.deterministic;
  }
  // Returns the order in which the elements of the task have to be combined.
  ReductionOrder OrderFor(const Task& task) const;
  // Returns what is known of the buffers of an operation before the ranks describe them to one
  // another, which is the same on all ranks.
  Reading ReadingOf(const Task& task) const;
  // Returns how peers' buffers can be read whatever memory they are.
  Reading CertainReading(const Task& task) const;
  Status RunAlone(const Task& task);
  // Runs an AllReduce of many buffers through packed_, where they cannot be staged one by one.
  Status RunPacked(const Task& task);
  // Sets how an operation runs, and what follows from it.
  void SetChoice(const Task& task, const Choice& choice, Operation& op);
  // Runs the operation from its begin to its end, as the watch sees it.
  void RunWatched(const Task& task, const std::optional<Choice>& scattered, Operation& op);
  void Dispatch(const Task& task, Operation& op);
  Status RunStaged(const Task& task, Operation& op);
  // Returns nothing where the buffers must be packed.
  std::optional<Choice> ChoiceForScattered(const Task& task) const;
  Status RunScattered(const Task& task, Operation& op);
  // Pulls if the buffers of all ranks allow it and it is still the cheapest algorithm then. Returns
  // false when it is not, and nothing has happened.
  Result<bool> TryPull(const Task& task, Operation& op);
  void RunPull(const Task& task, Operation& op, HostPullPrimitives& p);
  // Runs one-shot and two-shot reductions where ranks share no stages.
  Status RunMesh(const Task& task, Operation& op);
  Status RunRing(const Task& task, Operation& op);
  Status RunTree(const Task& task, Operation& op);
  TreeView TreeOf(bool second) const;
  // The part of the data that goes over one of the two trees.
  struct Half {
    size_t begin, count;
  };
  static Half HalfOf(const Task& task, bool second);
  void RunOneTree(const TreeView& tree, Half half, Operation& op);
  Status RunRecursiveDoubling(const Task& task, Operation& op);
  Status RunBlocks(const Task& task, Operation& op);
  Status RunTwoLevelAllReduce(const Task& task, Operation& op);
  Status RunTwoLevelAlltoAll(const Task& task, Operation& op);
  Status RunPairwiseBarrier(Operation& op);
  Status RunExchange(const Task& task, Operation& op);

  Status CopyOwnMessages(std::span<const Task* const> tasks);
  // Runs the messages between this rank and others. `calls` are those of `tasks`, in their order.
  Status ExchangeWithOthers(std::span<const Task* const> tasks, std::span<MessageCall> calls);
  void AddMessage(const Task& task, MessageBatch& batch, uint32_t tag);
  // Returns whether an average multiplies every input by 1/n and does not divide the sum, because
  // `algorithm` stores partial sums that could overflow.
  bool ScalesInputs(const Task& task, Algorithm algorithm) const;
  // REQUIRES: the task is a reduction.
  ReduceSpec ReduceSpecFor(const Task& task, Algorithm algorithm) const;

  const int rank_;
  const int num_ranks_;
  const PlanContext plan_;
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
  CostAdviser* const adviser_;
  Profiler* const profiler_;
  WaitContext wait_;
  // The last choices, by a hash of what they depend on, because programs repeat their calls.
  struct RememberedChoice {
    Collective collective;
    size_t count = 0;  // 0: empty
    size_t elem_bytes = 0;
    ReductionOrder order = ReductionOrder::kAny;
    Reading reading = Reading::kNone;
    Choice choice = {};
  };
  static constexpr size_t kRememberedChoices = 64;
  std::array<RememberedChoice, kRememberedChoices> choices_ = {};
  Choice wished_ = {};     // The last choice for a call that named algorithms.
  uint32_t last_tag_ = 0;  // the tag of the last collective
  std::vector<std::byte> packed_;
  std::vector<std::byte> blocks_;  // the work area of a ReduceScatter or AlltoAll in blocks
  MeshLinks mesh_links_;
};

}  // namespace tutti
