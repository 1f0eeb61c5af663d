// Finds the traffic of each connection in an operation: visits the algorithm with primitives that
// only count. Proxy connections learn the traffic before the first byte moves, and a printed plan
// shows the traffic.

#include "kernels/counting.h"
#include "kernels/recursive_doubling.h"
#include "operations/executor_visit.h"

namespace tutti {
namespace {

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

class Executor::Counting {
 public:
  Counting(const Executor& executor, const CollectiveTask& task, const Plan& plan)
      : executor_(executor), task_(task), slice_elems_(plan.slice_elems) {}

  std::vector<ConnectionTraffic> Take() { return std::move(all_); }

  template <class Walk>
  void Stages(const Walk&) {}  // Stages have no connections.
  template <class Walk>
  void Ring(const Walk& walk) {
    kernels::CountingPrimitives count(slice_elems_);
    walk(count);
    const RingView ring = executor_.Ring();
    all_.push_back({ring.At(ring.index + 1), true, count.sent()});
    all_.push_back({ring.At(ring.index - 1), false, count.received()});
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

}  // namespace tutti
