#include "backend/cuda/own_stream.h"

namespace tutti::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;  // not ordered with the null stream

}  // namespace

Result<OwnStream> OwnStream::Create(const Device& device) {
  OwnStream stream(device);
  const Driver& driver = device.driver();
  TUTTI_TRY(driver.Check(driver.StreamCreate(&stream.stream_, kNonBlocking), "making a stream"));
  return stream;
}

OwnStream::~OwnStream() {
  if (stream_ != nullptr) device_->driver().StreamDestroy(stream_);
}

Status OwnStream::Clear(DeviceAddress memory, size_t bytes) const {
  return Finish(device_->driver().MemsetBytesAsync(memory, 0, bytes, stream_),
                "clearing GPU memory");
}

Status OwnStream::CopyIn(DeviceAddress to, const void* from, size_t bytes) const {
  return Finish(device_->driver().MemcpyToDeviceAsync(to, from, bytes, stream_),
                "copying to the GPU");
}

Status OwnStream::CopyOut(void* to, DeviceAddress from, size_t bytes) const {
  return Finish(device_->driver().MemcpyToHostAsync(to, from, bytes, stream_),
                "copying from the GPU");
}

// Waits for the call whose result is `begun`. Copies of ordinary memory are done when Finish
// returns, and the caller may reuse the memory.
Status OwnStream::Finish(int begun, const char* doing) const {
  const Driver& driver = device_->driver();
  TUTTI_TRY(driver.Check(begun, doing));
  return driver.Check(driver.StreamSynchronize(stream_), doing);
}

void EventCloser::operator()(Event event) const {
  const ManagingScope scope(device->driver(), device->context());
  device->driver().EventDestroy(event);
}

Result<OwnEvent> MakeEvent(const Device& device) {
  Event event = nullptr;
  TUTTI_TRY(device.driver().Check(device.driver().EventCreate(&event, kEventWithoutTiming),
                                  "making a CUDA event"));
  return OwnEvent(event, EventCloser{&device});
}

}  // namespace tutti::cuda
