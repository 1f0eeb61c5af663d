#pragma once

// Defines Executor::Visit: the choice of the template of kernels/ for a plan, and of its
// primitives. Visit is the only place that distinguishes the algorithms of hosts. The files of the
// executor share this header.

#include <algorithm>
#include <cstddef>

#include "kernels/direct.h"
#include "kernels/mesh.h"
#include "kernels/recursive_halving.h"
#include "kernels/ring_collective.h"
#include "kernels/tree.h"
#include "operations/executor.h"

namespace tutti {

// Calls f with the parts of the task's collective.
template <class F>
void WithParts(const CollectiveTask& task, F f) {
  if (task.parts)
    f(task.parts->recvs);
  else
    f(kernels::EqualParts{task.count});
}

inline bool IsAllGather(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kAllGatherV;
}
inline bool IsReduceScatter(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kReduceScatterV;
}

template <class P>
void WalkRing(P& p, const RingView& ring, const CollectiveTask& task, const WorkShape& shape) {
  const kernels::RingWork work = {.ring = ring, .shape = shape, .in_place = task.send == task.recv};
  // The parts distinguish equal and variable sizes, and therefore a collective and its
  // variable-size form run the same template.
  const Collective collective = IsAllGather(task.collective)       ? Collective::kAllGather
                                : IsReduceScatter(task.collective) ? Collective::kReduceScatter
                                                                   : task.collective;
  WithParts(task, [&](const auto& parts) {
    if (task.is_reduction())
      kernels::RingReduction(p, collective, work, parts);
    else
      kernels::RingMove(p, collective, work, parts);
  });
}

// Runs the algorithms of ranks that share stages. AllReduce has two such algorithms.
template <class P>
void WalkStaged(P& p, const CollectiveTask& task, Algorithm algorithm, const WorkShape& shape) {
  switch (task.collective) {
    case Collective::kAllReduce:
      return algorithm == Algorithm::kOneShot ? kernels::OneShotAllReduce(p, shape)
                                              : kernels::TwoShotAllReduce(p, shape);
    case Collective::kReduce:
      return kernels::DirectReduce(p, shape);
    case Collective::kBroadcast:
      return kernels::DirectBroadcast(p, shape);
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return WithParts(task, [&](const auto& parts) { kernels::DirectAllGather(p, parts, shape); });
    case Collective::kReduceScatter:
    case Collective::kReduceScatterV:
      return WithParts(task,
                       [&](const auto& parts) { kernels::DirectReduceScatter(p, parts, shape); });
    case Collective::kAlltoAll:
      return kernels::DirectAlltoAll(p, shape);
    case Collective::kBarrier:
      return kernels::DirectBarrier(p);
    default:  // No row of stages serves any other collective.
      return;
  }
}

// Runs a one-shot or two-shot reduction over FIFOs between all pairs of ranks.
template <class P>
void WalkPairs(P& p, const CollectiveTask& task, Algorithm algorithm, const WorkShape& shape) {
  MeshShape mesh = MeshShapeOf(shape);
  if (IsReduceScatter(task.collective)) {
    return WithParts(task, [&](const auto& parts) {
      mesh.count = parts.Longest();
      kernels::MeshReduceScatter(p, parts, mesh);
    });
  }
  if (algorithm == Algorithm::kOneShot)
    return kernels::MeshOneShotReduction(p, mesh, kernels::ReductionOf(task.collective));
  // Parts begin at cache lines if chunks consist of whole cache lines.
  const size_t line_elems = 64 / task.elem_bytes();
  const size_t unit = shape.chunk_elems % line_elems == 0 ? line_elems : 1;
  const bool all = task.collective == Collective::kAllReduce;
  kernels::MeshTwoShotReduction(p, mesh, all ? -1 : shape.root, unit);
}

// Runs an exchange of blocks of a work area, by recursive halving or doubling.
template <class P>
void WalkBlocks(P& p, const RingView& ring, const CollectiveTask& task) {
  WithParts(task, [&](const auto& parts) {
    if (task.is_reduction())
      kernels::HalvingReduceScatter(p, ring, parts);
    else
      kernels::DoublingAllGather(p, ring, parts);
  });
}

template <class P>
void WalkTwoLevelBlocks(P& p, const kernels::HostsView& hosts, const CollectiveTask& task) {
  WithParts(task, [&](const auto& parts) {
    if (task.is_reduction())
      kernels::TwoLevelBlocksReduceScatter(p, hosts, parts);
    else
      kernels::TwoLevelBlocksAllGather(p, hosts, parts);
  });
}

template <class Links>
void Executor::Visit(const CollectiveTask& task, const Plan& plan, Links& links) const {
  WorkShape shape = {task.count, plan.chunk_elems, task.root};
  const kernels::HostsView hosts = HostsOf(plan);
  const bool in_blocks = IsAllGather(task.collective) || IsReduceScatter(task.collective);
  switch (plan.algorithm()) {
    case Algorithm::kOneShot:
    case Algorithm::kTwoShot:
      if (plan.row->where != Where::kStage)
        return links.Pairs([&](auto& p) { WalkPairs(p, task, plan.algorithm(), shape); });
      // Makes the slot of a small operation exactly as long as the data. The data then fit the
      // flag's line.
      shape.chunk_elems = std::max<size_t>(1, std::min(shape.chunk_elems, task.plan_count()));
      return links.Stages([&](auto& p) { WalkStaged(p, task, plan.algorithm(), shape); });
    case Algorithm::kRing:
      return links.Ring([&](auto& p) { WalkRing(p, Ring(), task, shape); });
    case Algorithm::kTree: {
      const size_t half = (task.count + 1) / 2;
      for (const bool second : {false, true}) {
        const TreeView tree = TreeOf(second);
        links.Tree(tree, [&](auto& up, auto& down) {
          kernels::TreeAllReduce(up, down, tree, second ? half : 0,
                                 second ? task.count - half : half, plan.slice_elems);
        });
      }
      return;
    }
    case Algorithm::kRecursiveHalving:
      return links.Blocks([&](auto& p) { WalkBlocks(p, Ring(), task); });
    case Algorithm::kRecursiveDoubling:
      if (in_blocks) return links.Blocks([&](auto& p) { WalkBlocks(p, Ring(), task); });
      return links.Doubling(task.count);
    case Algorithm::kTwoLevel:
      if (in_blocks) return links.Blocks([&](auto& p) { WalkTwoLevelBlocks(p, hosts, task); });
      if (task.collective == Collective::kAlltoAll)
        return links.Matrix(
            [&](auto& p) { kernels::TwoLevelBlocksAlltoAll(p, hosts, task.count); });
      // Parts begin at cache lines, if whole elements fit a cache line.
      return links.OwnerParts(hosts, [&](auto& p, const auto& along_rail) {
        kernels::TwoLevelBlocksAllReduce(
            p, hosts,
            kernels::OwnerParts{task.count, std::max<size_t>(1, 64 / task.elem_bytes()),
                                plan.owners},
            along_rail);
      });
    case Algorithm::kExchange:
      return links.Messages();
    case Algorithm::kPull:       // Run by Executor::TryPull.
    case Algorithm::kSymmetric:  // For GPUs only.
      return;
  }
}

}  // namespace tutti
