#pragma once

// GpuChannels has the operations of GPUs on several hosts: rings over channels, with a transport
// for each pair of ranks (channel_connections.h). A collective goes round a ring (kernels/ring.h),
// down the ring as a chain, along trees (channel_trees.h), or by two levels where all hosts have
// the same number of ranks (kernels/two_level.h). Short collectives among few ranks, sends and
// receives, and collectives that consist of messages go from pair to pair.
//
//   caller     launches the kernel │ posts the traffic of each connection of the network
//   kernel                         │ fills and reads FIFOs, waits for counters only
//   proxy                          │ moves the data in FIFOs of the network (proxy/kernel_proxy.h)
//
// A running kernel makes no decision. The host counts the traffic of a kernel beforehand by running
// the algorithm over primitives that only count (channel_rings.h). A graph posts the traffic
// again before each run of its kernel, by a host function. Kernels keep their counts of passed
// chunks in memory of the GPU, and therefore can be replayed.
//
// Only Create waits for other ranks.

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/channel_connections.h"
#include "gpu/device_operations.h"
#include "gpu/flow_plan.h"
#include "kernels/counting.h"
#include "proxy/kernel_proxy.h"
#include "transport/net/net.h"

namespace tutti {

// Returns the traffic of a one-shot reduction between this rank and every peer.
kernels::MeshCounting CountOneShot(const Plan& plan, Collective collective, size_t count, int root,
                                   int rank, int num_ranks);

class GpuChannels final : public DeviceOperations {
 public:
  // Makes the connectors of each KernelProxy. The watcher ends the waits of the connectors. A
  // connector uses the given device of the network, or the rank's own device (-1).
  using MakeConnector = std::function<std::unique_ptr<NetConnector>(WaitWatcher&, int device)>;
  struct Options {
    int threads = 1;               // The number of KernelProxies, where data passes a network.
    NetworkNames network;          // The network; empty where no data passes a network.
    MakeConnector make_connector;  // Null where no data passes a network.
    // See ChannelReach. All ranks give the same value.
    double network_bytes_per_us = 0;
  };
  // Makes the operations. All ranks call Create alike. `connections` come from
  // ChannelConnections::Create.
  static Result<std::unique_ptr<GpuChannels>> Create(
      const GpuPeers& peers, Watch& watch, const Settings& settings,
      std::unique_ptr<ChannelConnections> connections, const Options& options);
  ~GpuChannels() override;

  void Abort() override;
  Status CheckWishes(const CollectiveTask& task) const override;
  std::string_view TransportTo(int peer) const override;
  bool MapsPeerMemory() const override { return connections_->place() == WindowPlace::kPeerMemory; }
  uint64_t MemoryBytes() const override { return connections_->DeviceBytes() + PackBytes(); }
  // Lends a registered buffer to the network.
  const void* Register(ReachedWindow window) override;
  Status Forget(const void* token) override;
  uint64_t SuspendableBytes() const override { return 0; }
  uint64_t PersistentBytes() const override { return MemoryBytes() + PinnedBytes(); }
  Status CheckNothingWaits() override { return Status::Ok(); }

 private:
  // Counts the data that a kernel passes through one connection.
  struct Passes {
    uint64_t chunks = 0;
    uint64_t bytes = 0;
  };
  // Counts the data that a kernel passes through a lane of another rank. The other rank sends the
  // data.
  struct LanePost {
    std::shared_ptr<const PxnInbox> inbox;
    size_t lane = 0;
    Passes passes;
  };
  // Holds the work that a kernel gives to this rank's KernelProxies and to lanes of other ranks.
  struct Posts {
    Posts(size_t proxies, uint32_t op_tag) : own(proxies, {op_tag, {}}) {}
    std::vector<KernelOps> own;
    std::vector<LanePost> lanes;
  };
  // Holds the work to be posted at each run of a kernel. A graph keeps the object.
  struct Kernel {
    std::vector<std::pair<std::shared_ptr<KernelProxy>, std::shared_ptr<const KernelOps>>> own;
    std::vector<LanePost> lanes;
    uint32_t op_tag = 0;
    // For graphs: false where a capture holds the function that posts but not the kernel meant to
    // follow the function.
    std::atomic<bool> has_kernel = false;
  };
  // Ends waits for connections of other ranks when the communicator stops, and for no other reason.
  // Kernels notice when other ranks have called something else.
  class StopWatcher final : public WaitWatcher {
   public:
    explicit StopWatcher(Watch& watch) : watch_(watch) {}
    Status OnLongWait(std::span<const int>, LongWait&) override {
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
  PlanContext ContextOfPlans() const;
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
  // Makes the FIFOs that a message may use.
  Status PinFifos(const MessageTask& message) const;

  Status LaunchCollective(const CollectiveTask& task, cuda::Stream stream) override
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchPlanned(const CollectiveTask& task, const Plan& plan, cuda::Stream stream) override
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchRing(const CollectiveTask& task, const Plan& plan, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchTree(const CollectiveTask& task, const Plan& plan, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // `messages` may contain messages of the rank to itself. The last kernel records `begun`
  // (cuda::LaunchShape).
  Status LaunchMessages(std::span<const MessageTask> messages, const CallWishes& wishes,
                        cuda::Stream stream, cuda::Event begun) override
      TUTTI_REQUIRES(launch_mutex_);
  std::byte* scratch() const override { return connections_->scratch(); }
  std::string DescribePlan(const CollectiveTask& task, const Plan& plan) const override;
  Status LaunchFlows(std::span<const FlowKernel> kernels, cuda::Stream stream, cuda::Event begun)
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchFlowKernel(const FlowKernel& kernel, cuda::Stream stream, cuda::Event begun)
      TUTTI_REQUIRES(launch_mutex_);
  // Launches a kernel by launch() and posts the kernel's work to the proxies, for every run of the
  // kernel.
  template <class LaunchKernel>
  Status Queue(Posts posts, cuda::Stream stream, LaunchKernel launch) TUTTI_REQUIRES(launch_mutex_);
  // Add a host function to the stream that posts the kernel's network traffic ahead of the next
  // kernel: in each run of the graph that is being captured (PostInGraph), or once (PostInStream).
  Status PostInGraph(const std::shared_ptr<Kernel>& kernel, cuda::Stream stream);
  Status PostInStream(const std::shared_ptr<Kernel>& kernel, cuda::Stream stream);
  static void PostAll(const Kernel& kernel);

  cuda::ChannelCommon Common(uint32_t op_tag) const;
  ChannelTraffic TrafficOf(const CollectiveTask& task, const Plan& plan, uint32_t channel) const;
  // Returns a line for each peer with the traffic of a plan.
  std::string DescribeTraffic(const CollectiveTask& task, const Plan& plan) const;
  // Returns the set of an operation's buffers that are lent to the rank's NIC, made of
  // cuda::kLendsInput and cuda::kLendsOutput.
  uint32_t LentOf(const CollectiveTask& task, const cuda::ChannelArgs& args) const;
  // Puts the connections of a channel into the arguments of its kernel, and the traffic of network
  // connections into `posts`. `lent` is the result of LentOf.
  Status Connect(const CollectiveTask& task, const Plan& plan, uint32_t channel, uint32_t lent,
                 cuda::ChannelArgs& args, Posts& posts);
  // Puts the connections of a node of a tree into its arguments, and their traffic into `posts`.
  Status ConnectNode(const TreeNode& node, const kernels::Traffic& passes, size_t elem_bytes,
                     cuda::TreeNodeArgs& args, Posts& posts);
  // Puts the connections to and from every rank but this rank into `args`, and their traffic into
  // `posts`.
  Status ConnectPairs(const CollectiveTask& task, const Plan& plan, cuda::ChannelArgs& args,
                      Posts& posts);
  // Returns the place for the plan of messages of a call with these wishes.
  FlowPlace PlaceFor(const CallWishes& wishes) const;
  // Returns this rank's end of a connection for a kernel, and adds the traffic of the connection to
  // the post of its KernelProxy.
  Result<cuda::DeviceFifo> JoinFifo(const ChannelConnections::Direction& direction,
                                    const Passes& passes, Posts& posts);

  int rank() const { return peers().bootstrap->rank(); }
  int num_ranks() const { return peers().bootstrap->num_ranks(); }

  StopWatcher stop_watcher_;
  NetworkNames network_;
  std::unique_ptr<ChannelConnections> connections_;
  std::vector<Proxied> proxied_;
  std::vector<Proxied> lanes_;  // The proxies that send for other ranks of the host.
  // True once a graph has been captured; a graph posts its traffic when it runs. From then on all
  // launches beside graphs post by a host function in the stream, and all traffic is posted in the
  // order of the kernels. Traffic posted at the launch could overtake a graph whose turn has not
  // come. A proxy thread would then wait for connections that other ranks make only after the
  // graph.
  bool posts_in_stream_ TUTTI_GUARDED_BY(launch_mutex_) = false;
};

}  // namespace tutti
