#include "grid/block.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tutti {
namespace {

// Threads of a grid are often more than processors: one that waits long should sleep soon.
constexpr WaitPolicy kWaitInBlock{.spin_ns = 2'000, .yield_ns = 50'000};
constexpr int64_t kLongestSleepNs = 100'000'000;

}  // namespace

void CountedBarrier::Meet(uint32_t count) {
  const uint64_t meeting = meetings_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    arrived_.store(0, std::memory_order_relaxed);  // before others can arrive for the next one
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

void tuttiHostBlock::SyncWarp(unsigned int number, uint32_t lanes) {
  const unsigned first = number / TUTTI_HOST_WARP_SIZE * TUTTI_HOST_WARP_SIZE;
  const unsigned size = std::min(num_threads_ - first, unsigned{TUTTI_HOST_WARP_SIZE});
  const uint32_t present = UINT32_MAX >> (TUTTI_HOST_WARP_SIZE - size);
  const uint32_t lane_bit = uint32_t{1} << (number - first);
  const uint32_t meeting = (lanes & present) | lane_bit;
  if (meeting != lane_bit) warps_[number / TUTTI_HOST_WARP_SIZE].Meet(number - first, meeting);
}

void* tuttiHostBlock::SharedVariable(const void* key, size_t bytes, size_t alignment) {
  const tutti::MutexLock lock(mutex_);
  Memory& memory = variables_[key];
  if (memory == nullptr) memory = Allocate(bytes, alignment);
  return memory.get();
}

void tuttiHostBlock::Free::operator()(void* memory) const { std::free(memory); }

tuttiHostBlock::Memory tuttiHostBlock::Allocate(size_t bytes, size_t alignment) {
  // A size that is a multiple of the alignment, as aligned_alloc asks for.
  alignment = std::max(alignment, alignof(std::max_align_t));
  const size_t whole = (std::max(bytes, size_t{1}) + alignment - 1) / alignment * alignment;
  Memory memory(std::aligned_alloc(alignment, whole));
  if (memory == nullptr) throw std::bad_alloc();
  // A kernel that reads what it has not written shall not find zeros by chance.
  std::memset(memory.get(), 0xa5, whole);
  return memory;
}
