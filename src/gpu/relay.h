#pragma once

// GPUs that do not reach one another's memory: on several hosts, or where neither peer access nor
// shared memory may be used. The data passes through pinned memory of each rank's host, and the
// host's own communicator of the same ranks (the executor: shared memory, sockets) does the work.
//
//   GPU      │ copy chunk 0 in │ chunk 1 in │ chunk 2 in   chunk 0 out │ …   (a kernel of few blocks)
//   thread   │                 │ executor: chunk 0 │ executor: chunk 1 │ …   (one for each lane)
//
// Lanes are communicators of the host, all of the same ranks, each with its thread: one thread does
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
// Since the executor runs the operations, all that it finds out on hosts (other calls, counts or
// types on other ranks, lost ranks) it finds out here.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "gpu/gpu_operations.h"
#include "gpu/queue.h"
#include "gpu/relay_plan.h"
#include "operations/executor.h"
#include "watch/watch.h"

namespace tutti {

class GpuRelay final : public GpuOperations {
 public:
  struct Parts {
    const cuda::Device* device = nullptr;
    int rank = 0;
    int num_ranks = 1;
    std::vector<Executor*> executors =
        {};  // of the lanes, whose threads alone use them from now on
    Watch* watch = nullptr;
  };
  static Result<std::unique_ptr<GpuRelay>> Create(const Parts& parts, const Settings& settings);
  ~GpuRelay() override;

  Status Launch(std::span<const DeviceTask> tasks, bool* begun) override;
  void Abort() override { queue_->Abort(); }
  Status Drain() override { return queue_->Drain(); }
  QueueState State() const override { return queue_->State(); }
  void StopThreads() override;
  uint64_t DeviceBytes() const override { return 0; }
  uint64_t PinnedBytes() const override;
  double PredictUs(const Task& task) const override;
  std::string DescribeTransport() const override;
  std::string Describe(const Task& task) const override;

 private:
  struct Operation {
    RelayPlan plan;
    size_t first_lane = 0;  // the first with chunks
    bool in_first = false;  // the kernel's arguments hold the pieces of that lane's first chunk
    bool kept = false;      // of a graph, which drops it
    // That have chunks of it to do; the last one drops it. Guarded by the book's mutex.
    size_t lanes_left = 0;
  };
  // Operations by number. Graphs may outlive the communicator: so this is theirs too.
  struct Book {
    std::mutex mutex;
    std::map<uint64_t, std::shared_ptr<Operation>> operations;
  };
  // How a lane's thread is woken, by a graph perhaps after this object is gone.
  struct Bell {
    std::atomic<uint64_t> launched = 0;
    SleepFlag sleepers = 0;
    void Ring();
  };
  // What a graph keeps of an operation.
  struct InGraph {
    std::shared_ptr<Book> book;
    uint64_t number = 0;
    std::vector<std::shared_ptr<Bell>> bells;
    // A capture may hold the function that rings without the kernel that was to follow it.
    std::atomic<bool> has_kernel = false;
    ~InGraph();
  };

  struct Lane {
    size_t number = 0;
    Executor* executor = nullptr;
    std::shared_ptr<Bell> bell = std::make_shared<Bell>();
    uint64_t served = 0;  // operations
    // Of a box's `done`, when all commands are carried out.
    uint64_t expected[cuda::kRelayBlocks] = {};
    std::thread thread = {};
  };

  GpuRelay(const Parts& parts) : parts_(parts) {}
  Status LaunchTasks(std::span<const DeviceTask> tasks);
  void NoteMessages(std::span<const DeviceTask> tasks);
  Status Queue(RelayPlan plan, cuda::Stream stream);
  Status Capture(const std::shared_ptr<InGraph>& in_graph, cuda::Stream stream);
  Status LaunchKernel(const Operation& operation, cuda::RelayArgs& args, cuda::Stream stream);
  void Drop(uint64_t number);
  cuda::RelayBox& box(const Lane& lane, size_t block) const {
    return boxes_[lane.number * cuda::kRelayBlocks + block];
  }
  std::byte* slot(size_t lane, size_t block) const;
  RelayPlan::Place place() const;

  // On a lane's thread.
  void Run(Lane& lane);
  bool AwaitOperation(Lane& lane);
  bool AwaitBlock(const Lane& lane, size_t block);
  Status Carry(Lane& lane, const Operation& operation);
  Status CarryChunks(Lane& lane, const Operation& operation);
  bool Command(Lane& lane, size_t block, std::span<const cuda::CopyPiece> pieces, bool last);

  const Parts parts_;
  std::unique_ptr<GpuQueue> queue_;
  cuda::PinnedBlock pinned_;
  cuda::RelayBox* boxes_ = nullptr;  // in it, kRelayBlocks of each lane; then the slots
  std::vector<Lane> lanes_;
  std::atomic<bool> stopping_ = false;

  const std::shared_ptr<Book> book_ = std::make_shared<Book>();
  std::mutex launch_mutex_;  // guards the queue, the order of launches, and what follows
  uint64_t next_operation_ = 1;
};

}  // namespace tutti
