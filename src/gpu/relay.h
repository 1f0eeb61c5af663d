#pragma once

// The operations of GPUs that do not reach one another's memory: on several hosts, or where neither
// peer access nor shared memory may be used. The data passes through pinned memory of each rank's
// host, and communicators of the hosts, of the same ranks, do the work (with the executor, over
// shared memory and sockets).
//
//   GPU      │ copy chunk 0 in │ chunk 1 in │ chunk 2 in   chunk 0 out │ …   (a kernel of few blocks)
//   thread   │                 │ executor: chunk 0 │ executor: chunk 1 │ …   (one for each channel)
//
// Relay channels are these communicators, each with a thread of its own, because one thread does
// not fill a fast network. They take the chunks of an operation in turn and know nothing of one
// another.
//
// Launch queues the kernel and returns. The kernel says which operation has its turn
// (relay_args.h), so a thread works in the order in which the GPU gets to operations, also when
// graphs are replayed; operations of a graph are kept for that until the graph goes. The thread
// uses no CUDA, which could wait for the very kernel that waits for it. It sleeps unless an
// operation has been launched that has not ended; a graph wakes it by a host function before each
// kernel.
//
// Since the executor runs the operations, it finds out here what it finds out on hosts: other
// calls, counts or types on other ranks, and lost ranks.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/wait.h"
#include "gpu/device_operations.h"
#include "gpu/relay_plan.h"
#include "operations/executor.h"
#include "watch/watch.h"

namespace tutti {

// A communicator of the hosts over which a relay moves data. It has the same ranks as the relay's.
class RelayChannel {
 public:
  virtual ~RelayChannel() = default;
  // Only the channel's thread uses the executor.
  virtual Executor& executor() = 0;
  // Ends all waits of the executor. Any thread.
  virtual void Stop() = 0;
  virtual const Operations& operations() const = 0;
};

class GpuRelay final : public DeviceOperations {
 public:
  // Makes the operations from at least one and at most cuda::kMostRelayChannels channels.
  static Result<std::unique_ptr<GpuRelay>> Create(
      const GpuPeers& peers, Watch& watch, const Settings& settings,
      std::vector<std::unique_ptr<RelayChannel>> channels);
  ~GpuRelay() override;

  void Abort() override;
  double PredictUs(const Task& task) const override;
  std::string Describe(const Task& task) const override;
  std::string_view TransportTo(int peer) const override { return hosts().TransportTo(peer); }
  const MachineMap& machines() const override { return hosts().machines(); }
  uint64_t MemoryBytes() const override { return 0; }

 private:
  struct Operation {
    RelayPlan plan;
    size_t first_channel = 0;  // The first channel that has chunks.
    bool in_first = false;  // The kernel's arguments hold the pieces of that channel's first chunk.
    bool kept = false;      // The operation belongs to a graph, which drops it.
    // How many channels have chunks of it to do. The last one drops the operation. Guarded by the
    // table's mutex.
    size_t channels_left = 0;
  };
  // The operations by number. Graphs may outlive the communicator, and therefore share this.
  struct OperationTable {
    Mutex mutex;
    std::map<uint64_t, std::shared_ptr<Operation>> operations TUTTI_GUARDED_BY(mutex);
  };
  // Wakes a channel's thread. A graph may ring it after the GpuRelay is gone.
  struct Doorbell {
    std::atomic<uint64_t> launched = 0;
    SleepFlag sleepers = 0;
    void Ring();
  };
  // What a graph keeps of an operation.
  struct InGraph {
    std::shared_ptr<OperationTable> table;
    uint64_t number = 0;
    std::vector<std::shared_ptr<Doorbell>> doorbells;
    // False where a capture holds the function that rings without the kernel that was to follow it.
    std::atomic<bool> has_kernel = false;
    ~InGraph();
  };

  struct Channel {
    size_t number = 0;
    std::unique_ptr<RelayChannel> hosts = nullptr;
    std::shared_ptr<Doorbell> doorbell = std::make_shared<Doorbell>();
    uint64_t served = 0;  // The number of operations that the channel has finished.
    // The value of each box's `done` when all commands are carried out.
    uint64_t expected[cuda::kRelayBlocks] = {};
    std::thread thread = {};
  };

  GpuRelay(const GpuPeers& peers, Watch& watch) : DeviceOperations(peers, watch) {}
  const Operations& hosts() const { return channels_[0].hosts->operations(); }
  Status LaunchTasks(std::span<const IssuedTask> tasks) override TUTTI_REQUIRES(launch_mutex_);
  Status LaunchTask(const IssuedTask& issued) TUTTI_REQUIRES(launch_mutex_);
  void StopThreads() override;
  std::string DescribePath() const override;
  uint64_t PinnedBytes() const override;
  Status Queue(RelayPlan plan, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  Status Capture(const std::shared_ptr<InGraph>& in_graph, cuda::Stream stream);
  Status LaunchKernel(const Operation& operation, cuda::RelayArgs& args, cuda::Stream stream);
  void Drop(uint64_t number);
  cuda::RelayBox& box(const Channel& channel, size_t block) const {
    return boxes_[channel.number * cuda::kRelayBlocks + block];
  }
  std::byte* slot(size_t channel, size_t block) const;
  RelayPlan::Place place() const;

  // These run on a channel's thread.
  void Run(Channel& channel);
  bool AwaitOperation(Channel& channel);
  bool AwaitBlock(const Channel& channel, size_t block);
  Status Carry(Channel& channel, const Operation& operation);
  Status CarryChunks(Channel& channel, const Operation& operation);
  bool Command(Channel& channel, size_t block, std::span<const cuda::CopyPiece> pieces, bool last);

  cuda::PinnedBlock pinned_;
  // In pinned_: kRelayBlocks boxes of each channel. The slots follow them.
  cuda::RelayBox* boxes_ = nullptr;
  std::vector<Channel> channels_;
  std::atomic<bool> stopping_ = false;

  const std::shared_ptr<OperationTable> table_ = std::make_shared<OperationTable>();
  uint64_t next_operation_ TUTTI_GUARDED_BY(launch_mutex_) = 1;
};

}  // namespace tutti
