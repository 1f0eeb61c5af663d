#pragma once

// ProxyConnection: a host kernel's view of a connection whose other end lies across a network.
//
// The kernel produces into (or consumes from) the connection's FIFO as if the FIFO were shared
// memory; the connection moves the chunks over the network. A thread that waits for the FIFO polls
// the connection meanwhile, so the thread that needs the data also fetches the data. When the
// thread goes to sleep, or leaves with chunks still on their way, it hands the connection over to
// the proxy's progress thread.
//
// After publishing into (or releasing from) the FIFO a thread calls Poll or HandOver: the progress
// thread sleeps in epoll and cannot see memory change. Poll's caller promises to come again, or to
// hand over before it sleeps or leaves. When the caller forgets, the progress thread looks by
// itself after a millisecond at the latest, provided that the connection was handed over since the
// operation began.

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "connection/fifo.h"

namespace tutti {

// The next step of a kernel's thread that waits for connections.
enum class SleepAdvice : uint8_t {
  kSleep,     // Sleep until a descriptor is ready.
  kGoOn,      // Look again at once: something has happened meanwhile.
  kHandOver,  // Hand the connection over: the network has no descriptors.
};

// A program that ends waits this long for its last chunks to move on. Where a fifth of all packets
// is lost, TCP may pause for more than ten seconds between two attempts. A peer that has ended, or
// whose host is silent, ends the wait before: the watch then stops the communicator.
inline constexpr int64_t kFlushNs = 60'000'000'000;

class ProxyConnection {
 public:
  // A sending connection first flushes, with kFlushNs as its patience, unless the connection failed
  // or was closed. REQUIRES: no other thread uses the connection any more.
  virtual ~ProxyConnection() = default;

  // Returns the FIFO that this connection empties (sending) or fills (receiving). The FIFO lives as
  // long as the connection.
  virtual FifoView fifo() const = 0;

  // Announces the next operation on this connection: exactly `chunks` chunks will pass, all marked
  // `op_tag`. Called by the kernel's thread before the first of them.
  virtual void Begin(uint64_t chunks, uint32_t op_tag) = 0;

  // Moves as much as can be moved without waiting. Returns true when something moved; false at once
  // when another thread is polling this connection. Any thread.
  virtual bool Poll() = 0;

  // Takes the connection back from the progress thread and appends the descriptors to wait for
  // until the connection can go on; nothing when no operation is under way. Called by the kernel's
  // thread before sleeping on descriptors itself, which saves the way over another thread. The
  // thread must call Poll or HandOver afterwards.
  virtual SleepAdvice PrepareToSleep(std::vector<pollfd>& descriptors) = 0;

  // Hands the connection to the progress thread until every operation begun so far is done. Cheap
  // when nothing is to be done, and when the progress thread has the connection already.
  virtual void HandOver() = 0;

  // Returns how many chunks are done over the connection's life: sent, with their slots free again,
  // or announced to the kernel. Any thread.
  virtual uint64_t ChunksDone() const = 0;

  // At the sending end, waits until the peer's host has everything published; at the receiving end,
  // returns at once. Gives up with Timeout when nothing has moved for `patience_ns`, and when
  // `stop` (may be null) is raised. REQUIRES: no other thread publishes meanwhile.
  virtual Status Flush(int64_t patience_ns, const std::atomic<bool>* stop) = 0;

  // Breaks the connection and makes `reason` the status of all present and later operations, unless
  // the connection has failed before. Unsent data is not sent any more. Wakes the threads that
  // sleep on the FIFO; a thread that was only about to sleep still sleeps until its time-out. Any
  // thread may call this function at any time but during destruction. Never waits.
  virtual void Close(Status reason) = 0;

  // Returns an error once the connection is broken, with the peer, its address, the attempted step
  // and errno. Any thread.
  virtual Status status() const = 0;

  // Returns a line about the connection: "sending to rank 1 on b: operation 0x2a, 3 of 8 chunks
  // done, 5 posted". Any thread.
  virtual std::string Describe() const = 0;
};

}  // namespace tutti
