#include "conformance/guarded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "conformance/cases.h"

namespace tutti::testing {
namespace {

constexpr std::byte kCanary{0xA5};
constexpr size_t kMargin = 128;

void FreeAllocated(void* memory) { EXPECT_NCCL(ncclMemFree(memory)); }

size_t BeginIn(std::byte* base, size_t skew_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(base) + kMargin;
  return kMargin + (64 - address % 64) % 64 + skew_bytes;
}

}  // namespace

Guarded::Guarded(size_t bytes, size_t skew_bytes, bool allocated)
    : bytes_(bytes), size_(bytes + skew_bytes + 2 * kMargin + 64), storage_(nullptr, std::free) {
  if (allocated) {
    void* memory = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&memory, size_));
    storage_ = {static_cast<std::byte*>(memory), FreeAllocated};
  } else if (WhereTestsRun() == Place::kPinned) {
    shared_.resize(size_);
  } else if (WhereTestsRun() == Place::kDevice) {
    device_ = std::make_unique<DeviceMemory>(size_);
  } else {
    storage_ = {static_cast<std::byte*>(std::malloc(size_)), std::free};
  }
  if (device_ || (allocated && OnGpus())) copy_.resize(size_);
  begin_ = BeginIn(copy_.empty() ? all() : on_gpu(), skew_bytes);
  std::fill_n(all(), size_, kCanary);
}

std::byte* Guarded::all() {
  if (!copy_.empty()) return copy_.data();
  return shared_.empty() ? storage_.get() : shared_.data();
}

void Guarded::Fill(std::byte value) { std::fill_n(data(), bytes_, value); }

void Guarded::Upload() {
  if (!copy_.empty()) CopyToDevice(on_gpu(), copy_.data(), size_);
}

void Guarded::Download() {
  if (!copy_.empty()) CopyToHost(copy_.data(), on_gpu(), size_);
}

bool Guarded::Intact() {
  const auto is_canary = [](std::byte b) { return b == kCanary; };
  const std::byte* const begin = all();
  return std::all_of(begin, begin + begin_, is_canary) &&
         std::all_of(begin + begin_ + bytes_, begin + size_, is_canary);
}

}  // namespace tutti::testing
