#pragma once

// The RDMA connection manager (librdmacm) joins queue pairs of iWARP devices. A queue pair of iWARP
// runs over its own TCP connection, and only the kernel can make that connection. Queue pairs of
// InfiniBand and RoCE are joined without the manager (queue_pair.h).
//
// The end that awaits connections must not send before it has received: until then the peer's
// kernel still reads the set-up, and takes early data for an error.
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

// Tells where the manager awaits the connections of an end. The token proves that a connection
// belongs to the end.
struct ManagedAddress {
  uint16_t port = 0;  // 0: No connections are awaited.
  std::array<std::byte, 16> token = {};
};

// The connections of an end's queue pairs. They end with this object, which must therefore outlive
// the queue pairs.
class ManagedPairs {
 public:
  virtual ~ManagedPairs() = default;
  // Returns the address to which the peer connects; port 0 at the end that connects.
  virtual const ManagedAddress& address() const = 0;
  // Begins to connect. Fails at the end that awaits connections, and at the second call. REQUIRES:
  // the peer calls Progress from now on, because siw gives up a connection after 10 s without a
  // taker.
  virtual Status Begin() = 0;
  // Returns a descriptor that becomes readable when Progress has work.
  virtual int fd() const = 0;
  // Takes the events of the manager. Fails, also in later calls, when a connection could not be
  // made or has ended.
  virtual Status Progress() = 0;
  // Returns whether all queue pairs are joined.
  virtual bool joined() const = 0;
};

class RdmaManager {
 public:
  // Looks up the library of the name or path `file`. SystemError where the library is missing, or
  // was missing at the build.
  static Result<std::shared_ptr<const RdmaManager>> Load(const std::string& file);
  virtual ~RdmaManager() = default;

  // Returns the addresses of the network interface behind a port, as GIDs that are numbered from 0
  // on. Link-local addresses are left out, because they mean nothing to a different host.
  virtual Result<std::vector<Gid>> AddressesOf(std::string_view device, uint8_t port) const = 0;
  // Awaits a connection for each of the queue pairs, at an address that AddressesOf has returned.
  virtual Result<std::unique_ptr<ManagedPairs>> Listen(
      const Gid& at, const std::vector<uint32_t>& pairs) const = 0;
  // Returns connections that will join each queue pair with the peer's queue pair of the same
  // index, beginning with the call of Begin.
  virtual Result<std::unique_ptr<ManagedPairs>> PrepareToConnect(
      const Gid& from, const Gid& to, const ManagedAddress& address,
      const std::vector<uint32_t>& pairs) const = 0;
};

}  // namespace tutti
