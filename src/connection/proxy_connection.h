#pragma once

// ProxyConnection: what a host kernel sees of a connection whose other end lies across a network.
//
// The kernel produces into (or consumes from) the connection's FIFO as if it were shared memory;
// the connection moves the chunks over the network. A thread that waits for the FIFO polls the
// connection meanwhile, so that the thread that needs the data also fetches it. When it goes to
// sleep, or leaves with chunks still on their way, it hands the connection over to the proxy's
// progress thread.

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "connection/fifo.h"

namespace tutti {

// Says what a kernel's thread that waits for connections does next.
enum class SleepAdvice : uint8_t {
  kSleep,     // It may sleep until one of the descriptors is ready.
  kGoOn,      // It looks again at once, because something has happened meanwhile.
  kHandOver,  // It hands the connection over, because the network has no descriptors.
};

class ProxyConnection {
 public:
  virtual ~ProxyConnection() = default;

  // Returns the FIFO that this connection empties (sending) or fills (receiving). It lives as long
  // as the connection.
  virtual FifoView fifo() const = 0;

  // Announces the next operation on this connection: exactly `chunks` chunks will pass, all marked
  // `op_tag`. Called by the kernel's thread before the first of them.
  virtual void Begin(uint64_t chunks, uint32_t op_tag) = 0;

  // Moves what can be moved without waiting. Returns true when something moved. Any thread may call
  // it; it returns false at once when another thread is polling this connection.
  virtual bool Poll() = 0;

  // Takes the connection back from the progress thread and appends what to wait for until it can go
  // on; nothing when no operation is under way. Called by the kernel's thread before it sleeps on
  // descriptors itself, which saves the way over another thread. The thread must call Poll or
  // HandOver afterwards.
  virtual SleepAdvice PrepareToSleep(std::vector<pollfd>& descriptors) = 0;

  // Hands the connection to the progress thread until every operation begun so far is done. Cheap
  // when there is nothing to do, and when that thread has the connection already.
  virtual void HandOver() = 0;

  // Returns how many chunks are done over the connection's life: sent, with their slots free again,
  // or announced to the kernel. Any thread may call it.
  virtual uint64_t ChunksDone() const = 0;

  // At the sending end, waits until the peer's host has everything that was published; at the
  // receiving end, returns at once. Gives up with Timeout when nothing has moved for `patience_ns`,
  // and when `stop` (may be null) is raised. REQUIRES: no other thread publishes meanwhile.
  virtual Status Flush(int64_t patience_ns, const std::atomic<bool>* stop) = 0;

  // Breaks the connection with `reason`; what was not sent is not sent any more. Any thread may
  // call it.
  virtual void Close(Status reason) = 0;

  // Returns an error once the connection is broken; it names the peer, its address, what was being
  // done and errno. Any thread may call it.
  virtual Status status() const = 0;
};

}  // namespace tutti
