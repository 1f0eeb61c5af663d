#pragma once

// A connection to a rank of another host for one-sided operations. An operation is driven by its
// waiting thread. The progress thread of the process's proxy serves the peer's operations on this
// rank's memory, because the user's threads take no part in them.
//
//   thread that puts or waits            progress thread (epoll)
//   Inside ─ Put, Progress …             descriptor ready ─ Progress, arm the descriptors again
//
// While a thread is inside, the progress thread leaves the connection alone: a message wakes a
// single thread. The progress thread also stays away for a moment after a thread has attended to
// the connection: kernels put and wait in turns, and handing the connection over between two
// operations would cost more than an operation. Descriptors are armed for one event at a time
// (EPOLLONESHOT).

#include <poll.h>
#include <sys/epoll.h>

#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "sys/event_loop.h"
#include "transport/net/rma.h"

namespace tutti {

class RmaConnection {
 public:
  // Begins to serve the peer. `loop` outlives the connection.
  RmaConnection(EventLoop& loop, std::unique_ptr<NetRmaComm> comm);
  // Stops serving the peer. REQUIRES: no other thread uses the connection any more.
  ~RmaConnection();
  RmaConnection(const RmaConnection&) = delete;
  RmaConnection& operator=(const RmaConnection&) = delete;

  // Makes memory reachable to the peer until End is called for the result.
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) TUTTI_EXCLUDES(mutex_);
  void End(std::unique_ptr<NetMemory> memory) TUTTI_EXCLUDES(mutex_);

  // Keeps the progress thread away. Several threads may be inside at the same time.
  class Inside {
   public:
    explicit Inside(RmaConnection& connection) : connection_(connection) { connection_.Enter(); }
    ~Inside() { connection_.Leave(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

    // Keeps the progress thread away for a moment after the thread has left.
    void Linger() { connection_.Linger(); }

   private:
    RmaConnection& connection_;
  };

  // Moves all data that can be moved now, for a thread outside that will come again soon. Returns
  // true when data moved. Every call fails alike once the connection is broken.
  Result<bool> Attend() TUTTI_EXCLUDES(mutex_);

  // Sleeps until a connection may have data to move, at most `timeout_ns`. Meanwhile the progress
  // thread leaves the connections alone. REQUIRES: the caller has attended to them.
  static void SleepOn(std::span<RmaConnection* const> connections, int64_t timeout_ns);

  // REQUIRES, of all functions below: the caller is inside.

  // Begins to put `data` to `to`, and `signal` after the data unless it is null. Returns null when
  // the connection has no room now.
  Result<NetRequest*> Put(NetLocal from, NetRemote to, size_t bytes, const NetSignal* signal)
      TUTTI_EXCLUDES(mutex_);
  Result<NetRequest*> Get(NetLocal to, NetRemote from, size_t bytes) TUTTI_EXCLUDES(mutex_);
  Result<NetRequest*> Flush() TUTTI_EXCLUDES(mutex_);
  // Moves all data that can be moved now. Returns true when data moved.
  Result<bool> Progress() TUTTI_EXCLUDES(mutex_);
  Result<bool> Test(NetRequest& request) TUTTI_EXCLUDES(mutex_);
  // Breaks the connection: operations under way read and write nothing any more.
  void Break() TUTTI_EXCLUDES(mutex_);
  // Sleeps until Progress may achieve something, at most `timeout_ns`.
  void Sleep(int64_t timeout_ns) TUTTI_EXCLUDES(mutex_);

 private:
  // A descriptor of the connection for the event loop.
  struct Descriptor {
    int fd = -1;
    bool added = false;
  };

  void Enter() TUTTI_EXCLUDES(mutex_);
  void Leave() TUTTI_EXCLUDES(mutex_);
  void Linger() TUTTI_EXCLUDES(mutex_);
  void NoteAttention() TUTTI_REQUIRES(mutex_);
  // Adds the descriptors on which the connection waits. Returns false where it has data to move
  // now.
  bool AppendWaits(std::vector<pollfd>& descriptors) TUTTI_EXCLUDES(mutex_);
  void OnTimer() TUTTI_EXCLUDES(mutex_);
  void OnReady() TUTTI_EXCLUDES(mutex_);
  void Serve() TUTTI_REQUIRES(mutex_);
  void Arm() TUTTI_REQUIRES(mutex_);
  void ServeLater(int64_t delay_ns) TUTTI_REQUIRES(mutex_);

  EventLoop& loop_;
  Mutex mutex_;
  const std::unique_ptr<NetRmaComm> comm_ TUTTI_PT_GUARDED_BY(mutex_);
  std::vector<Descriptor> descriptors_ TUTTI_GUARDED_BY(mutex_);
  std::vector<NetWait> waits_ TUTTI_GUARDED_BY(mutex_);
  int num_inside_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool broken_ TUTTI_GUARDED_BY(mutex_) = false;
  // Says that a thread has attended to the connection since the timer was last due. The timer is
  // set then.
  bool attended_ TUTTI_GUARDED_BY(mutex_) = false;
  EventLoop::TimerId timer_ TUTTI_GUARDED_BY(mutex_) = 0;
};

}  // namespace tutti
