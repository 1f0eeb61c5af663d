#pragma once

// One-sided calls of GPUs: ncclPutSignal, ncclSignal and ncclWaitSignal, queued on the streams of
// the calls. No call waits on the host, and no kernel runs.
//
// To a GPU of the LSA team the stream copies by a copy engine, and then writes the count of this
// rank's signals to the word at which the peer waits. To any other GPU the stream posts the put to
// a proxy (gin/stream_line.h), which carries the put over the network. The stream goes on when the
// source, which has to lie in a window, has been read. A wait is a wait of the stream for a word.
//
// Puts of different streams keep the order of their calls. Waits do not, because a wait's signal
// may depend on a later put of another stream.
//
// When the communicator stops, a thread ends the waits of streams, again and again until no stream
// waits: a late signal of another rank's stream overwrites the word that ended a wait.
//
// Made with the first window of a communicator, where streams can wait for words of memory. Any
// thread may call.

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cuda/device.h"
#include "base/mutex.h"
#include "comm/gpu_gin.h"
#include "watch/watch.h"
#include "window/one_sided.h"
#include "window/symmetric_memory.h"

namespace tutti {

class GpuOneSided final : public OneSided {
 public:
  struct Parts {
    int rank = 0;
    const cuda::Device* device = nullptr;  // The device and the objects below outlive the object.
    const SymmetricMemory* symmetric = nullptr;
    Watch* watch = nullptr;
  };
  // `gin` was made with the plan of PlanFor.
  GpuOneSided(const Parts& parts, GpuGin::ForStreams gin);

  // Returns the plan of the proxy for the calls of `num_ranks` ranks.
  static GinPlan PlanFor(int num_ranks);

  Result<std::shared_ptr<const OneSidedCall>> MakePut(Put put) override;
  std::shared_ptr<const OneSidedCall> MakeWait(std::vector<Awaited> awaited) override;
  void Abort() override TUTTI_EXCLUDES(line_mutex_);
  void AwaitPuts() override TUTTI_EXCLUDES(mutex_);
  void EndQueuedCalls(Deadline deadline) override TUTTI_EXCLUDES(line_mutex_);

 private:
  class Call;

  Status CheckStream(cuda::Stream stream) const;
  Status RunPut(const Put& put, const std::shared_ptr<const Window>& source, cuda::Stream stream)
      TUTTI_EXCLUDES(mutex_);
  Status PutInTeam(const Put& put, cuda::Stream stream) TUTTI_REQUIRES(mutex_);
  Status PutByProxy(const Put& put, const Window* source, cuda::Stream stream)
      TUTTI_REQUIRES(mutex_);
  Status RunWait(const std::vector<Awaited>& awaited, cuda::Stream stream) TUTTI_EXCLUDES(mutex_);
  Status Mark(cuda::Stream stream) TUTTI_REQUIRES(mutex_);
  bool PutsDone() TUTTI_EXCLUDES(mutex_);
  bool AllDone() TUTTI_EXCLUDES(mutex_);
  void KeepWaitsEnded() TUTTI_EXCLUDES(line_mutex_);
  void EndLine() TUTTI_EXCLUDES(line_mutex_);
  const cuda::Driver& driver() const { return parts_.device->driver(); }

  const Parts parts_;
  const LsaTeam team_;
  std::unique_ptr<GinBackend> proxy_;
  GinStreamLine* const line_;  // Lives until EndQueuedCalls.
  Mutex line_mutex_;
  CondVar line_ended_;
  std::unique_ptr<GinStreamLine> owned_line_ TUTTI_GUARDED_BY(line_mutex_);
  std::thread ender_ TUTTI_GUARDED_BY(line_mutex_);  // Runs KeepWaitsEnded.
  Mutex mutex_;
  // The signals to each rank, and the signals of each rank that waits have taken.
  std::vector<uint64_t> sent_ TUTTI_GUARDED_BY(mutex_);
  std::vector<uint64_t> taken_ TUTTI_GUARDED_BY(mutex_);
  // Events behind the last put, and behind the calls that may not be done yet.
  cuda::OwnEvent last_put_ TUTTI_GUARDED_BY(mutex_);
  std::deque<cuda::OwnEvent> marks_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
