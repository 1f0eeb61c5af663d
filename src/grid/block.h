#pragma once

// The barriers and memory that the threads of a block share. Each caller is a thread of the block
// and knows its number.

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/wait.h"
#include "tutti/host_grid_types.h"

namespace tutti {

// A meeting of `count` threads. The barrier may be used again at once.
class CountedBarrier {
 public:
  void Meet(uint32_t count);

 private:
  std::atomic<uint64_t> meetings_ = 0;
  std::atomic<uint32_t> arrived_ = 0;
  SleepFlag sleepers_ = 0;
};

// Meetings of lanes of a warp. Several sets of lanes may meet at a time, and a lane may belong to
// several sets in turn. A set has met when all its lanes wait for the same set.
class WarpBarrier {
 public:
  // `lanes` has a bit for each lane of the set, `lane` included.
  void Meet(unsigned int lane, uint32_t lanes);

 private:
  // Returns whether all lanes of the set wait for the set.
  bool AllWaitFor(uint32_t lanes) const TUTTI_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar met_;
  // The set that each lane waits for, 0 for none, and the number of the lane's meetings.
  std::array<uint32_t, TUTTI_HOST_WARP_SIZE> awaited_ TUTTI_GUARDED_BY(mutex_) = {};
  std::array<uint64_t, TUTTI_HOST_WARP_SIZE> meetings_ TUTTI_GUARDED_BY(mutex_) = {};
};

}  // namespace tutti

// The C interface chooses the name.
struct tuttiHostBlock {
 public:
  tuttiHostBlock(unsigned int num_threads, size_t shared_bytes);

  void Sync() { all_.Meet(num_threads_); }
  void SyncNamed(unsigned int id, unsigned int count) { named_.at(id).Meet(count); }
  // Lanes beyond the size of the warp of thread `number` are ignored.
  void SyncWarp(unsigned int number, uint32_t lanes);

  const void** exchange() { return exchange_.data(); }
  void* shared_memory() const { return shared_memory_.get(); }
  void* SharedVariable(const void* key, size_t bytes, size_t alignment);

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  using Memory = std::unique_ptr<void, Free>;
  static Memory Allocate(size_t bytes, size_t alignment);

  const unsigned int num_threads_;
  tutti::CountedBarrier all_;
  std::array<tutti::CountedBarrier, TUTTI_HOST_NAMED_BARRIERS> named_;
  std::vector<tutti::WarpBarrier> warps_;
  std::vector<const void*> exchange_;
  const Memory shared_memory_;
  tutti::Mutex mutex_;
  std::map<const void*, Memory> variables_ TUTTI_GUARDED_BY(mutex_);
};
