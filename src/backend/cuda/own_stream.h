#pragma once

// A stream for Tutti's own work on a GPU's memory while a communicator is made, and events that
// destroy themselves.
//
// The stream waits only for its own work. CUDA's plain calls for copying and filling go through the
// null stream, which waits for the program's streams. A kernel in one of the program's streams may
// wait for another rank, and the other rank may wait for this rank to finish the work here.

#include <cstddef>
#include <memory>

#include "backend/cuda/device.h"
#include "base/status.h"

namespace tutti::cuda {

// Move-only. REQUIRES, for all calls: the device's context is current.
class OwnStream {
 public:
  static Result<OwnStream> Create(const Device& device);
  OwnStream(OwnStream&& other) noexcept : device_(other.device_), stream_(other.stream_) {
    other.stream_ = nullptr;
  }
  OwnStream& operator=(OwnStream&&) = delete;
  ~OwnStream();

  Stream get() const { return stream_; }
  // Each of the three functions returns when its work is done.
  Status Clear(DeviceAddress memory, size_t bytes) const;
  Status CopyIn(DeviceAddress to, const void* from, size_t bytes) const;
  Status CopyOut(void* to, DeviceAddress from, size_t bytes) const;

 private:
  explicit OwnStream(const Device& device) : device_(&device) {}
  Status Finish(int begun, const char* doing) const;

  const Device* device_;
  Stream stream_ = nullptr;
};

struct EventCloser {
  const Device* device = nullptr;
  void operator()(Event event) const;
};
using OwnEvent = std::unique_ptr<EventHandle, EventCloser>;
// Makes an event without timing. REQUIRES: the device's context is current.
Result<OwnEvent> MakeEvent(const Device& device);

}  // namespace tutti::cuda
