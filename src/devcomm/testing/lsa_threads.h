#pragma once

// An LSA team whose ranks are threads of one process, made by hand: a flat range of addresses with
// a part for each rank, windows in it, and device communicators. Tests run kernels on the team as a
// job would run them.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "devcomm/record.h"
#include "devcomm/requirements.h"

namespace tutti {

class LsaThreads {
 public:
  static constexpr size_t kPartBytes = size_t{1} << 24;

  explicit LsaThreads(int num_ranks) : num_ranks_(num_ranks), records_(kMostWindows) {
    void* const base = mmap(nullptr, kStride * static_cast<size_t>(num_ranks), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) std::abort();
    base_ = static_cast<char*>(base);
    for (int r = 0; r < num_ranks; ++r)
      if (mprotect(Part(r), kPartBytes, PROT_READ | PROT_WRITE) != 0) std::abort();
  }
  LsaThreads(const LsaThreads&) = delete;
  ~LsaThreads() { munmap(base_, kStride * static_cast<size_t>(num_ranks_)); }

  int num_ranks() const { return num_ranks_; }
  uint32_t* abort_flag() { return &abort_flag_; }

  // Returns a new window for each rank, in zeroed memory.
  std::vector<ncclWindow_t> MakeWindow(size_t bytes) {
    const size_t at = used_;
    used_ += (bytes + 4095) / 4096 * 4096;
    if (used_ > kPartBytes || num_windows_ == kMostWindows) std::abort();
    std::vector<ncclWindow_vidmem>& records = records_[num_windows_++];
    records.resize(static_cast<size_t>(num_ranks_));
    std::vector<ncclWindow_t> windows;
    for (int r = 0; r < num_ranks_; ++r) {
      ncclWindow_vidmem& record = records[static_cast<size_t>(r)];
      record.lsaFlatBase = base_ + at;
      record.lsaRank = record.worldRank = r;
      record.stride4G = static_cast<uint32_t>(kStride >> 32);
      windows.push_back(&record);
    }
    return windows;
  }

  // Returns the device communicator of each rank.
  std::vector<ncclDevComm> MakeDevComms(const ncclDevCommRequirements_t& requirements) {
    const Result<ResourcePlan> plan = PlanResources(requirements, {num_ranks_, num_ranks_});
    if (!plan.ok()) std::abort();
    StoreHandles(plan.value());
    const std::vector<ncclWindow_t> window = MakeWindow(plan.value().bytes);
    std::vector<ncclDevComm> made;
    for (int r = 0; r < num_ranks_; ++r) {
      const ncclWindow_t own = window[static_cast<size_t>(r)];
      made.push_back(MakeDevComm({.rank = r,
                                  .num_ranks = num_ranks_,
                                  .lsa_size = num_ranks_,
                                  .plan = &plan.value(),
                                  .resource_window = own,
                                  .resource_record = *own,
                                  .abort_flag = &abort_flag_}));
    }
    return made;
  }

  // Returns rank `rank`'s part of a window.
  template <typename T>
  T* At(ncclWindow_t window, int rank) {
    return reinterpret_cast<T*>(window->lsaFlatBase + kStride * static_cast<size_t>(rank));
  }

  // Runs body(rank) on a thread for each rank.
  template <typename Body>
  void Run(const Body& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < num_ranks_; ++r) threads.emplace_back([&body, r] { body(r); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static constexpr size_t kStride = size_t{1} << 32;
  static constexpr size_t kMostWindows = 64;

  char* Part(int rank) const { return base_ + kStride * static_cast<size_t>(rank); }

  const int num_ranks_;
  char* base_ = nullptr;
  size_t used_ = 0;
  size_t num_windows_ = 0;
  std::vector<std::vector<ncclWindow_vidmem>> records_;  // Their addresses stay as they are.
  uint32_t abort_flag_ = 0;
};

}  // namespace tutti
