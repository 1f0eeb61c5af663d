#pragma once

// ProxyConnection: what a host kernel sees of a connection whose other end lies across a network.
//
// The kernel produces into (or consumes from) the port's FIFO as if it were shared memory; the port
// moves the chunks over the network. Whoever waits for the FIFO polls the port in the meantime, so
// that the thread that needs the data also fetches it; when it goes to sleep, or leaves with chunks
// still on their way, it hands the port over to the proxy's progress thread.

#include <cstdint>

#include "base/status.h"
#include "connection/fifo.h"

namespace tutti {

class ProxyConnection {
 public:
  virtual ~ProxyConnection() = default;

  // The ring this port empties (sending) or fills (receiving). Valid as long as the port.
  virtual FifoView fifo() const = 0;

  // Announces the next operation on this connection: exactly `chunks` chunks will pass, all marked
  // `op_tag`. Called by the kernel's thread before the first of them.
  virtual void Begin(uint64_t chunks, uint32_t op_tag) = 0;

  // Moves what can be moved without waiting. True when something moved. Any thread; returns false
  // at once when another thread is polling this port.
  virtual bool Poll() = 0;

  // Hands the port to the progress thread until every operation begun so far is done. Cheap when
  // there is nothing to do, and when it already has it.
  virtual void HandOver() = 0;

  // Breaks the connection with `reason`: what was not sent is not sent any more. Any thread.
  virtual void Close(Status reason) = 0;

  // Not ok once the connection is broken; says the peer, its address, what was being done and
  // errno. Any thread.
  virtual Status status() const = 0;
};

}  // namespace tutti
