#pragma once

// Posts operations to the queues of a GinDeviceProxy from streams of the program, and lets streams
// wait for signals. The GPU writes and polls the words itself when the stream reaches the call, and
// no thread of the host takes part.
//
//   stream of this rank                            memory of the host
//     wait for a free slot            ◀── polls ── consumer index of the queue
//     write the words of a descriptor ───────────▶ slot, which the proxy takes (device_proxy.h)
//     wait until it is done           ◀── polls ── consumer index
//     wait for a signal               ◀── polls ── signal of this rank
//     raise a signal                  ───────────▶ signal of a rank of the LSA team
//
// Signal s counts the signals of rank s. A rank of the LSA team writes the count itself and must
// raise its signals in the order of their counts; the proxy adds for the ranks outside the team.
//
// Queues wrap around as the queues of kernels do. One thread calls at a time, with the context of
// the GPU current. EndWaits is the exception.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/driver.h"
#include "backend/cuda/memory.h"
#include "base/status.h"
#include "gin/device_proxy.h"

namespace tutti {

class GinStreamLine {
 public:
  // `proxy` has one context, a queue for each rank and as many signals, and outlives the line.
  // InvalidUsage where the driver or the GPU has no streams that wait for words.
  static Result<std::unique_ptr<GinStreamLine>> Create(GinDeviceProxy& proxy);
  GinStreamLine(const GinStreamLine&) = delete;
  GinStreamLine& operator=(const GinStreamLine&) = delete;

  // Queue the steps of the drawing on `stream`.
  Status Post(cuda::Stream stream, uint32_t queue, const device::GinOperation& operation);
  Status AwaitDone(cuda::Stream stream, uint32_t queue) const;
  Status AwaitSignal(cuda::Stream stream, int from, uint64_t count) const;
  // Raises this rank's signal at `place` of the LSA team to `count`.
  Status Raise(cuda::Stream stream, int place, uint64_t count) const;

  // Ends all waits of streams, now and later. Signals mean nothing from here on. A rank that raises
  // its signal later undoes the end. The caller must therefore repeat the call as long as a stream
  // may wait. Any thread.
  void EndWaits();

 private:
  explicit GinStreamLine(GinDeviceProxy& proxy);
  Status PinTeam();
  std::byte* SlotOf(uint32_t queue, uint32_t index) const;
  Status AwaitConsumer(cuda::Stream stream, uint32_t queue, uint32_t index) const;
  Status Check(int result, const char* doing) const;

  GinDeviceProxy& proxy_;
  const cuda::Driver& driver_;
  const int rank_;
  std::vector<cuda::PinnedRange> team_;        // Holds the signals of each rank of the team.
  std::vector<std::atomic<uint32_t>> posted_;  // the operations posted to each queue
};

}  // namespace tutti
