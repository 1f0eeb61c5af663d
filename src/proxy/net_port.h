#pragma once

// NetPort: a ProxyConnection as the communicator sees it, which makes, watches and closes it. Kernels see
// only ProxyConnection (connection/proxy_connection.h).
//
// Whoever publishes into (or releases from) the FIFO afterwards calls Poll or HandOver: the
// progress thread sleeps in epoll and cannot see memory change. Poll's caller promises to come
// again, or to hand over before it sleeps or leaves; should it forget, the progress thread looks by
// itself after a millisecond at the latest, provided that the port was handed over since the
// operation began.

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "connection/proxy_connection.h"

namespace tutti {

class NetPort : public ProxyConnection {
 public:
  // Destroying a sending port first sends what was published, for at most kFlushNs, unless it
  // failed or was closed. REQUIRES: no other thread uses the port any more.

  // Breaks the connection and makes `reason` the status of what is under way and of all that
  // follows, unless it has failed before. Sleepers on the FIFO wake; who was only about to sleep
  // sleeps out its time-out. Any thread, any time but during destruction; never waits.
  void Close(Status reason) override = 0;

  // Sending: waits until all that was published has been handed to the network and the peer's host
  // has it. Receiving: returns at once. Not while another thread publishes.
  virtual Status Flush(Deadline deadline) = 0;

  // One line for a stall report: "sending to rank 1 on b: operation 0x2a, 3 of 8 chunks done, 5
  // posted". Any thread.
  virtual std::string Describe() const = 0;
};

// A program that ends while its peer is still busy elsewhere must not lose its last chunks, nor
// hang for ever.
inline constexpr int64_t kFlushNs = 10'000'000'000;

}  // namespace tutti
