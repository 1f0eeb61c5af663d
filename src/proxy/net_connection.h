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

#include "base/status.h"
#include "connection/proxy_connection.h"

namespace tutti {

class NetConnection : public ProxyConnection {
 public:
  // Destroying a sending connection first flushes it, with kFlushNs as its patience, unless it
  // failed or was closed. REQUIRES: no other thread uses the connection any more.

  // Breaks the connection and makes `reason` the status of what is under way and of all that
  // follows, unless it has failed before. Wakes the threads that sleep on the FIFO; one that was
  // only about to sleep still sleeps until its time-out. Any thread may call it at any time but
  // during destruction. Never waits.
  void Close(Status reason) override = 0;

  // Returns a line for a stall report: "sending to rank 1 on b: operation 0x2a, 3 of 8 chunks done,
  // 5 posted". Any thread may call it.
  virtual std::string Describe() const = 0;
};

// A program that ends waits so long for its last chunks to move on. Where a fifth of all packets
// is lost, TCP may pause for more than ten seconds between two attempts. A peer that has ended, or
// whose host is silent, ends the wait before: the watch then stops the communicator.
inline constexpr int64_t kFlushNs = 60'000'000'000;

}  // namespace tutti
