#pragma once

// The operations of GPUs on several hosts: rings over channels, with a transport for each pair of
// ranks (channel_connections.h). Collectives go round a ring (kernels/ring.h), down it as a chain,
// or by two levels where hosts have equally many ranks (kernels/two_level.h); short ones among few
// ranks, sends, receives and what is made of them go from pair to pair.
//
//   caller     launches the kernel │ posts what will pass each connection of the network
//   kernel                         │ fills and reads FIFOs, waits for counters only
//   proxy                          │ moves what is in FIFOs of the network (proxy/kernel_proxy.h)
//
// Nobody decides anything once a kernel runs: what will pass is counted beforehand by running the
// algorithm over primitives that only count (channel_traffic.h). A graph posts it again before
// each run of its kernel, by a host function. Kernels count what has passed in memory of the GPU,
// and so can be replayed.
//
// Only Create waits for other ranks.

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/channel_connections.h"
#include "gpu/channel_traffic.h"
#include "gpu/device_operations.h"
#include "gpu/flow_plan.h"
#include "proxy/kernel_proxy.h"
#include "transport/net/net.h"

namespace tutti {

class GpuChannels final : public DeviceOperations {
 public:
  // Makes the connectors of each KernelProxy, whose waits the watcher ends. Those connect with a
  // device of the network, or with the rank's own (-1).
  using MakeConnector = std::function<std::unique_ptr<NetConnector>(WaitWatcher&, int device)>;
  struct Options {
    int threads = 1;               // Where data passes a network, there are so many KernelProxies.
    std::string network;           // The network's name, such as "Socket".
    MakeConnector make_connector;  // Null where no data passes a network.
    // See ChannelReach. All ranks give the same.
    double network_bytes_per_us = 0;
  };
  // All ranks call it alike. `connections` come from ChannelConnections::Create.
  static Result<std::unique_ptr<GpuChannels>> Create(
      const GpuPeers& peers, Watch& watch, const Settings& settings,
      std::unique_ptr<ChannelConnections> connections, const Options& options);
  ~GpuChannels() override;

  void Abort() override;
  Status CheckWishes(const CollectiveTask& task) const override;
  std::string_view TransportTo(int peer) const override;
  const MachineMap& machines() const override { return machines_; }
  bool MapsPeerMemory() const override { return connections_->place() == WindowPlace::kPeerMemory; }
  uint64_t MemoryBytes() const override { return connections_->DeviceBytes() + PackBytes(); }
  // Lends the network a buffer that was registered.
  const void* Register(ReachedWindow window) override;
  Status Forget(const void* token) override;
  uint64_t SuspendableBytes() const override { return 0; }
  uint64_t PersistentBytes() const override { return MemoryBytes() + PinnedBytes(); }
  Status CheckNothingWaits() override { return Status::Ok(); }

 private:
  // Says what a kernel passes through one connection.
  struct Passes {
    uint64_t chunks = 0;
    uint64_t bytes = 0;
  };
  // Says what a kernel passes through a lane of another rank, which sends it.
  struct LanePost {
    std::shared_ptr<const PxnInbox> inbox;
    size_t lane = 0;
    Passes passes;
  };
  // Holds what the KernelProxies are told of a kernel: each of this rank's own, and those of ranks
  // that send for it.
  struct Posts {
    Posts(size_t proxies, uint32_t op_tag) : own(proxies, {op_tag, {}}) {}
    std::vector<KernelOps> own;
    std::vector<LanePost> lanes;
  };
  // Holds what is done for each run of a kernel. A graph keeps it.
  struct Kernel {
    std::vector<std::pair<std::shared_ptr<KernelProxy>, std::shared_ptr<const KernelOps>>> own;
    std::vector<LanePost> lanes;
    uint32_t op_tag = 0;
    // Of a graph. False where a capture holds the function that posts without the kernel that was
    // to follow it.
    std::atomic<bool> has_kernel = false;
  };
  // Ends the waits for other ranks' connections with the communicator, and for no other reason:
  // kernels show when others have called something else.
  class StopWatcher final : public WaitWatcher {
   public:
    explicit StopWatcher(Watch& watch) : watch_(watch) {}
    Status OnLongWait(std::span<const int>, int64_t) override {
      return watch_.stopped() ? watch_.StopReason() : Status::Ok();
    }
    Status StopReason() override { return watch_.StopReason(); }
    Status OnForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) override {
      return watch_.OnForeignChunk(peer, expected_tag, found_tag);
    }

   private:
    Watch& watch_;
  };
  struct Proxied {
    std::unique_ptr<ProxiedConnections> connections;
    std::shared_ptr<KernelProxy> proxy;
  };
  void AbortProxies(const Status& reason);
  Status StartProxies(const Settings& settings, const Options& options);

  GpuChannels(const GpuPeers& peers, Watch& watch)
      : DeviceOperations(peers, watch), stop_watcher_(watch) {}
  PlanContext MapMachines();
  Status PrepareTasks(std::span<const IssuedTask> tasks) const override;
  void StopThreads() override;
  std::string DescribePath() const override;
  uint64_t PinnedBytes() const override { return connections_->PinnedBytes(); }
  Status CheckCanGiveBack() const override {
    return InvalidUsage(
        "the memory of GPUs that do not all reach one another's windows cannot be given back yet");
  }
  Status GiveBackWindows() override { return CheckCanGiveBack(); }
  Result<Agreement> TakeBackWindows(const GpuPeers&) override { return CheckCanGiveBack(); }

  bool MayTakeTrees(const CollectiveTask& task) const;
  // Makes the FIFOs that a message may pass.
  Status PinFifos(const MessageTask& message) const;

  Status LaunchCollective(const CollectiveTask& task, cuda::Stream stream) override
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchPlanned(const CollectiveTask& task, const Plan& plan, cuda::Stream stream) override
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchRing(const CollectiveTask& task, const Plan& plan, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchTree(const CollectiveTask& task, const Plan& plan, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // Messages of the rank to itself are among `messages`. `begun`: see cuda::LaunchShape. The last
  // kernel records it.
  Status LaunchMessages(std::span<const MessageTask> messages, const CallWishes& wishes,
                        cuda::Stream stream, cuda::Event begun) override
      TUTTI_REQUIRES(launch_mutex_);
  std::byte* scratch() const override { return connections_->scratch(); }
  std::string DescribePlan(const CollectiveTask& task, const Plan& plan) const override;
  Status LaunchFlows(std::span<const FlowKernel> kernels, cuda::Stream stream, cuda::Event begun)
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchFlowKernel(const FlowKernel& kernel, cuda::Stream stream, cuda::Event begun)
      TUTTI_REQUIRES(launch_mutex_);
  // Launches a kernel by launch() and has the proxies do their part of it, whenever it runs.
  template <class LaunchKernel>
  Status Queue(Posts posts, cuda::Stream stream, LaunchKernel launch) TUTTI_REQUIRES(launch_mutex_);
  // Have a host function post what passes the network, before the kernel that comes next: each time
  // that the graph runs which is being captured, or once.
  Status PostInGraph(const std::shared_ptr<Kernel>& kernel, cuda::Stream stream);
  Status PostInStream(const std::shared_ptr<Kernel>& kernel, cuda::Stream stream);
  static void PostAll(const Kernel& kernel);

  cuda::ChannelCommon Common(uint32_t op_tag) const;
  // Returns the plan of a task whose collective has rows. Any thread.
  Plan PlanOf(const CollectiveTask& task) const {
    return MakePlan(planner_.context(), QuestionOf(planner_.context(), task));
  }
  ChannelTraffic TrafficOf(const CollectiveTask& task, const Plan& plan, uint32_t channel) const;
  // Returns whom the traffic of a channel goes to, one line each.
  std::string DescribeTraffic(const CollectiveTask& task, const Plan& plan) const;
  // Returns which of an operation's buffers are lent to the rank's NIC: cuda::kLendsInput and
  // cuda::kLendsOutput.
  uint32_t LentOf(const CollectiveTask& task, const cuda::ChannelArgs& args) const;
  // Puts the connections of a channel into the arguments of its kernel, and what passes those of
  // the network into `posts`. `lent` is what LentOf says.
  Status Connect(const CollectiveTask& task, const Plan& plan, uint32_t channel, uint32_t lent,
                 cuda::ChannelArgs& args, Posts& posts);
  // Does the same for a node of a tree.
  Status ConnectNode(const TreeNode& node, const kernels::Traffic& passes, size_t elem_bytes,
                     cuda::TreeNodeArgs& args, Posts& posts);
  // The same for connections to and from every other rank.
  Status ConnectPairs(const CollectiveTask& task, const Plan& plan, cuda::ChannelArgs& args,
                      Posts& posts);
  // Returns where messages are planned that a call with these wishes is made of.
  FlowPlace PlaceFor(const CallWishes& wishes) const;
  // Returns this rank's end of a connection for a kernel, and adds what passes it to what its
  // KernelProxy is told.
  Result<cuda::DeviceFifo> JoinFifo(const ChannelConnections::Direction& direction,
                                    const Passes& passes, Posts& posts);

  int rank() const { return peers().bootstrap->rank(); }
  int num_ranks() const { return peers().bootstrap->num_ranks(); }

  StopWatcher stop_watcher_;
  MachineMap machines_;
  std::string network_;
  std::unique_ptr<ChannelConnections> connections_;
  std::vector<Proxied> proxied_;
  std::vector<Proxied> lanes_;  // They send for other ranks of the host.
  // There has been a graph, which posts when it runs. Whatever is launched beside it does the same
  // since, so that all is posted in the order of the kernels: posted at once, it could overtake a
  // graph whose turn has not come, and a thread would wait for connections that other ranks make
  // only when that graph is done.
  bool posts_in_stream_ TUTTI_GUARDED_BY(launch_mutex_) = false;
};

}  // namespace tutti
