// Runs a plan: defines the primitives that move data for Executor::Visit.

#include <algorithm>

#include "backend/host/block_primitives.h"
#include "backend/host/scattered_primitives.h"
#include "base/copy.h"
#include "kernels/recursive_doubling.h"
#include "operations/executor_visit.h"

namespace tutti {
namespace {

// Finds the connections to a peer, for primitives that work in pairs.
struct ExchangeLinks {
  Connections& connections;
  SendLink SendTo(int peer) const { return connections.SendTo(peer); }
  RecvLink RecvFrom(int peer) const { return connections.RecvFrom(peer); }
};

// Finds, by the number of a host, the connections to the rank of this host that has this rank's
// place.
struct RailLinks {
  Connections& connections;
  const kernels::HostsView& view;
  SendLink SendTo(int host) const { return connections.SendTo(view.Rank(host, view.local)); }
  RecvLink RecvFrom(int host) const { return connections.RecvFrom(view.Rank(host, view.local)); }
};

// Returns the number of elements from the beginning of the long buffer to the end of the last part.
template <class Parts>
size_t EndOf(const Parts& parts, int num_ranks) {
  size_t end = 0;
  for (int r = 0; r < num_ranks; ++r) end = std::max(end, parts.Offset(r) + parts.Size(r));
  return end;
}

}  // namespace

// REQUIRES: the connections of the operation are open. `traffic` describes the data on them.
class Executor::Running {
 public:
  Running(Executor& executor, const CollectiveTask& task, const Operation& op,
          std::span<const ConnectionTraffic> traffic)
      : e_(executor),
        task_(task),
        work_(op.work),
        inlined_(op.plan->protocol == Protocol::kLL),
        two_level_(op.plan->algorithm() == Algorithm::kTwoLevel),
        traffic_(traffic) {}

  template <class Walk>
  void Stages(const Walk& walk) {
    if (task_.scattered) [[unlikely]]
      return Staged(walk, HostScatteredPrimitives(*e_.stages_, e_.wait_, work_, *task_.scattered));
    Staged(walk, HostStagePrimitives(*e_.stages_, e_.wait_, work_));
  }

  template <class Walk>
  void Ring(const Walk& walk) {
    if (IsAllGather(task_.collective))
      WithParts(task_, [&](const auto& parts) { CopyOwnPart(parts); });
    const RingView ring = e_.Ring();
    HostFifoPrimitives p(e_.wait_, work_);
    p.AddSend(e_.connections_.SendTo(ring.At(ring.index + 1)));
    p.AddRecv(e_.connections_.RecvFrom(ring.At(ring.index - 1)));
    walk(p);
  }

  // The way up reduces and the way down broadcasts. At the root both ways meet in one step.
  template <class Walk>
  void Tree(const TreeView& tree, const Walk& walk) {
    if (e_.wait_.failed()) return;
    HostFifoPrimitives up(e_.wait_, work_), down(e_.wait_, work_);
    const bool is_root = tree.parent < 0;
    if (!is_root) {
      up.AddSend(e_.connections_.SendTo(tree.parent));
      down.AddRecv(e_.connections_.RecvFrom(tree.parent));
    }
    for (const int child : tree.children) {
      if (child < 0) continue;
      up.AddRecv(e_.connections_.RecvFrom(child));
      // The root sends the finished chunk down at once, as part of the way up.
      (is_root ? up : down).AddSend(e_.connections_.SendTo(child));
    }
    walk(up, down);
  }

  template <class Walk>
  void Pairs(const Walk& walk) {
    const auto n = static_cast<size_t>(e_.num_ranks_);
    MeshLinks& links = e_.mesh_links_;
    links.sends.assign(n, {});
    links.recvs.assign(n, {});
    links.sources.resize(n);
    for (const ConnectionTraffic& one : traffic_) {
      const auto peer = static_cast<size_t>(one.peer);
      if (one.is_send)
        links.sends[peer] = e_.connections_.SendTo(one.peer);
      else
        links.recvs[peer] = e_.connections_.RecvFrom(one.peer);
    }
    HostMeshPrimitives p(e_.wait_, work_, e_.rank_, links);
    walk(p);
  }

  void Doubling(size_t count) {
    HostExchangePrimitives p(e_.wait_, work_, ExchangeLinks{e_.connections_});
    kernels::RecursiveDoublingAllReduce(p, e_.rank_, e_.num_ranks_, count);
  }

  // Gathered blocks lie in the output buffer. A ReduceScatter works on a copy of its input, because
  // a collective must not change the input.
  template <class Walk>
  void Blocks(const Walk& walk) {
    const auto run = [&](std::byte* area, const std::byte* source) {
      HostBlockPrimitives p(e_.wait_, work_, area, ExchangeLinks{e_.connections_}, source);
      walk(p);
    };
    WithParts(task_, [&](const auto& parts) {
      if (!task_.is_reduction()) {
        CopyOwnPart(parts);
        return run(work_.output, work_.output);
      }
      const size_t count = EndOf(parts, e_.num_ranks_);
      std::vector<std::byte>& area = e_.blocks_;
      area.resize(count * work_.elem_bytes);
      // Algorithms of two levels read an input that need not be scaled from its place.
      const bool reads = two_level_ && !work_.reduce.scale;
      if (!reads) Load(area.data(), count);
      run(area.data(), reads ? work_.input : area.data());
      CopyBytes(work_.output, area.data() + parts.Offset(e_.rank_) * work_.elem_bytes,
                parts.Size(e_.rank_) * work_.elem_bytes);
    });
  }

  // The work area has a row for each rank's input. This rank fills its own row, and takes its
  // output from a column.
  template <class Walk>
  void Matrix(const Walk& walk) {
    const auto n = static_cast<size_t>(e_.num_ranks_), me = static_cast<size_t>(e_.rank_);
    const size_t block = task_.count * work_.elem_bytes;
    std::vector<std::byte>& area = e_.blocks_;
    area.resize(n * n * block);
    CopyBytes(area.data() + me * n * block, work_.input, n * block);
    HostBlockPrimitives p(e_.wait_, work_, area.data(), ExchangeLinks{e_.connections_});
    walk(p);
    for (size_t from = 0; from < n; ++from)
      CopyBytes(work_.output + from * block, area.data() + (from * n + me) * block, block);
  }

  // The blocks are parts of the output buffer. A part goes along the rail by recursive doubling.
  template <class Walk>
  void OwnerParts(const kernels::HostsView& hosts, const Walk& walk) {
    const bool scales = work_.reduce.scale;
    if (scales)
      HostExchangePrimitives(e_.wait_, work_, ExchangeLinks{e_.connections_})
          .LoadInput(task_.count);
    HostBlockPrimitives p(e_.wait_, work_, work_.output, ExchangeLinks{e_.connections_},
                          scales ? work_.output : work_.input);
    walk(p, [&](Block block) {
      HostWork part = work_;
      part.input = part.output += block.at * part.elem_bytes;
      part.reduce.scale = false;  // The input was scaled when it was loaded.
      HostExchangePrimitives rail(e_.wait_, part, RailLinks{e_.connections_, hosts});
      kernels::RecursiveDoublingAllReduce(rail, hosts.host, hosts.num_hosts(), block.size);
    });
  }

  void Messages() {}  // Executor::RunExchange runs messages.

 private:
  template <class Walk, class P>
  void Staged(const Walk& walk, P p) {
    p.set_inlined(inlined_);
    walk(p);
  }
  template <class Parts>
  void CopyOwnPart(const Parts& parts) {
    std::byte* const own = work_.output + parts.Offset(e_.rank_) * work_.elem_bytes;
    if (own != work_.input) CopyBytes(own, work_.input, parts.Size(e_.rank_) * work_.elem_bytes);
  }
  void Load(std::byte* area, size_t count) {
    const void* source = work_.input;
    if (work_.reduce.scale)
      work_.reduce.Apply(area, &source, 1, count, true, false);
    else
      CopyBytes(area, work_.input, count * work_.elem_bytes);
  }

  Executor& e_;
  const CollectiveTask& task_;
  const HostWork& work_;
  const bool inlined_;
  const bool two_level_;
  const std::span<const ConnectionTraffic> traffic_;
};

// If the buffers turn out not to allow pulling, nothing has moved, and the planner chooses again
// without pulling. A barrier without stages runs an AllReduce of one byte by the plan of the
// barrier.
Status Executor::RunPlanned(const CollectiveTask& task, Operation& op) {
  if (op.plan->algorithm() == Algorithm::kPull) {
    TUTTI_ASSIGN(const bool pulled, TryPull(task, op));
    if (pulled || wait_.failed()) return Status::Ok();
    SetPlan(task, planner_.For(task), op);
  }
  if (op.plan->algorithm() == Algorithm::kExchange) return RunExchange(task, op);
  std::vector<ConnectionTraffic> traffic;
  if (op.plan->row->where == Where::kStage) {
    Running running(*this, task, op, traffic);
    Visit(task, *op.plan, running);
    return Status::Ok();
  }
  std::byte byte{};
  CollectiveTask adding;
  const bool is_barrier = task.collective == Collective::kBarrier;
  if (is_barrier) {
    adding = Lower(task, {.byte = &byte}).steps[0].task;
    op.work.input = op.work.output = &byte;
    op.work.reduce = ReduceSpecFor(adding, op.plan->row->order);
  }
  const CollectiveTask& visited = is_barrier ? adding : task;
  const int next = Ring().At(ring_index_ + 1), prev = Ring().At(ring_index_ - 1);
  if (op.plan->algorithm() == Algorithm::kRing && connections_.IsLocal(next) &&
      connections_.IsLocal(prev)) {
    // Within a host no proxy connection needs the traffic, and counting would slow small
    // operations.
    TUTTI_TRY(connections_.Open(std::span(&next, 1), std::span(&prev, 1)));
  } else {
    traffic = TrafficOf(visited, *op.plan);
    TUTTI_TRY(OpenAndBegin(traffic, op.work.op_tag));
  }
  Running running(*this, visited, op, traffic);
  Visit(visited, *op.plan, running);
  return Status::Ok();
}

}  // namespace tutti
