#pragma once

// NetConnection: a proxy connection as the communicator sees it, which makes, watches and closes
// it. Kernels see only ProxyConnection (connection/proxy_connection.h).
//
// Whoever publishes into (or releases from) the FIFO afterwards calls Poll or HandOver: the
// progress thread sleeps in epoll and cannot see memory change. Poll's caller promises to come
// again, or to hand over before it sleeps or leaves. If it forgets, the progress thread looks by
// itself after a millisecond at the latest, provided that the connection was handed over since the
// operation began.

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "connection/proxy_connection.h"

namespace tutti {

class NetConnection : public ProxyConnection {
 public:
  // Destroying a sending connection first sends what was published, for at most kFlushNs, unless it
  // failed or was closed. REQUIRES: no other thread uses the connection any more.

  // Breaks the connection and makes `reason` the status of what is under way and of all that
  // follows, unless it has failed before. Wakes the threads that sleep on the FIFO; one that was
  // only about to sleep still sleeps until its time-out. Any thread may call it at any time but
  // during destruction. Never waits.
  void Close(Status reason) override = 0;

  // At the sending end, waits until the peer's host has everything that was published. At the
  // receiving end, returns at once. REQUIRES: no other thread publishes meanwhile.
  virtual Status Flush(Deadline deadline) = 0;

  // Returns a line for a stall report: "sending to rank 1 on b: operation 0x2a, 3 of 8 chunks done,
  // 5 posted". Any thread may call it.
  virtual std::string Describe() const = 0;
};

// A program that ends while its peer is still busy elsewhere must not lose its last chunks, nor
// hang for ever.
inline constexpr int64_t kFlushNs = 10'000'000'000;

}  // namespace tutti
