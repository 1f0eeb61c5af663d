#pragma once

// The memory that a network reads from and writes to. Sockets take any memory of the host; a
// network that moves bytes without the processor must know the memory beforehand.
//
//   NetRegion (address, bytes, kind, perhaps a DMA-BUF) ── comm.Register ──▶ NetMemory
//
// Registering pins pages and takes tens of microseconds to milliseconds, so networks keep a cache:
// a region that lies within one that is still registered costs a look-up.

#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti {

enum class NetMemoryKind : uint8_t { kHost, kGpu };

// A range of memory, as the caller has it.
struct NetRegion {
  std::byte* address = nullptr;
  size_t bytes = 0;
  NetMemoryKind kind = NetMemoryKind::kHost;
  // A DMA-BUF that holds the range from `dmabuf_offset` on, or -1: register by address. The caller
  // keeps the descriptor, and may close it once Register has returned.
  int dmabuf_fd = -1;
  uint64_t dmabuf_offset = 0;
  // Signals are added to words of it: a NIC must not write these ahead of what it has written
  // before.
  bool holds_signals = false;
};

// What another process needs in order to reach a registered range by one-sided operations
// (rma.h): opaque, of fixed size, sent over the bootstrap. It names a range and is no secret: a
// network admits nobody who has not proven the job's key.
using NetRemoteKey = std::array<std::byte, 64>;

// A registered range. Destroying it ends the registration. REQUIRES: it is destroyed before the
// comm that made it, and after the last request that uses it.
class NetMemory {
 public:
  virtual ~NetMemory() = default;

  NetMemory(const NetMemory&) = delete;
  NetMemory& operator=(const NetMemory&) = delete;

  const NetRegion& region() const { return region_; }
  // Returns the key by which the other end of the comm reaches the range. All zeroes where the
  // range was registered for sends and receives only.
  virtual NetRemoteKey remote_key() const { return {}; }

 protected:
  explicit NetMemory(const NetRegion& region) : region_(region) {}

 private:
  const NetRegion region_;
};

// The registration of a network that takes memory as it is.
class PlainNetMemory final : public NetMemory {
 public:
  explicit PlainNetMemory(const NetRegion& region) : NetMemory(region) {}
};

}  // namespace tutti
