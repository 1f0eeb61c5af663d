#include "grid/block.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tutti {
namespace {

// A grid often has more threads than the machine has processors, and a waiting thread should soon
// sleep.
constexpr WaitPolicy kWaitInBlock{.spin_ns = 2'000, .yield_ns = 50'000};
constexpr int64_t kLongestSleepNs = 100'000'000;

}  // namespace

// The last thread to arrive begins the next meeting and thereby releases the waiting threads. A
// thread reads the number of the meeting before it arrives, because a later read could return the
// number of the next meeting.
void CountedBarrier::Meet(uint32_t count) {
  const uint64_t meeting = meetings_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    // before a thread can arrive for the next meeting
    arrived_.store(0, std::memory_order_relaxed);
    meetings_.store(meeting + 1, std::memory_order_release);
    WakeSleepers(meetings_, sleepers_);
    return;
  }
  Backoff backoff(kWaitInBlock);
  while (meetings_.load(std::memory_order_acquire) == meeting) {
    if (!backoff.Pause()) SleepUntilChanged(meetings_, meeting, sleepers_, kLongestSleepNs);
  }
}

bool WarpBarrier::AllWaitFor(uint32_t lanes) const {
  for (unsigned lane = 0; lane < TUTTI_HOST_WARP_SIZE; ++lane)
    if ((lanes >> lane & 1) != 0 && awaited_[lane] != lanes) return false;
  return true;
}

// The lane that completes a set releases all lanes of the set. Each lane counts its own meetings,
// because different sets of the warp may meet meanwhile.
void WarpBarrier::Meet(unsigned int lane, uint32_t lanes) {
  MutexLock lock(mutex_);
  awaited_[lane] = lanes;
  if (AllWaitFor(lanes)) {
    for (unsigned other = 0; other < TUTTI_HOST_WARP_SIZE; ++other) {
      if ((lanes >> other & 1) == 0) continue;
      awaited_[other] = 0;
      ++meetings_[other];
    }
    met_.NotifyAll();
    return;
  }
  const uint64_t before = meetings_[lane];
  while (meetings_[lane] == before) met_.Wait(lock);
}

}  // namespace tutti

tuttiHostBlock::tuttiHostBlock(unsigned int num_threads, size_t shared_bytes)
    : num_threads_(num_threads),
      warps_((num_threads + TUTTI_HOST_WARP_SIZE - 1) / TUTTI_HOST_WARP_SIZE),
      exchange_(num_threads),
      shared_memory_(Allocate(shared_bytes, alignof(std::max_align_t))) {}

// Lanes beyond the size of the last warp count as absent, as on a GPU, and a full mask is valid
// there. A single lane has nobody to wait for.
void tuttiHostBlock::SyncWarp(unsigned int number, uint32_t lanes) {
  const unsigned first = number / TUTTI_HOST_WARP_SIZE * TUTTI_HOST_WARP_SIZE;
  const unsigned size = std::min(num_threads_ - first, unsigned{TUTTI_HOST_WARP_SIZE});
  const uint32_t present = UINT32_MAX >> (TUTTI_HOST_WARP_SIZE - size);
  const uint32_t lane_bit = uint32_t{1} << (number - first);
  const uint32_t meeting = (lanes & present) | lane_bit;
  if (meeting != lane_bit) warps_[number / TUTTI_HOST_WARP_SIZE].Meet(number - first, meeting);
}

// A kernel's TUTTI_SHARED variable has a static object, and `key` is the address of the object. The
// first thread of the block to ask makes the memory.
void* tuttiHostBlock::SharedVariable(const void* key, size_t bytes, size_t alignment) {
  const tutti::MutexLock lock(mutex_);
  Memory& memory = variables_[key];
  if (memory == nullptr) memory = Allocate(bytes, alignment);
  return memory.get();
}

void tuttiHostBlock::Free::operator()(void* memory) const { std::free(memory); }

tuttiHostBlock::Memory tuttiHostBlock::Allocate(size_t bytes, size_t alignment) {
  // aligned_alloc requires a multiple of the alignment as the size.
  alignment = std::max(alignment, alignof(std::max_align_t));
  const size_t whole = (std::max(bytes, size_t{1}) + alignment - 1) / alignment * alignment;
  Memory memory(std::aligned_alloc(alignment, whole));
  if (memory == nullptr) throw std::bad_alloc();
  // A kernel that reads unwritten memory must not find zeros by chance.
  std::memset(memory.get(), 0xa5, whole);
  return memory;
}
