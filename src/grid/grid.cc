#include "grid/grid.h"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/wait.h"
#include "grid/block.h"
#include "sys/thread.h"

namespace tutti {
namespace {

// The grid's thread that the calling thread is now.
thread_local const tuttiHostThread_t* current_thread = nullptr;

uint64_t Volume(const tuttiDim3_t& size) { return uint64_t{size.x} * size.y * size.z; }

tuttiDim3_t AtLeastOne(const tuttiDim3_t& size) {
  return {std::max(size.x, 1u), std::max(size.y, 1u), std::max(size.z, 1u)};
}

// Returns the index of thread, or block, `number` of a box. As in CUDA, x counts fastest.
tuttiDim3_t IndexOf(unsigned number, const tuttiDim3_t& size) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

// Holds the threads of a grid back until the system has granted or refused all of them.
class StartSignal {
 public:
  enum class State { kPending, kStart, kCancel };

  void Decide(State state) {
    const MutexLock lock(mutex_);
    state_ = state;
    decided_.NotifyAll();
  }
  // Returns whether to start.
  bool Await() {
    MutexLock lock(mutex_);
    while (state_ == State::kPending) decided_.Wait(lock);
    return state_ == State::kStart;
  }

 private:
  Mutex mutex_;
  CondVar decided_;
  State state_ TUTTI_GUARDED_BY(mutex_) = State::kPending;
};

// A grid for the length of one call: its blocks, its threads, and the signal to start them.
class Grid {
 public:
  Grid(const tuttiHostLaunch_t& launch, tuttiHostKernel_t kernel, void* argument)
      : kernel_(kernel), argument_(argument) {
    const auto threads = static_cast<unsigned>(Volume(launch.block_size));
    const auto blocks = static_cast<unsigned>(Volume(launch.grid_size));
    threads_.reserve(size_t{threads} * blocks);
    for (unsigned b = 0; b < blocks; ++b) {
      tuttiHostBlock& block = blocks_.emplace_back(threads, launch.shared_bytes);
      for (unsigned t = 0; t < threads; ++t)
        threads_.push_back({.thread_index = IndexOf(t, launch.block_size),
                            .block_index = IndexOf(b, launch.grid_size),
                            .block_size = launch.block_size,
                            .grid_size = launch.grid_size,
                            .number = t,
                            .block = &block});
    }
  }

  Status Run() {
    std::vector<std::thread> others;
    Status status = StartOthers(others);
    start_.Decide(status.ok() ? StartSignal::State::kStart : StartSignal::State::kCancel);
    if (status.ok()) RunThread(0);
    for (std::thread& thread : others) thread.join();
    return status;
  }

 private:
  // Starts all threads but the first, which is the caller. The threads wait for the start signal.
  // If the system grants only some threads, none may run the kernel, because the kernel could wait
  // for a missing thread.
  Status StartOthers(std::vector<std::thread>& others) {
    others.reserve(threads_.size() - 1);
    for (size_t i = 1; i < threads_.size(); ++i) {
      TUTTI_ASSIGN(std::thread thread, StartThread("tutti-grid", [this, i] {
                     if (start_.Await()) RunThread(i);
                   }));
      others.push_back(std::move(thread));
    }
    return Status::Ok();
  }
  // Runs the kernel as thread `i`. An exception of the kernel ends the program (noexcept), on the
  // caller's thread as on the others: the rest of the grid would wait for the thread for ever. A
  // kernel may launch a grid itself, and the thread therefore gets back its place in the outer grid
  // at the end.
  void RunThread(size_t i) noexcept {
    const tuttiHostThread_t* const before = std::exchange(current_thread, &threads_[i]);
    kernel_(&threads_[i], argument_);
    current_thread = before;
  }

  const tuttiHostKernel_t kernel_;
  void* const argument_;
  std::deque<tuttiHostBlock> blocks_;  // a deque, because blocks must not move
  std::vector<tuttiHostThread_t> threads_;
  StartSignal start_;
};

}  // namespace

// A grid of one dimension is named by plain numbers, as most kernels count.
std::string NameOfGridThread() {
  if (current_thread == nullptr) return "";
  const auto name = [](const tuttiDim3_t& index, const tuttiDim3_t& size) {
    const bool flat = size.y == 1 && size.z == 1;
    return flat ? fmt::format("{}", index.x)
                : fmt::format("({}, {}, {})", index.x, index.y, index.z);
  };
  const tuttiHostThread_t& self = *current_thread;
  return fmt::format("block {}, thread {}", name(self.block_index, self.grid_size),
                     name(self.thread_index, self.block_size));
}

Result<tuttiHostLaunch_t> CheckLaunch(const tuttiHostLaunch_t& launch) {
  tuttiHostLaunch_t checked = launch;
  checked.grid_size = AtLeastOne(launch.grid_size);
  checked.block_size = AtLeastOne(launch.block_size);
  for (const tuttiDim3_t& size : {checked.grid_size, checked.block_size}) {
    // Each direction is checked first, because the product could overflow.
    const unsigned longest = std::max({size.x, size.y, size.z});
    if (longest > TUTTI_HOST_GRID_MAX_THREADS || Volume(size) > TUTTI_HOST_GRID_MAX_THREADS)
      return InvalidArgument("a grid on the host has at most {} threads, and this one more",
                             TUTTI_HOST_GRID_MAX_THREADS);
  }
  const uint64_t threads = Volume(checked.grid_size) * Volume(checked.block_size);
  if (threads > TUTTI_HOST_GRID_MAX_THREADS)
    return InvalidArgument("a grid on the host has at most {} threads, and this one {}",
                           TUTTI_HOST_GRID_MAX_THREADS, threads);
  return checked;
}

Status RunGrid(const tuttiHostLaunch_t& launch, tuttiHostKernel_t kernel, void* argument) {
  return Grid(launch, kernel, argument).Run();
}

void PauseInGrid(unsigned int round) {
  constexpr unsigned kSpins = 64;      // about 2 us
  constexpr unsigned kYields = 1'000;  // some hundred us where nobody else wants the processor
  constexpr timespec kNap{.tv_sec = 0, .tv_nsec = 50'000};
  if (round < kSpins)
    CpuPause();
  else if (round < kYields)
    sched_yield();
  else
    nanosleep(&kNap, nullptr);
}

}  // namespace tutti
