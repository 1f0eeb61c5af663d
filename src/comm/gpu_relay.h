#pragma once

// GPUs that do not reach one another's memory: on several hosts, or where neither peer access nor
// shared memory may be used. The data passes through pinned memory of each rank's host, and the
// host's own communicator of the same ranks (the executor: shared memory, sockets) does the work.
//
//   GPU      │ copy chunk 0 in │ chunk 1 in │ chunk 2 in   chunk 0 out │ …   (a kernel of few blocks)
//   thread   │                 │ executor: chunk 0 │ executor: chunk 1 │ …   (one for each communicator)
//
// Launch queues the kernel and returns. The kernel says which operation has its turn (relay_args.h),
// so the thread works in the order in which the GPU gets to operations, also when graphs are replayed;
// operations of a graph are kept for that until the communicator goes. The thread uses no CUDA, which
// could wait for the very kernel that waits for it. It sleeps unless an operation has been launched
// that has not ended; a graph wakes it by a host function before each kernel.
//
// Since the executor runs the operations, all that it finds out on hosts (other calls, counts or types
// on other ranks, lost ranks) it finds out here.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "base/wait.h"
#include "comm/executor.h"
#include "comm/gpu_operations.h"
#include "comm/gpu_queue.h"
#include "comm/gpu_relay_plan.h"
#include "comm/watch.h"

namespace tutti {

class GpuRelay final : public GpuOperations {
 public:
  struct Parts {
    const cuda::Device* device = nullptr;
    int rank = 0;
    int num_ranks = 1;
    bool check_pointers = false;
    Executor* executor = nullptr;  // the relay's thread alone uses it from now on
    Watch* watch = nullptr;
  };
  static Result<std::unique_ptr<GpuRelay>> Create(const Parts& parts);
  ~GpuRelay() override;

  Status Launch(std::span<const DeviceTask> tasks) override;
  void Abort() override { queue_->Abort(); }
  Status Drain() override { return queue_->Drain(); }
  void StopThreads() override;
  uint64_t DeviceBytes() const override { return 0; }
  uint64_t PinnedBytes() const override;
  std::string DescribeTransport() const override;
  std::string Describe(const Task& task) const override;

 private:
  struct Operation {
    RelayPlan plan;
    uint32_t blocks = 1;
    bool in_first = false;  // the kernel's arguments hold the pieces of the first chunk
    bool kept = false;      // of a graph
  };
  // How the thread is woken, by a graph perhaps after this object is gone.
  struct Bell {
    std::atomic<uint64_t> launched = 0;
    SleepFlag sleepers = 0;
    void Ring();
  };

  GpuRelay(const Parts& parts) : parts_(parts) {}
  Status Queue(RelayPlan plan, cuda::Stream stream);
  std::byte* slot(uint32_t block) const;

  // On the thread.
  void Run();
  bool AwaitOperation();
  bool AwaitBlock(uint32_t block);
  Status Carry(const Operation& operation);
  Status CarryChunks(const Operation& operation);
  bool Command(uint32_t block, std::span<const cuda::RelayPiece> pieces, bool last);
  Status Execute(std::span<const Task> tasks);

  const Parts parts_;
  std::unique_ptr<GpuQueue> queue_;
  cuda::RelayBox* boxes_ = nullptr;  // pinned, kRelayBlocks of them; then the slots
  Bell* bell_ = nullptr;
  std::atomic<bool> stopping_ = false;
  uint64_t served_ = 0;  // by the thread
  uint64_t expected_[cuda::kRelayBlocks] =
      {};  // of a box's `done`, when all commands are carried out

  std::mutex launch_mutex_;  // guards the queue and the order of launches
  std::mutex mutex_;         // guards what follows
  std::map<uint64_t, std::unique_ptr<Operation>> operations_;
  uint64_t next_operation_ = 1;

  std::thread thread_;
};

}  // namespace tutti
