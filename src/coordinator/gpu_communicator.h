#pragma once

// A communicator of another library, NVIDIA's before all, that joins the GPUs of a process set.
//
// Tutti's own communicators notice a lost rank by themselves and end waits for the rank. Other
// libraries need not, and a kernel that waits for a dead peer waits for ever. Therefore nothing
// here blocks in the library: the library is told not to block, and a call in progress is asked
// about until the call is done or given up, or the time is over. Break gives up: a thread of its
// own aborts the communicator, which ends the kernels too. An abort takes a while and must not run
// beside a call.
//
//   Join, calls ──▶ in the library ──▶ idle ──▶ destructor: finalize, destroy
//                        │              │
//                        └── Break ─────┴─────▶ aborted: calls fail, the destructor waits for it
//
// Threads: Break from any thread; all else from one thread at a time.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/gpu.h"
#include "coordinator/library_operations.h"
#include "coordinator/nccl_library.h"

namespace tutti::coordinator {

class GpuCommunicator final : public LibraryComm {
 public:
  struct Options {
    std::shared_ptr<const NcclLibrary> library;
    std::shared_ptr<Gpu> gpu;
    // The longest time for making the communicator, and for a call in progress, which may have to
    // wait for ranks whose GPUs have much to do. 0 means for ever.
    double init_timeout_s = 300;
    double timeout_s = 1800;
    // Returns an error when the ranks are lost to one another, or, during Join, when a rank cannot
    // take part: waits then give up.
    std::function<Status(bool joining)> healthy;
  };
  explicit GpuCommunicator(Options options);
  ~GpuCommunicator() override;
  GpuCommunicator(const GpuCommunicator&) = delete;
  GpuCommunicator& operator=(const GpuCommunicator&) = delete;

  // Makes the communicator, with all ranks of the group. The first of all calls, and after a
  // failure the last but for Break.
  Status Join(const OperationsGroup& group);
  // Ends every wait on the communicator, now and later, here and on the GPU. Returns at once.
  void Break();

  const NcclFunctions& functions() const override { return f_; }
  ncclComm_t get() const override { return comm_; }
  Status Begin() override;
  Status End(ncclResult_t result) override;

 private:
  bool broken();
  Status Enter();
  void Leave();
  Status Settle(ncclResult_t& result);
  Status Sentence(ncclResult_t result) const;
  void Abort();
  void Finish();

  const Options options_;
  const NcclFunctions& f_;
  std::unique_ptr<GpuScope> current_;  // during a call
  Mutex mutex_;
  CondVar left_;
  bool inside_ TUTTI_GUARDED_BY(mutex_) = false;  // a call is in the library
  bool broken_ TUTTI_GUARDED_BY(mutex_) = false;
  bool joined_ = false;
  bool failed_ = false;  // The communicator is of no use any more. Owned by the thread that calls.
  ncclComm_t comm_ = nullptr;  // written by calls, and by the abort once no call is in the library
  std::thread aborter_;
};

}  // namespace tutti::coordinator
