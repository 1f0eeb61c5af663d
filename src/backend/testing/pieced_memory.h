#pragma once

// Memory of a GPU that is made of several adjacent allocations, as PyTorch's expandable segments
// are. The last of them may be memory of the host, as in DeepEP's buffers. For tests only: a failed
// call of the driver ends the program.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/driver.h"

namespace tutti::cuda {

class PiecedMemory {
 public:
  static constexpr size_t kPieceUnit = size_t{2} << 20;

  static constexpr size_t kNone = SIZE_MAX;

  // Makes memory of the calling thread's device. The lengths are multiples of kPieceUnit. The piece
  // of number `hole` is left unmapped, piece number `nameless` cannot be exported, and the pieces
  // from number `first_of_host` on are memory of the host's first node.
  explicit PiecedMemory(std::vector<size_t> lengths, size_t hole = kNone, size_t nameless = kNone,
                        size_t first_of_host = kNone)
      : driver_(TheDriver()), lengths_(std::move(lengths)), hole_(hole) {
    int device = 0;
    Must(driver_.ContextGetDevice(&device));
    for (const size_t length : lengths_) bytes_ += length;
    // One unit more than the pieces, in order that no other memory lies right behind them.
    Must(driver_.MemReserve(&address_, bytes_ + kPieceUnit, 0, 0, 0));
    const MemoryLocation of_device = {.id = device}, of_host = {.type = kHostNode, .id = 0};
    AllocationProperties properties;
    const AccessDescription access[] = {{.location = of_device}, {.location = of_host}};
    size_t number = 0;
    ForEachPiece([&](DeviceAddress at, size_t length) {
      properties.handle_types = number == nameless ? 0 : 1;
      const bool on_host = number++ >= first_of_host;
      properties.location = on_host ? of_host : of_device;
      AllocationHandle handle = 0;
      Must(driver_.MemCreate(&handle, length, &properties, 0));
      Must(driver_.MemMap(at, length, 0, handle, 0));
      Must(driver_.MemRelease(handle));
      Must(driver_.MemSetAccess(at, length, access, on_host ? 2 : 1));
    });
  }
  ~PiecedMemory() {
    ForEachPiece([&](DeviceAddress at, size_t length) { Must(driver_.MemUnmap(at, length)); });
    Must(driver_.MemUnreserve(address_, bytes_ + kPieceUnit));
  }
  PiecedMemory(const PiecedMemory&) = delete;
  PiecedMemory& operator=(const PiecedMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  size_t size() const { return bytes_; }

 private:
  static constexpr int kHostNode = 3;  // CU_MEM_LOCATION_TYPE_HOST_NUMA

  static const Driver& TheDriver() {
    const Result<const Driver*> found = Driver::Find();
    if (!found.ok()) End(std::string(found.status().message()));
    return **found;
  }
  static void Must(int result) {
    if (result != 0) End("error " + std::to_string(result) + " of the driver");
  }
  [[noreturn]] static void End(const std::string& why) {
    std::fprintf(stderr, "memory of several pieces: %s\n", why.c_str());
    std::abort();
  }
  template <class Function>
  void ForEachPiece(const Function& function) const {
    DeviceAddress at = address_;
    for (size_t i = 0; i < lengths_.size(); at += lengths_[i++])
      if (i != hole_) function(at, lengths_[i]);
  }

  const Driver& driver_;
  const std::vector<size_t> lengths_;
  const size_t hole_;
  DeviceAddress address_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tutti::cuda
