#pragma once

// TCP sockets: addresses, listening, connecting, and moving whole buffers, with a deadline on every
// wait.
//
// (Not called socket.h, because the system has a <sys/socket.h>.)
//
// Every socket made here is non-blocking, close-on-exec and sends small messages at once
// (TCP_NODELAY). A peer's death never raises SIGPIPE. Calls are restarted after signals. Functions
// hold no state; a descriptor is used by one thread at a time in each direction.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "config/settings.h"

struct sockaddr;
struct sockaddr_storage;

namespace tutti {

// An IPv4 or IPv6 address with a port. A plain value.
struct SocketAddress {
  uint16_t family = 0;                 // 4 or 6; 0: none
  uint16_t port = 0;                   // host byte order
  uint32_t scope_id = 0;               // For an IPv6 link-local address: the interface's index.
  std::array<uint8_t, 16> bytes = {};  // network byte order; the first 4 for IPv4

  bool operator==(const SocketAddress&) const = default;
  bool valid() const { return family == 4 || family == 6; }
  bool IsLoopback() const;
  bool IsLinkLocal() const;  // IPv6 fe80::/10 only: needs a scope to be reached
  bool IsWildcard() const;   // 0.0.0.0 or ::
  // Returns a text such as "10.0.0.1:5" or "[fe80::1%eth0]:5".
  std::string ToString() const;
  // Returns the text without the port.
  std::string HostText() const;

  // Writes `out` and returns the length for connect(2) and bind(2).
  uint32_t ToSockaddr(sockaddr_storage& out) const;
  // family 0 when `address` is null or of another family.
  static SocketAddress FromSockaddr(const sockaddr* address);
};

// Reads "1.2.3.4:5", "[v6]:5", "[v6%interface]:5" or "name:5"; a name is looked up, which may
// block. `family` 4 or 6 admits only that family, 0 any. InvalidArgument says what is wrong with
// the text.
Result<SocketAddress> ParseSocketAddress(std::string_view text, int family = 0);

// What ends a wait: a deadline, an abort flag, and a function that follows the wait.
struct WaitLimits {
  Deadline deadline = Deadline::Never();
  const std::atomic<bool>* abort_flag = nullptr;  // looked at every kAbortCheckMs
  // Is called every kAbortCheckMs. A status that is not ok ends the wait, and is its result.
  const std::function<Status()>* follow = nullptr;

  Status Follow() const { return follow ? (*follow)() : Status::Ok(); }
  bool Aborted() const { return abort_flag && abort_flag->load(std::memory_order_acquire); }
  bool Over() const { return Aborted() || deadline.Passed() || !Follow().ok(); }
  // Returns these limits with at most `duration_ns` from now on.
  WaitLimits Within(int64_t duration_ns) const {
    return {deadline.at_ns() - NowNs() > duration_ns ? Deadline::After(duration_ns) : deadline,
            abort_flag, follow};
  }
};
// A wait notices its abort flag after this time: short for a person, and 20 wake-ups a second cost
// nothing.
inline constexpr int kAbortCheckMs = 50;

// Listens at `address`. A port of 0 becomes a port of `range` (the search starts at a random place,
// because ranks of the same host must not all try the same ports); any other port is taken as it
// is. `address` tells the port on return. `error` (when given) tells the errno of a failure.
Result<UniqueFd> Listen(SocketAddress& address, PortRange range = {}, int* error = nullptr);

// Listens at an address and port at which other processes of this user may listen, too: the kernel
// gives each of them a share of the connections.
Result<UniqueFd> ListenShared(const SocketAddress& address);

// Accepts a waiting connection. Returns an invalid descriptor when none waits; fails with the errno
// in `error` (when given) when the process is short of something. Raises no limit, because the
// connection may not be a rank's.
Result<UniqueFd> Accept(int listen_fd, SocketAddress* peer, int* error = nullptr);

// Starts to connect; raises the process's limit of descriptors when it is reached. The socket
// becomes writable when the attempt ended; then ask ConnectOutcome. `*error` (may be null) is the
// errno of a failure.
Result<UniqueFd> StartConnect(const SocketAddress& address, int* error = nullptr);
// Returns whether an attempt to connect failed for a shortage of this process or host (descriptors,
// memory, free ports). Such a failure says nothing about the other end.
bool IsLackOfResources(int error);
// Returns the outcome of an attempt to connect as an errno value; 0: connected.
int ConnectOutcome(int fd);
// Ends a connection by a reset, which the other end can tell from an orderly end. The descriptor
// stays open and wakes its waiting threads. Sockets other than TCP's are ended in order.
void ResetConnection(int fd);
// Connects, waiting. `error` (when given) tells the errno of the failure, ETIMEDOUT for the
// deadline.
Result<UniqueFd> Connect(const SocketAddress& address, const WaitLimits& limits,
                         int* error = nullptr);

// Waits until poll(2) reports any of `events` (or an error) on `fd`. `what` begins the failure's
// sentence.
Status WaitReady(int fd, short events, const WaitLimits& limits, std::string_view what);
Status SendAll(int fd, std::span<const std::byte> data, const WaitLimits& limits);
// Receives all of `data`. Returns RemoteError when the other end closes first.
Status RecvAll(int fd, std::span<std::byte> data, const WaitLimits& limits);

// Send or receive once without waiting. Return the bytes moved, 0 where nothing could be moved now.
// TryRecv returns kEndOfStream at the end of the stream.
inline constexpr int64_t kEndOfStream = -1;
Result<size_t> TrySend(int fd, std::span<const std::byte> data);
Result<int64_t> TryRecv(int fd, std::span<std::byte> data);

Result<SocketAddress> LocalAddress(int fd);
// Takes a connection within this host from BBR, where BBR is the system's congestion control. BBR
// spaces out its packets and lets little through while it probes, which holds messages up by
// milliseconds, and a connection within a host needs no probes. Other connections stay as they are.
void DoNotPaceWithinHost(int fd);
// Returns the address this host would use to talk to `peer`: asks the routing table, sends nothing.
// Port 0.
Result<SocketAddress> SourceAddressFor(const SocketAddress& peer);

}  // namespace tutti
