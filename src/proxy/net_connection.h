#pragma once

// NetConnection: a proxy connection as the communicator sees it, which makes, watches and closes
// the connection. Kernels see only ProxyConnection (connection/proxy_connection.h).
//
// After publishing into (or releasing from) the FIFO a thread calls Poll or HandOver: the progress
// thread sleeps in epoll and cannot see memory change. Poll's caller promises to come again, or to
// hand over before it sleeps or leaves. When the caller forgets, the progress thread looks by
// itself after a millisecond at the latest, provided that the connection was handed over since the
// operation began.

#include <string>

#include "base/status.h"
#include "connection/proxy_connection.h"

namespace tutti {

class NetConnection : public ProxyConnection {
 public:
  // Destroying a sending connection first flushes it, with kFlushNs as its patience, unless the
  // connection failed or was closed. REQUIRES: no other thread uses the connection any more.

  // Breaks the connection and makes `reason` the status of all present and later operations, unless
  // the connection has failed before. Wakes the threads that sleep on the FIFO; a thread that was
  // only about to sleep still sleeps until its time-out. Any thread may call this function at any
  // time but during destruction. Never waits.
  void Close(Status reason) override = 0;

  // Returns a line for a stall report: "sending to rank 1 on b: operation 0x2a, 3 of 8 chunks done,
  // 5 posted". Any thread.
  virtual std::string Describe() const = 0;
};

// A program that ends waits this long for its last chunks to move on. Where a fifth of all packets
// is lost, TCP may pause for more than ten seconds between two attempts. A peer that has ended, or
// whose host is silent, ends the wait before: the watch then stops the communicator.
inline constexpr int64_t kFlushNs = 60'000'000'000;

}  // namespace tutti
