#pragma once

// Device-initiated networking (GIN) by proxy: carries out operations that kernels post as
// descriptors (nccl_device/impl/gin_descriptor.h).
//
//   kernel of this rank              this module                              rank that is put to
//   descriptor into a queue,  ────▶  queues.h takes descriptors in order
//   doorbell                         executor.h ── copy and atomic add ─────▶ rank of the LSA team
//                                               ── one-sided operation ─────▶ any other rank
//   consumer index, counter   ◀────  done, in order
//
// Signals, counters and shadows lie in the resource window of the device communicator, and other
// ranks reach the signals like any window. The proxy checks all operands of a descriptor first:
// windows by their records, places by the sizes that all ranks have told, signals and counters by
// the plan. A failure stops the communicator with a sentence, and the abort flag of the
// communicator ends the kernels' waits.
//
// No thread polls. The thread that posts also carries out its operations, unless another thread is
// at the context already and does the work. An operation toward a rank of the LSA team is a copy
// and an atomic add, and goes through the queues only if a program of NVIDIA's headers has posted
// it. Waiting threads drive the operations under way and take incoming data from the network, and
// no other thread need be woken. While operations are under way and no kernel waits, the progress
// thread of the process looks after them from time to time.
//
// A wait does not know the rank that will end it. The stop of the communicator ends all waits: when
// a rank is lost, when the connection to a live rank breaks, or when all other ranks have ended
// their communicators.
//
// A communicator owns one GinProxy for each of its device communicators with a GIN connection.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "devcomm/gin_plan.h"
#include "gin/executor.h"
#include "gin/host_calls.h"
#include "gin/queues.h"
#include "sys/event_loop.h"
#include "watch/watch.h"
#include "window/remote_windows.h"
#include "window/symmetric_memory.h"

namespace tutti {

class GinProxy final : public GinBackend, public GinHostCalls {
 public:
  struct Parts {
    int rank = 0;
    GinPlan plan;
    std::shared_ptr<const Window> resource;      // signals and counters, where the plan says
    const SymmetricMemory* symmetric = nullptr;  // All pointers here outlive the proxy.
    RemoteWindows* remote = nullptr;             // null where the LSA team is all ranks
    EventLoop* loop = nullptr;                   // run by the progress thread
    Watch* watch = nullptr;
  };
  static Result<std::unique_ptr<GinProxy>> Create(Parts parts);
  ~GinProxy() override;
  GinProxy(const GinProxy&) = delete;
  GinProxy& operator=(const GinProxy&) = delete;

  void* handle() const override;
  GinProxy* AsProxy() override { return this; }

  // For kernels of hosts; any thread. The other functions ignore contexts and queues that Do
  // refuses.
  //
  // Carries out an operation toward a rank of the LSA team at once, and returns true. Returns false
  // where the operation has to be posted. An operation with invalid operands stops the
  // communicator, and counts as carried out. `words` are the words of a descriptor.
  bool Do(uint32_t context, uint32_t queue, const uint64_t* words);
  // Stops the communicator, because the calling kernel was compiled with headers that know one word
  // of a signal (device::GinHead).
  bool RefuseOldKernel() override;
  void NoteMissing(bool is_signal, uint32_t number) override;
  // Carries out posted operations of a queue, as far as no other rank is needed.
  void RingDoorbell(uint32_t context, uint32_t queue);
  // Also takes incoming puts of other ranks.
  void Wait(uint32_t context, uint32_t round) override;

  Status Finish(Deadline deadline) override;

 private:
  struct Remote;

  explicit GinProxy(Parts parts);
  Status MakeContexts();
  void Drive(uint32_t context);
  bool AttendToSome();
  void OnBroken(Remote& remote, Status failure);
  void Refuse(GinQueues::Driven driven);
  void Conclude(const GinQueues::Driven& driven);
  void ServeLater() TUTTI_EXCLUDES(timer_mutex_);
  void StopLater(Status failure) TUTTI_EXCLUDES(timer_mutex_);
  void Serve() TUTTI_EXCLUDES(timer_mutex_);
  bool Busy() const;

  const Parts parts_;
  GinExecutor executor_;
  std::unique_ptr<GinMemory> descriptors_;
  std::vector<std::unique_ptr<GinQueues>> contexts_;
  std::unique_ptr<GinHandle<device::GinContext>> handle_;
  // A rank outside the LSA team.
  struct Remote {
    int rank = 0;
    std::atomic<bool> left = false;  // The rank has ended its communicator, and sends nothing more.
  };
  std::deque<Remote> remotes_;               // the ranks at the ends of queues
  std::vector<RmaConnection*> connections_;  // the connections to remotes_, in the same order
  std::atomic<uint32_t> next_attended_ =
      0;  // for more connections than a thread attends to at once
  Mutex timer_mutex_;
  EventLoop::TimerId timer_ TUTTI_GUARDED_BY(timer_mutex_) = 0;
  bool ended_ TUTTI_GUARDED_BY(timer_mutex_) = false;
};

}  // namespace tutti
