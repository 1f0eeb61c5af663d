#pragma once

// The RDMA connection manager (librdmacm), by which queue pairs of iWARP devices are joined. These
// run over a TCP connection of their own, which only the kernel can make for them; those of
// InfiniBand and RoCE are joined without it (queue_pair.h).
//
// The end that awaits connections must be sent to before it sends: until then the other end's
// kernel still reads the set-up, and takes what comes ahead of time for an error.
//
// Threads: RdmaManager from any, ManagedPairs one at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/net/verbs/gid.h"

namespace tutti {

// Tells where the manager awaits the connections of an end, and proves that they belong to it.
struct ManagedAddress {
  uint16_t port = 0;  // 0: nothing is awaited
  std::array<std::byte, 16> token = {};
};

// The queue pairs of one end. What they were joined by ends with this object, which must therefore
// outlive them.
class ManagedPairs {
 public:
  virtual ~ManagedPairs() = default;
  // Where the other end connects to; port 0 for the end that connects.
  virtual const ManagedAddress& address() const = 0;
  // Has the end that connects begin; fails when it has begun before, and at the other end. That
  // end must call Progress from now on: siw gives a connection up that is not taken for 10 s.
  virtual Status Begin() = 0;
  // Becomes readable when Progress has something to do.
  virtual int fd() const = 0;
  // Takes what the manager reports. Fails, also later, when a connection could not be made or has
  // ended.
  virtual Status Progress() = 0;
  virtual bool joined() const = 0;  // all of them
};

class RdmaManager {
 public:
  // Looks up the library of the name or path `file`. SystemError where it is not there, or was not
  // when this was built.
  static Result<std::shared_ptr<const RdmaManager>> Load(const std::string& file);
  virtual ~RdmaManager() = default;

  // Returns the addresses of the network interface behind a port, as GIDs that are numbered from 0
  // on. Link-local ones, which mean nothing to another host, are left out.
  virtual Result<std::vector<Gid>> AddressesOf(std::string_view device, uint8_t port) const = 0;
  // Awaits, at one of these addresses, a connection for each of the queue pairs.
  virtual Result<std::unique_ptr<ManagedPairs>> Listen(
      const Gid& at, const std::vector<uint32_t>& pairs) const = 0;
  // Returns what connects each of the queue pairs with that of its place at the other end, from
  // Begin on.
  virtual Result<std::unique_ptr<ManagedPairs>> PrepareToConnect(
      const Gid& from, const Gid& to, const ManagedAddress& address,
      const std::vector<uint32_t>& pairs) const = 0;
};

}  // namespace tutti
