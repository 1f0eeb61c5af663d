#pragma once

// Copies of a GPU's memory in one line, and the progress of the line.
//
//   Copy → 1   Copy → 1   Seal   Copy → 2   Seal      reached() → 0 … 1 … 2
//
// A copy returns a number. The copy is done, and visible to kernels, once reached() has come to
// this number. Numbers count the events of the stream that Seal records: copies begun between two
// calls of Seal have the same number.
//
// REQUIRES for all calls: the device's context is current, and one thread calls at a time.

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
  GinCopyLine(GinCopyLine&& other) noexcept = default;
  GinCopyLine& operator=(GinCopyLine&&) = delete;
  // Waits for the copies under way.
  ~GinCopyLine();

  // Begin to copy between memory of two GPUs, from pinned memory of the host, and to pinned memory
  // of the host.
  Result<uint64_t> Between(void* to, const void* from, size_t bytes);
  Result<uint64_t> In(void* to, const void* from, size_t bytes);
  Result<uint64_t> Out(void* to, const void* from, size_t bytes);

  // Begins to copy within the memory of one GPU by way of `stage`, pinned memory of the host that
  // no other line uses. CUDA copies within a GPU by a kernel, and a GPU filled with waiting kernels
  // has no room for another kernel. The copy engines carry data to the host and back without one.
  Result<uint64_t> Within(void* to, const void* from, size_t bytes, std::span<std::byte> stage);

  // Records an event behind the copies begun since the last call. Does nothing while the most
  // events are under way.
  Status Seal();
  // Returns the number of the last copy done. All with smaller numbers are done too.
  Result<uint64_t> reached();
  // Waits until all copies are done.
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
  std::array<cuda::OwnEvent, kEvents> events_ = {};
  uint64_t sealed_ = 0;   // the number of the last recorded event
  uint64_t reached_ = 0;  // the number of the last event that has happened
  bool open_ = false;     // A copy was begun after the last recorded event.
};

}  // namespace tutti
