#pragma once

// Describes memory for a network. Sockets take any memory of the host. A network that moves bytes
// without the processor must know the memory beforehand.
//
//   NetRegion (address, bytes, kind, perhaps a DMA-BUF) ── comm.Register ──▶ NetMemory
//
// Registering pins pages and takes tens of microseconds to milliseconds. Networks therefore keep a
// cache: a region within a registered region costs a look-up.

#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti {

enum class NetMemoryKind : uint8_t { kHost, kGpu };

// A range of the caller's memory.
struct NetRegion {
  std::byte* address = nullptr;
  size_t bytes = 0;
  NetMemoryKind kind = NetMemoryKind::kHost;
  // A DMA-BUF whose bytes from `dmabuf_offset` on are the range, or -1 to register by address. The
  // caller keeps the descriptor and may close it after Register has returned.
  int dmabuf_fd = -1;
  uint64_t dmabuf_offset = 0;
  // Says that peers add signals to words of the range. A NIC must not write such a word before the
  // bytes of its earlier writes.
  bool holds_signals = false;
};

// Names a registered range to another process, which reaches the range by one-sided operations
// (rma.h). The key is opaque, has a fixed size and is sent over the bootstrap. A key is no secret:
// a network admits only processes with the job's key.
using NetRemoteKey = std::array<std::byte, 64>;

// A registered range. The destructor ends the registration. REQUIRES: a NetMemory is destroyed
// before the comm that made it, and after the last request that uses it.
class NetMemory {
 public:
  virtual ~NetMemory() = default;

  NetMemory(const NetMemory&) = delete;
  NetMemory& operator=(const NetMemory&) = delete;

  const NetRegion& region() const { return region_; }
  // Returns the key by which the other end of the comm reaches the range. The key is all zeroes
  // where the range was registered for sends and receives only.
  virtual NetRemoteKey remote_key() const { return {}; }

 protected:
  explicit NetMemory(const NetRegion& region) : region_(region) {}

 private:
  const NetRegion region_;
};

// The registration in a network that takes memory without preparation.
class PlainNetMemory final : public NetMemory {
 public:
  explicit PlainNetMemory(const NetRegion& region) : NetMemory(region) {}
};

}  // namespace tutti
