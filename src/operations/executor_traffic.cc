// Finds what passes each connection in an operation, by walking the algorithm with primitives that
// only count. Proxy connections learn it before the first byte moves, and a printed plan shows it.

#include "kernels/counting.h"
#include "kernels/recursive_doubling.h"
#include "kernels/tree.h"
#include "operations/executor.h"
#include "operations/executor_parts.h"

namespace tutti {

std::vector<Executor::ConnectionTraffic> Executor::TrafficOf(const Task& task,
                                                             const Choice& choice) const {
  switch (choice.algorithm) {
    case Algorithm::kOneShot:
    case Algorithm::kTwoShot:
      if (stages_ == nullptr) return MeshTraffic(task, choice);
      return {};
    case Algorithm::kPull:
    case Algorithm::kSymmetric:  // GPUs only
      return {};
    case Algorithm::kTwoLevel:
      if (MovesBlocks(task, choice.algorithm)) return BlockTraffic(task, choice);
      return TwoLevelTraffic(task, choice);
    case Algorithm::kRing:
      return RingTraffic(task, choice);
    case Algorithm::kTree: {
      std::vector<ConnectionTraffic> all;
      for (const bool second : {false, true}) {
        const Half half = HalfOf(task, second);
        const auto one = TreeTraffic(TreeOf(second), half.begin, half.count, choice.slice_elems);
        all.insert(all.end(), one.begin(), one.end());
      }
      return all;
    }
    case Algorithm::kRecursiveHalving:
      return BlockTraffic(task, choice);
    case Algorithm::kRecursiveDoubling:
      if (MovesBlocks(task, choice.algorithm)) return BlockTraffic(task, choice);
      return DoublingTraffic(rank_, num_ranks_, task.count, choice.slice_elems,
                             [](int number) { return number; });
    case Algorithm::kExchange:
      return ExchangeTraffic(task);
  }
  return {};
}

std::vector<Executor::ConnectionTraffic> Executor::RingTraffic(const Task& task,
                                                               const Choice& choice) const {
  kernels::CountingPrimitives count(choice.slice_elems);
  WalkRing(count, task, {task.count, choice.chunk_elems, task.root});
  const RingView ring = {ring_index_, num_ranks_, ring_.data()};
  return {{ring.At(ring_index_ + 1), true, count.sent()},
          {ring.At(ring_index_ - 1), false, count.received()}};
}

std::vector<Executor::ConnectionTraffic> Executor::TreeTraffic(const TreeView& tree, size_t begin,
                                                               size_t count,
                                                               size_t slice_elems) const {
  kernels::CountingPrimitives up(slice_elems), down(slice_elems);
  kernels::TreeAllReduce(up, down, tree, begin, count, slice_elems);
  std::vector<ConnectionTraffic> all;
  const bool is_root = tree.parent < 0;
  if (!is_root) {
    all.push_back({tree.parent, true, up.sent()});
    all.push_back({tree.parent, false, down.received()});
  }
  for (const int child : tree.children) {
    if (child < 0) continue;
    all.push_back({child, false, up.received()});
    all.push_back({child, true, is_root ? up.sent() : down.sent()});
  }
  return all;
}

template <class RankOf>
std::vector<Executor::ConnectionTraffic> Executor::DoublingTraffic(int number, int num_ranks,
                                                                   size_t count, size_t slice_elems,
                                                                   const RankOf& rank_of) {
  struct Partners {
    std::vector<ConnectionTraffic> all;
    kernels::Traffic once;
    void LoadInput(size_t) {}
    void SendOutput(int peer, size_t) { all.push_back({peer, true, once}); }
    void RecvReduceOutput(int peer, bool, size_t) { all.push_back({peer, false, once}); }
    void ExchangeReduceOutput(int peer, bool, size_t) {
      all.push_back({peer, true, once});
      all.push_back({peer, false, once});
    }
    void RecvOutput(int peer, size_t) { all.push_back({peer, false, once}); }
    void FinishOutput(size_t) {}
  };
  Partners partners{{}, {1, DivUp(count, slice_elems), count}};
  kernels::RecursiveDoublingAllReduce(partners, number, num_ranks, count);
  for (ConnectionTraffic& one : partners.all) one.peer = rank_of(one.peer);
  return std::move(partners.all);
}

std::vector<Executor::ConnectionTraffic> Executor::BlockTraffic(const Task& task,
                                                                const Choice& choice) const {
  kernels::BlockCounting count(choice.slice_elems);
  WalkBlocks(count, task, choice);
  std::vector<ConnectionTraffic> all;
  all.reserve(count.messages().size());
  for (const auto& [peer, is_send, traffic] : count.messages())
    all.push_back({peer, is_send, traffic});
  return all;
}

// What passes within the host is named first: only connections between hosts have an order.
std::vector<Executor::ConnectionTraffic> Executor::TwoLevelTraffic(const Task& task,
                                                                   const Choice& choice) const {
  kernels::BlockCounting count(choice.slice_elems);
  const kernels::HostsView view = HostsOf(choice);
  std::vector<ConnectionTraffic> along;
  if (task.collective == Collective::kAlltoAll)
    kernels::TwoLevelBlocksAlltoAll(count, view, task.count);
  else
    WalkTwoLevelAllReduce(count, task, choice, [&](Block block) {
      along = DoublingTraffic(view.host, view.num_hosts(), block.size, choice.slice_elems,
                              [&](int host) { return view.Rank(host, view.local); });
    });
  std::vector<ConnectionTraffic> all;
  for (const auto& [peer, is_send, traffic] : count.messages())
    all.push_back({peer, is_send, traffic});
  all.insert(all.end(), along.begin(), along.end());
  return all;
}

std::vector<Executor::ConnectionTraffic> Executor::ExchangeTraffic(const Task& task) const {
  std::vector<ConnectionTraffic> all;
  for (const Task& message : MessagesOf(task, rank_, num_ranks_, nullptr)) {
    if (message.root == rank_) continue;
    const uint64_t chunks =
        MessageBatch::ChunksFor(message.count * message.elem_bytes(), plan_.slot_bytes);
    all.push_back({message.root, message.is_send, {1, chunks, message.count}});
  }
  return all;
}

std::vector<Executor::ConnectionTraffic> Executor::MeshTraffic(const Task& task,
                                                               const Choice& choice) const {
  kernels::MeshCounting count(rank_, num_ranks_);
  WalkMesh(count, task, choice.algorithm, {task.count, choice.chunk_elems, task.root});
  std::vector<ConnectionTraffic> all;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (count.sent(peer).chunks > 0) all.push_back({peer, true, count.sent(peer)});
    if (count.received(peer).chunks > 0) all.push_back({peer, false, count.received(peer)});
  }
  return all;
}

Status Executor::OpenAndBegin(const Task& task, const Operation& op) {
  return OpenAndBegin(TrafficOf(task, op.choice), op.work.op_tag);
}

Status Executor::OpenAndBegin(std::span<const ConnectionTraffic> all, uint32_t op_tag) {
  std::vector<int> sends, recvs;
  for (const ConnectionTraffic& one : all) (one.is_send ? sends : recvs).push_back(one.peer);
  // All connections are made before data moves: nobody moves the data of a rank that waits for a
  // connection.
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
