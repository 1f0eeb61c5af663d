#pragma once

// The consumer's side of the queues of one GIN context: takes descriptors in order, begins the
// operations, and completes them in order.
//
//   posted by kernels ─▶ [ taken, under way ][ posted, not taken ][ free slots ]
//                         ▲ consumer index     ▲ taken
//
// Any thread may call RingDoorbell and Drive. One thread at a time is at the queues, and does
// before it leaves the work for which another thread rings meanwhile. Operations toward ranks whose
// memory is mapped here need not be posted: any thread may Do them at once.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "gin/executor.h"

namespace tutti {

// Zeroed memory for descriptors, whose pages are taken when they are first written.
class GinMemory {
 public:
  static Result<std::unique_ptr<GinMemory>> Allocate(size_t bytes);
  ~GinMemory();
  GinMemory(const GinMemory&) = delete;
  GinMemory& operator=(const GinMemory&) = delete;

  device::GinDescriptor* data() const { return static_cast<device::GinDescriptor*>(data_); }

 private:
  GinMemory(void* data, size_t bytes) : data_(data), bytes_(bytes) {}

  void* const data_;
  const size_t bytes_;
};

class GinQueues {
 public:
  // `descriptors` is room for all queues. Both outlive the queues.
  GinQueues(GinExecutor& executor, uint32_t context, device::GinDescriptor* descriptors);

  // Returns the context as kernels see it.
  device::GinContext record();

  // How a call came out.
  struct Driven {
    bool under_way = false;   // an operation is left to be driven again
    Status failure;           // the failure of this call; the context does nothing after a failure
    std::optional<int> peer;  // The connection to this rank has failed.
  };
  // Carries out an operation at once, or fails where the operands are invalid. Returns false, with
  // nothing done, where the operation has to be posted: the peer is reached by the network, or an
  // earlier operation toward the peer is posted and not done.
  bool Do(uint32_t queue, const uint64_t* words, Driven* driven);
  // Notes a posted operation of a queue, and drives the context.
  Driven RingDoorbell(uint32_t queue) TUTTI_EXCLUDES(mutex_);
  // Takes and completes operations as far as possible without a wait.
  Driven Drive() TUTTI_EXCLUDES(mutex_);
  // Returns whether something is taken and not done, or waits for room.
  bool busy() const { return busy_.load(std::memory_order_acquire); }
  // Gives up operations that are not done, and breaks the connections on which they are under way.
  void Drop() TUTTI_EXCLUDES(mutex_);

 private:
  // An operation that was taken and is not completed.
  struct Flight {
    // null: the operation is done, behind an earlier one that is not
    NetRequest* request = nullptr;
    // A flush follows the request if no other request is behind it. The next operations toward a
    // rank of the team may be a processor's, and must come behind those of the network.
    bool confirms = false;
    std::optional<uint32_t> counter;  // the counter to increase at the end
  };
  struct Queue {
    uint32_t taken = 0;
    uint32_t done = 0;
    bool blocked = false;  // The next operation found no room.
    std::deque<Flight> flights;

    bool busy() const { return blocked || !flights.empty(); }
  };

  Driven DriveAll() TUTTI_REQUIRES(mutex_);
  Status DriveQueue(uint32_t number) TUTTI_REQUIRES(mutex_);
  Status DriveConnection(uint32_t number, RmaConnection& connection) TUTTI_REQUIRES(mutex_);
  Result<bool> Take(uint32_t number, bool inside) TUTTI_REQUIRES(mutex_);
  Result<bool> HasOldestEnded(Queue& queue, RmaConnection& connection, bool* moved)
      TUTTI_REQUIRES(mutex_);
  Status Complete(uint32_t number, RmaConnection& connection, bool* moved) TUTTI_REQUIRES(mutex_);
  void CountDone(uint32_t number, const std::optional<uint32_t>& counter) TUTTI_REQUIRES(mutex_);
  void IncreaseCounter(const std::optional<uint32_t>& counter);

  GinExecutor& executor_;
  const uint32_t context_;
  const uint32_t num_queues_;
  const uint32_t depth_;
  device::GinDescriptor* const descriptors_;
  // Shared with kernels.
  std::vector<uint32_t> producer_;
  std::vector<uint32_t> consumer_;
  std::vector<uint64_t> signal_offsets_;
  std::vector<uint32_t> last_issued_get_, last_visible_get_;

  const std::unique_ptr<std::atomic<bool>[]> rung_queues_;  // Queues with unseen bells.
  std::atomic<bool> rung_ = false;                          // Some queue has an unseen bell.
  std::atomic<bool> driving_ = false;                       // A thread is at the queues.
  std::atomic<bool> busy_ = false;
  Mutex mutex_;  // held by the thread that has set driving_
  std::vector<Queue> queues_ TUTTI_GUARDED_BY(mutex_);
  bool broken_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
