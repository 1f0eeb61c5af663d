#pragma once

// The executor's files share this: how a task cuts its data, and which algorithm runs over it.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/direct.h"
#include "kernels/mesh.h"
#include "kernels/recursive_halving.h"
#include "kernels/ring.h"
#include "operations/executor.h"
#include "plan/task.h"

namespace tutti {

// The parts of a variable-size collective, in the form that the algorithms take.
struct VariableSizes {
  const std::vector<size_t>& counts;
  const std::vector<size_t>& offsets;
  size_t Offset(int rank) const { return offsets[static_cast<size_t>(rank)]; }
  size_t Size(int rank) const { return counts[static_cast<size_t>(rank)]; }
  size_t Longest() const { return *std::max_element(counts.begin(), counts.end()); }
};

// Finds the connections of a peer, for primitives that work pairwise.
struct ExchangeLinks {
  Connections& connections;
  SendLink SendTo(int peer) const { return connections.SendTo(peer); }
  RecvLink RecvFrom(int peer) const { return connections.RecvFrom(peer); }
};

// Calls f with the parts that the task's collective works on.
template <class F>
void WithParts(const Task& task, F f) {
  if (task.parts)
    f(VariableSizes{task.parts->recv_counts, task.parts->recv_offsets});
  else
    f(kernels::EqualParts{task.count});
}

// Returns the element count by which plans are made.
inline size_t PlanCount(const Task& task) {
  return task.parts && task.collective != Collective::kAlltoAllV
             ? *std::max_element(task.parts->recv_counts.begin(), task.parts->recv_counts.end())
             : task.count;
}

// Runs the task's ring algorithm over primitives that move data, or that count it.
template <class P>
void Executor::WalkRing(P& p, const Task& task, const WorkShape& shape) const {
  const RingView ring = {ring_index_, num_ranks_, ring_.data()};
  switch (task.collective) {
    case Collective::kAllReduce:
      return kernels::RingAllReduce(p, ring, shape);
    case Collective::kReduce:
      return kernels::ChainReduce(p, ring, shape);
    case Collective::kBroadcast:
      return kernels::ChainBroadcast(p, ring, shape, task.send == task.recv);
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return WithParts(task,
                       [&](const auto& parts) { kernels::RingAllGather(p, ring, parts, shape); });
    default:
      return WithParts(
          task, [&](const auto& parts) { kernels::RingReduceScatter(p, ring, parts, shape); });
  }
}

// Runs the exchange of blocks by which the task's collective is done.
template <class P>
void Executor::WalkBlocks(P& p, const Task& task, const Choice& choice) const {
  if (choice.algorithm == Algorithm::kTwoLevel) {
    const kernels::HostsView view = HostsOf(choice);
    return WithParts(task, [&](const auto& parts) {
      if (task.is_reduction())
        kernels::TwoLevelBlocksReduceScatter(p, view, parts);
      else
        kernels::TwoLevelBlocksAllGather(p, view, parts);
    });
  }
  const RingView ring = {ring_index_, num_ranks_, ring_.data()};
  WithParts(task, [&](const auto& parts) {
    if (task.is_reduction())
      kernels::HalvingReduceScatter(p, ring, parts);
    else
      kernels::DoublingAllGather(p, ring, parts);
  });
}

// Parts begin at cache lines, where elements fit them.
template <class P, class AlongRail>
void Executor::WalkTwoLevelAllReduce(P& p, const Task& task, const Choice& choice,
                                     const AlongRail& along_rail) const {
  const kernels::OwnerParts parts = {task.count, std::max<size_t>(1, 64 / task.elem_bytes()),
                                     choice.owners};
  kernels::TwoLevelBlocksAllReduce(p, HostsOf(choice), parts, along_rail);
}

// Runs the task's algorithm for ranks that share stages; AllReduce has two, of which `algorithm`
// names one. Returns false where the collective has none.
template <class P>
bool Executor::WalkStaged(P& p, const Task& task, Algorithm algorithm, const WorkShape& shape) {
  switch (task.collective) {
    case Collective::kAllReduce:
      if (algorithm == Algorithm::kOneShot)
        kernels::OneShotAllReduce(p, shape);
      else
        kernels::TwoShotAllReduce(p, shape);
      return true;
    case Collective::kReduce:
      kernels::DirectReduce(p, shape);
      return true;
    case Collective::kBroadcast:
      kernels::DirectBroadcast(p, shape);
      return true;
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      WithParts(task, [&](const auto& parts) { kernels::DirectAllGather(p, parts, shape); });
      return true;
    case Collective::kReduceScatter:
    case Collective::kReduceScatterV:
      WithParts(task, [&](const auto& parts) { kernels::DirectReduceScatter(p, parts, shape); });
      return true;
    case Collective::kAlltoAll:
      kernels::DirectAlltoAll(p, shape);
      return true;
    case Collective::kBarrier:
      kernels::DirectBarrier(p);
      return true;
    default:
      return false;
  }
}

// Runs the one-shot or two-shot reduction over FIFOs between all pairs of ranks.
template <class P>
void Executor::WalkMesh(P& p, const Task& task, Algorithm algorithm, const WorkShape& shape) {
  MeshShape mesh = MeshShapeOf(shape);
  if (task.collective == Collective::kReduceScatter ||
      task.collective == Collective::kReduceScatterV) {
    return WithParts(task, [&](const auto& parts) {
      mesh.count = parts.Longest();
      kernels::MeshReduceScatter(p, parts, mesh);
    });
  }
  if (algorithm == Algorithm::kOneShot)
    return kernels::MeshOneShotReduction(p, mesh, kernels::ReductionOf(task.collective));
  // Parts begin at cache lines where chunks consist of whole cache lines.
  const size_t line_elems = 64 / task.elem_bytes();
  const size_t unit = shape.chunk_elems % line_elems == 0 ? line_elems : 1;
  const bool all = task.collective == Collective::kAllReduce;
  kernels::MeshTwoShotReduction(p, mesh, all ? -1 : shape.root, unit);
}

}  // namespace tutti
