#pragma once

// Device-initiated networking (GIN) by proxy: what kernels post as descriptors
// (nccl_device/impl/gin_descriptor.h) is carried out here.
//
//   kernel of this rank              this module                              rank that is put to
//   descriptor into a queue,  ────▶  queues.h takes descriptors in order
//   doorbell                         executor.h ── copy and atomic add ─────▶ rank of the LSA team
//                                               ── one-sided operation ─────▶ any other rank
//   consumer index, counter   ◀────  done, in order
//
// Signals, counters and shadows lie in the resource window of the device communicator, so other
// ranks reach the signals like any window. Everything that a descriptor names is checked before it
// is carried out: windows by their records, places by the sizes that all ranks have told, signals
// and counters by the plan. What fails stops the communicator with a sentence, and its abort flag
// ends the kernels' waits.
//
// There is no thread that polls. The thread that posts carries out what it posted, unless another
// thread is at that context already, which then does it. What goes to a rank of the LSA team is a
// copy and an atomic add, and takes no way through the queues, unless a program of NVIDIA's headers
// has posted it. Threads that wait drive what is under way, and take from the network what has
// come, so that no other thread need be woken for it. As long as something is under way and no
// kernel waits, the progress thread of the process looks after it from time to time.
//
// A wait does not know which rank it waits for. It ends when the communicator stops: when a rank is
// lost, when the connection to one that lives breaks, or when all others have ended theirs.
//
// A device communicator with a GIN connection has one GinProxy, which its communicator owns.

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
    const SymmetricMemory* symmetric = nullptr;  // This and what is pointed to outlive the proxy.
    RemoteWindows* remote = nullptr;             // null where the LSA team is all ranks
    EventLoop* loop = nullptr;                   // The progress thread runs it.
    Watch* watch = nullptr;
  };
  static Result<std::unique_ptr<GinProxy>> Create(Parts parts);
  ~GinProxy() override;
  GinProxy(const GinProxy&) = delete;
  GinProxy& operator=(const GinProxy&) = delete;

  void* handle() const override;
  GinProxy* AsProxy() override { return this; }

  // For kernels of hosts; any thread. A context or queue that Do refuses means nothing to the other
  // functions.
  //
  // Carries out an operation toward a rank of the LSA team at once, and returns true; returns false
  // where it has to be posted. One that names what is not there stops the communicator, and is
  // taken for carried out. `words` are those of a descriptor.
  bool Do(uint32_t context, uint32_t queue, const uint64_t* words);
  void NoteMissing(bool is_signal, uint32_t number) override;
  // Carries out what was posted to a queue, as far as that needs no other rank.
  void RingDoorbell(uint32_t context, uint32_t queue);
  // Takes what other ranks put here as well.
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
    std::atomic<bool> left = false;  // It has ended its communicator: nothing more comes from it.
  };
  std::deque<Remote> remotes_;               // all that queues lead to
  std::vector<RmaConnection*> connections_;  // These lead to them, in the same order.
  std::atomic<uint32_t> next_attended_ =
      0;  // where there are more than a thread attends to at once
  Mutex timer_mutex_;
  EventLoop::TimerId timer_ TUTTI_GUARDED_BY(timer_mutex_) = 0;
  bool ended_ TUTTI_GUARDED_BY(timer_mutex_) = false;
};

}  // namespace tutti
