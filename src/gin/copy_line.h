#pragma once

// Copies of a GPU's memory that are made one after another, and how far they have come.
//
//   Copy → 1   Copy → 1   Seal   Copy → 2   Seal      reached() → 0 … 1 … 2
//
// A copy returns a number. It is done, and visible to kernels, once reached() has come to that
// number. Numbers count events of the stream, which Seal records: copies that were begun between
// two calls of Seal share one.
//
// REQUIRES, of all calls: the device's context is current, and one thread calls at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cuda/own_stream.h"
#include "base/status.h"

namespace tutti {

class GinCopyLine {
 public:
  static Result<GinCopyLine> Create(const cuda::Device& device);
  GinCopyLine(GinCopyLine&& other) noexcept;
  GinCopyLine& operator=(GinCopyLine&&) = delete;
  // Waits for the copies that are under way.
  ~GinCopyLine();

  // Begin to copy: between memory of two GPUs, from pinned memory of the host, and to it.
  Result<uint64_t> Between(void* to, const void* from, size_t bytes);
  Result<uint64_t> In(void* to, const void* from, size_t bytes);
  Result<uint64_t> Out(void* to, const void* from, size_t bytes);

  // Begins to copy within the memory of one GPU, by way of `stage`, which is pinned memory of the
  // host that only this line uses. CUDA copies within a GPU by a kernel, for which a GPU that
  // kernels have filled has no room; to the host and back the copy engines carry it.
  Result<uint64_t> Within(void* to, const void* from, size_t bytes, std::span<std::byte> stage);

  // Has the copies that were begun since the last call counted. Does nothing while as many events
  // as it keeps are under way.
  Status Seal();
  // Returns the number of the last copy that is done. All with smaller numbers are done too.
  Result<uint64_t> reached();
  // Waits until all that was begun is done.
  Status Finish();
  // Returns whether copies are under way or not sealed yet.
  bool busy() const { return open_ || sealed_ != reached_; }

 private:
  static constexpr size_t kEvents = 64;

  explicit GinCopyLine(cuda::OwnStream stream, const cuda::Device& device)
      : device_(&device), stream_(std::move(stream)) {}
  Result<uint64_t> Begun(int result, const char* doing);

  const cuda::Device* device_;
  cuda::OwnStream stream_;
  std::array<cuda::Event, kEvents> events_ = {};
  uint64_t sealed_ = 0;   // the number of the last event that was recorded
  uint64_t reached_ = 0;  // the number of the last one that has happened
  bool open_ = false;     // A copy was begun since.
};

}  // namespace tutti
