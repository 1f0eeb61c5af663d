#include "gin/copy_line.h"

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

using cuda::AddressOf;

}  // namespace

Result<GinCopyLine> GinCopyLine::Create(const cuda::Device& device) {
  TUTTI_ASSIGN(cuda::OwnStream stream, cuda::OwnStream::Create(device));
  GinCopyLine line(std::move(stream), device);
  for (cuda::OwnEvent& event : line.events_) {
    TUTTI_ASSIGN(event, cuda::MakeEvent(device));
  }
  return line;
}

GinCopyLine::~GinCopyLine() {
  if (stream_.get() != nullptr) device_->driver().StreamSynchronize(stream_.get());
}

Result<uint64_t> GinCopyLine::Between(void* to, const void* from, size_t bytes) {
  return Begun(device_->driver().MemcpyAsync(AddressOf(to), AddressOf(from), bytes, stream_.get()),
               "copying between GPUs");
}
Result<uint64_t> GinCopyLine::In(void* to, const void* from, size_t bytes) {
  return Begun(device_->driver().MemcpyToDeviceAsync(AddressOf(to), from, bytes, stream_.get()),
               "copying to the GPU");
}
Result<uint64_t> GinCopyLine::Out(void* to, const void* from, size_t bytes) {
  return Begun(device_->driver().MemcpyToHostAsync(to, AddressOf(from), bytes, stream_.get()),
               "copying from the GPU");
}

// The pieces follow one another in the stream and share one piece of staging memory.
Result<uint64_t> GinCopyLine::Within(void* to, const void* from, size_t bytes,
                                     std::span<std::byte> stage) {
  uint64_t number = 0;
  for (size_t at = 0; at < bytes; at += stage.size()) {
    const size_t piece = std::min(stage.size(), bytes - at);
    TUTTI_TRY(Out(stage.data(), static_cast<const std::byte*>(from) + at, piece).status());
    TUTTI_ASSIGN(number, In(static_cast<std::byte*>(to) + at, stage.data(), piece));
  }
  return number;
}

// Returns the number of the event that the next Seal will record behind the copy.
Result<uint64_t> GinCopyLine::Begun(int result, const char* doing) {
  TUTTI_TRY(device_->driver().Check(result, doing));
  open_ = true;
  return sealed_ + 1;
}

// Copies stay unsealed while all events are under way, and share an event with later copies.
Status GinCopyLine::Seal() {
  if (!open_ || sealed_ - reached_ == kEvents) return Status::Ok();
  const cuda::Driver& driver = device_->driver();
  TUTTI_TRY(driver.Check(driver.EventRecord(events_[(sealed_ + 1) % kEvents].get(), stream_.get()),
                         "noting how far copies have come"));
  ++sealed_;
  open_ = false;
  return Status::Ok();
}

// Events of one stream happen in order: the search ends at the first event that is still to come.
Result<uint64_t> GinCopyLine::reached() {
  const cuda::Driver& driver = device_->driver();
  while (reached_ < sealed_) {
    const int result = driver.EventQuery(events_[(reached_ + 1) % kEvents].get());
    if (result == cuda::kNotReady) break;
    TUTTI_TRY(driver.Check(result, "asking how far copies have come"));
    ++reached_;
  }
  return reached_;
}

Status GinCopyLine::Finish() {
  const cuda::Driver& driver = device_->driver();
  TUTTI_TRY(Seal());
  TUTTI_TRY(driver.Check(driver.StreamSynchronize(stream_.get()), "waiting for copies"));
  return reached().status();
}

}  // namespace tutti
