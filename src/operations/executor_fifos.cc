// Runs a plan over FIFOs: opens the connections, chooses the template of kernels/ for the plan, and
// gives the template its primitives. Running has primitives that move data. Counting has primitives
// that only count: proxy connections learn the traffic before the first byte moves, and a printed
// plan shows the traffic.

#include <algorithm>
#include <cstddef>

#include "backend/host/block_primitives.h"
#include "base/copy.h"
#include "kernels/counting.h"
#include "kernels/mesh.h"
#include "kernels/recursive_doubling.h"
#include "kernels/recursive_halving.h"
#include "kernels/ring.h"
#include "kernels/tree.h"
#include "operations/executor.h"

namespace tutti {
namespace {

bool IsAllGather(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kAllGatherV;
}
bool IsReduceScatter(Collective collective) {
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

// Lists the exchanges of recursive doubling. All exchanges move the same number of elements.
struct DoublingPartners {
  struct Exchange {
    int peer;
    bool is_send;
  };
  std::vector<Exchange> all;

  void LoadInput(size_t) {}
  void SendOutput(int peer, size_t) { all.push_back({peer, true}); }
  void RecvReduceOutput(int peer, bool, size_t) { all.push_back({peer, false}); }
  void ExchangeReduceOutput(int peer, bool, size_t) {
    all.push_back({peer, true});
    all.push_back({peer, false});
  }
  void RecvOutput(int peer, size_t) { all.push_back({peer, false}); }
  void FinishOutput(size_t) {}
};

}  // namespace

// Chooses the template and the primitives of the plan's algorithm.
template <class Links>
void Executor::Visit(const CollectiveTask& task, const Plan& plan, Links& links) const {
  const WorkShape shape = {task.count, plan.chunk_elems, task.root};
  const bool in_blocks = IsAllGather(task.collective) || IsReduceScatter(task.collective);
  switch (plan.algorithm()) {
    case Algorithm::kOneShot:
    case Algorithm::kTwoShot:
      return links.Pairs([&](auto& p) { WalkPairs(p, task, plan.algorithm(), shape); });
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
    case Algorithm::kTwoLevel: {
      const kernels::HostsView hosts = HostsOf(plan);
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
    }
    case Algorithm::kExchange:
      return links.Messages();
    case Algorithm::kPull:       // Run by Executor::TryPull.
    case Algorithm::kSymmetric:  // For GPUs only.
      return;
  }
}

// REQUIRES: the connections of the operation are open. `traffic` describes the data on them.
class Executor::Running {
 public:
  Running(Executor& executor, const CollectiveTask& task, const Operation& op,
          std::span<const ConnectionTraffic> traffic)
      : e_(executor),
        task_(task),
        work_(op.work),
        two_level_(op.plan->algorithm() == Algorithm::kTwoLevel),
        traffic_(traffic) {}

  template <class Walk>
  void Ring(const Walk& walk) {
    if (IsAllGather(task_.collective))
      WithParts(task_, [&](const auto& parts) { CopyOwnPart(parts); });
    HostFifoPrimitives p(e_.wait_, work_);
    p.AddSend(e_.connections_.SendTo(e_.next_));
    p.AddRecv(e_.connections_.RecvFrom(e_.previous_));
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
  const bool two_level_;
  const std::span<const ConnectionTraffic> traffic_;
};

class Executor::Counting {
 public:
  Counting(const Executor& executor, const CollectiveTask& task, const Plan& plan)
      : executor_(executor), task_(task), slice_elems_(plan.slice_elems) {}

  std::vector<ConnectionTraffic> Take() { return std::move(all_); }

  template <class Walk>
  void Ring(const Walk& walk) {
    kernels::CountingPrimitives count(slice_elems_);
    walk(count);
    all_.push_back({executor_.next_, true, count.sent()});
    all_.push_back({executor_.previous_, false, count.received()});
  }
  template <class Walk>
  void Tree(const TreeView& tree, const Walk& walk) {
    kernels::CountingPrimitives up(slice_elems_), down(slice_elems_);
    walk(up, down);
    const bool is_root = tree.parent < 0;
    if (!is_root) {
      all_.push_back({tree.parent, true, up.sent()});
      all_.push_back({tree.parent, false, down.received()});
    }
    for (const int child : tree.children) {
      if (child < 0) continue;
      all_.push_back({child, false, up.received()});
      all_.push_back({child, true, is_root ? up.sent() : down.sent()});
    }
  }
  template <class Walk>
  void Pairs(const Walk& walk) {
    kernels::MeshCounting count(executor_.rank_, executor_.num_ranks_);
    walk(count);
    for (int peer = 0; peer < executor_.num_ranks_; ++peer) {
      if (count.sent(peer).chunks > 0) all_.push_back({peer, true, count.sent(peer)});
      if (count.received(peer).chunks > 0) all_.push_back({peer, false, count.received(peer)});
    }
  }
  template <class Walk>
  void Blocks(const Walk& walk) {
    kernels::BlockCounting count(slice_elems_);
    walk(count);
    for (const auto& [peer, is_send, traffic] : count.messages())
      all_.push_back({peer, is_send, traffic});
  }
  template <class Walk>
  void Matrix(const Walk& walk) {
    Blocks(walk);
  }
  // Lists the traffic within the host first. Only connections between hosts have an order.
  template <class Walk>
  void OwnerParts(const kernels::HostsView& hosts, const Walk& walk) {
    Counting along = *this;
    Blocks([&](auto& count) {
      walk(count, [&](Block block) {
        along.Double(hosts.host, hosts.num_hosts(), block.size,
                     [&](int host) { return hosts.Rank(host, hosts.local); });
      });
    });
    all_.insert(all_.end(), along.all_.begin(), along.all_.end());
  }
  void Doubling(size_t count) {
    Double(executor_.rank_, executor_.num_ranks_, count, [](int number) { return number; });
  }
  void Messages() {
    const size_t slot_bytes = executor_.planner_.context().host.slot_bytes;
    for (const MessageTask& message :
         MessagesOf(task_, executor_.rank_, executor_.num_ranks_, task_.send))
      if (message.peer != executor_.rank_)
        all_.push_back({message.peer,
                        message.is_send,
                        {1, MessageBatch::ChunksFor(message.bytes(), slot_bytes), message.count}});
  }

 private:
  // Counts recursive doubling among `num_ranks` participants. `rank_of` returns a participant's
  // rank.
  template <class RankOf>
  void Double(int number, int num_ranks, size_t count, const RankOf& rank_of) {
    DoublingPartners partners;
    kernels::RecursiveDoublingAllReduce(partners, number, num_ranks, count);
    for (const auto& [peer, is_send] : partners.all)
      all_.push_back({rank_of(peer), is_send, {1, DivUp(count, slice_elems_), count}});
  }

  const Executor& executor_;
  const CollectiveTask& task_;
  const size_t slice_elems_;
  std::vector<ConnectionTraffic> all_;
};

std::vector<Executor::ConnectionTraffic> Executor::TrafficOf(const CollectiveTask& task,
                                                             const Plan& plan) const {
  if (plan.row->where == Where::kStage) return {};
  Counting counting(*this, task, plan);
  Visit(task, plan, counting);
  return counting.Take();
}

Status Executor::OpenAndBegin(std::span<const ConnectionTraffic> all, uint32_t op_tag) {
  std::vector<int> sends, recvs;
  for (const ConnectionTraffic& one : all) (one.is_send ? sends : recvs).push_back(one.peer);
  // All connections are made before data moves, because nobody moves the data of a rank that waits
  // for a connection.
  TUTTI_TRY(connections_.Open(sends, recvs));
  for (const ConnectionTraffic& one : all) {
    ProxyConnection* proxy =
        one.is_send ? connections_.SendProxy(one.peer) : connections_.RecvProxy(one.peer);
    if (proxy == nullptr || one.traffic.chunks == 0) continue;
    proxy->Begin(one.traffic.chunks, op_tag);
    wait_.AddConnection(proxy);
  }
  return Status::Ok();
}

Status Executor::RunBarrierOverFifos(const CollectiveTask& task, Operation& op) {
  std::byte byte{};
  const CollectiveTask adding = Lower(task, {.byte = &byte}).steps[0].task;
  op.work.input = op.work.output = &byte;
  op.work.elem_bytes = adding.elem_bytes();
  op.work.reduce = ReduceSpecFor(adding, op.plan->row->order);
  return RunOverFifos(adding, op);
}

// Opens the connections of the plan, and runs the plan.
Status Executor::RunOverFifos(const CollectiveTask& task, Operation& op) {
  if (task.collective == Collective::kBarrier) [[unlikely]]
    return RunBarrierOverFifos(task, op);
  std::vector<ConnectionTraffic> traffic;
  if (op.plan->algorithm() == Algorithm::kRing && connections_.IsLocal(next_) &&
      connections_.IsLocal(previous_)) {
    // Within a host no proxy connection needs the traffic, and counting would slow small
    // operations.
    TUTTI_TRY(connections_.Open(std::span(&next_, 1), std::span(&previous_, 1)));
  } else {
    traffic = TrafficOf(task, *op.plan);
    TUTTI_TRY(OpenAndBegin(traffic, op.work.op_tag));
  }
  Running running(*this, task, op, traffic);
  Visit(task, *op.plan, running);
  return Status::Ok();
}

}  // namespace tutti
