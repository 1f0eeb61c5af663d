#pragma once

// Buffers of cases: wherever a place (place.h) has them, with strips around that must stay as they
// are.

#include <cstddef>
#include <memory>
#include <vector>

#include "conformance/place.h"

namespace tutti::testing {

// A buffer between two strips that nobody may write. Where it lies in a GPU's memory, host code
// sees a copy of it. Of the thread that made it, whose device it is on.
class Guarded {
 public:
  // `skew_bytes` past a cache line; from ncclMemAlloc where `allocated`.
  Guarded(size_t bytes, size_t skew_bytes, bool allocated);
  std::byte* data() { return all() + begin_; }
  // Where the library finds what host code finds at data().
  std::byte* argument() { return (copy_.empty() ? all() : on_gpu()) + begin_; }
  void Fill(std::byte value);
  // Between what host code sees and what the library works on.
  void Upload();
  void Download();
  bool Intact();

 private:
  std::byte* all();
  std::byte* on_gpu() { return device_ ? device_->data() : storage_.get(); }

  size_t bytes_;
  size_t size_;
  size_t begin_ = 0;
  std::unique_ptr<std::byte, void (*)(void*)> storage_;
  Array<std::byte> shared_;
  std::unique_ptr<DeviceMemory> device_;
  std::vector<std::byte> copy_;
};

}  // namespace tutti::testing
