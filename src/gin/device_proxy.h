#pragma once

// Device-initiated networking by proxy, for kernels of GPUs.
//
//   kernel                      thread of this object                       rank that is put to
//   descriptor into a queue ──▶ takes it, checks it (operands.h)
//                                 ── copy by the GPU's copy engines ──────▶ GPU of the LSA team
//                                    then an atomic add ───────────────────▶ its signal
//                                 ── slots and the network (mail.h) ──────▶ any other GPU, whose
//                                                                           proxy adds to the signal
//   consumer index, counter ◀── done, in order
//
// A signal is added to when the bytes of its put, and of all earlier puts of its queue, lie in the
// memory of the target GPU: a kernel that has loaded the signal with acquire order sees the bytes.
// Signals and counters lie in pinned memory of the host, where processors add to them atomically,
// whichever process of the host they run (device_memory.h). Signals in windows lie in a GPU, where
// only copies reach: the proxy reads, adds to and writes them under a lock of the rank that owns
// the window.
//
// A GPU cannot wake a thread. The thread therefore looks for descriptors as long as the object
// lives: all the time while an operation is or recently was under way, then every 20 us, and after
// an idle second every millisecond.
//
// Threads: any thread may call the public functions, one at a time.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/memory.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/wait.h"
#include "devcomm/gin_plan.h"
#include "gin/backend.h"
#include "gin/copy_line.h"
#include "gin/device_memory.h"
#include "gin/mail.h"
#include "gin/operands.h"
#include "watch/watch.h"
#include "window/remote_windows.h"
#include "window/symmetric_memory.h"

namespace tutti {

class GinDeviceProxy final : public GinBackend {
 public:
  struct Parts {
    int rank = 0;
    GinPlan plan;
    const cuda::Device* device = nullptr;        // All pointers here outlive the proxy.
    const SymmetricMemory* symmetric = nullptr;  // windows in memory of GPUs
    // Memory of the host with GinHostLayout, zeroed; and a window with a word of each rank, the
    // lock of the signals in its windows.
    std::shared_ptr<const Window> host;
    std::shared_ptr<const Window> locks;
    RemoteWindows* remote = nullptr;  // null where the LSA team is all ranks
    Watch* watch = nullptr;
  };
  // Reserves everything that the proxy needs of the GPU, because CUDA may wait for kernels when it
  // reserves later.
  static Result<std::unique_ptr<GinDeviceProxy>> Create(Parts parts);
  // Begins to look for descriptors.
  Status Start();
  ~GinDeviceProxy() override;

  void* handle() const override { return block_.data() + block_layout_.contexts_at; }
  const GinPlan& plan() const { return parts_.plan; }
  const cuda::Device& device() const { return *parts_.device; }
  // Return the layout of the window of the host, and this rank's part of the window as its GPU sees
  // it.
  const GinHostLayout& layout() const { return layout_; }
  const Window& host() const { return *parts_.host; }
  std::byte* pinned() const { return pinned_.data(); }
  // Ends the thread, too.
  Status Finish(Deadline deadline) override;

  // Ends the thread if it has not ended yet, and gives up operations that are not done. Copies that
  // have begun are done at the return, because they reach into windows that the caller may give
  // back next.
  void EndThread();
  // Returns whether all other ranks have stopped writing into the window of the host, and the
  // network has stopped reading it. REQUIRES: the thread has ended.
  bool IsForgotten();

 private:
  // An operation that the thread has taken and not completed.
  struct Flight {
    uint64_t copied_at = 0;     // a number of local_, where its peer is in the LSA team
    bool done = true;           // false while a mail has the operation
    std::byte* word = nullptr;  // the signal, where its peer is in the LSA team
    bool word_is_on_gpu = false;
    uint64_t added = 0;
    std::optional<uint32_t> counter;
  };
  struct Queue {
    uint32_t context = 0;
    uint32_t number = 0;  // in the context
    uint32_t taken = 0;
    uint32_t done = 0;
    int peer = 0;
    GinMail* mail = nullptr;  // null: the peer is in the LSA team
    std::deque<Flight> flights;
  };
  using Reached = GinOperands::Reached;
  enum class Ending : uint8_t { kNo, kWhenIdle, kNow };

  GinDeviceProxy(Parts parts, GinPlan host_plan);
  Status Prepare();
  Status WriteContexts(const cuda::OwnStream& stream);
  Status WarmUp();
  void MakeMails();
  std::byte* PinnedAt(size_t at) const { return pinned_.data() + at; }
  // Returns the memory through which copies within the GPU pass.
  std::span<std::byte> Stage() const {
    return {parts_.host->own.data() + layout_.stage_at, GinHostLayout::kStageBytes};
  }

  void Run();
  Status Serve();
  Result<bool> Round(bool attend);
  Result<bool> MoveMails(bool attend);
  Status OnFailure(GinMail& mail, Status failure);
  Result<bool> Take(Queue& queue);
  Status Begin(Queue& queue, const GinOperands::Position& at,
               const device::GinOperation& operation);
  Status BeginInTeam(const GinOperands::Position& at, const device::GinOperation& operation,
                     const Reached& reached, int peer, Flight& flight);
  void BeginByMail(const device::GinOperation& operation, const Reached& reached, GinMail& mail,
                   Flight& flight);
  Result<bool> Complete(Queue& queue);
  Status AddToWord(std::byte* word, uint64_t added, int owner);
  bool Idle() const;
  Result<bool> CloseMails();
  void Fail(Status failure);
  Ending ending() const { return ending_.load(std::memory_order_acquire); }

  const Parts parts_;
  const GinHostLayout layout_;
  const GinBlockLayout block_layout_;
  const GinOperands operands_;
  cuda::PinnedRange pinned_;  // parts_.host
  cuda::MappedMemory block_;
  std::optional<GinCopyLine> local_, out_, in_;  // between GPUs, and to and from slots
  std::optional<cuda::OwnStream> word_stream_;
  std::vector<Queue> queues_;
  // Only the thread uses the members below while it runs.
  std::deque<GinMail> mails_;

  std::atomic<Ending> ending_ = Ending::kNo;
  Mutex mutex_;
  CondVar changed_;
  bool ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tutti
