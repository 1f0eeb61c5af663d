#pragma once

// A connection to a rank of another host for one-sided operations. Operations of this rank are
// driven by the thread that wants them done; what the peer does to this rank's memory is served by
// the progress thread of the process's proxy, since the user's threads take no part in it.
//
//   thread that puts or waits            progress thread (epoll)
//   Inside ─ Put, Progress …             descriptor ready ─ Progress, arm the descriptors again
//
// While a thread is inside, the progress thread leaves the connection alone, so that each
// message wakes one thread. Descriptors are armed for one event at a time (EPOLLONESHOT).

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
  // Ends to serve the peer. REQUIRES: no other thread uses the connection any more.
  ~RmaConnection();
  RmaConnection(const RmaConnection&) = delete;
  RmaConnection& operator=(const RmaConnection&) = delete;

  // Makes memory reachable to the peer until what is returned is given to End.
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) TUTTI_EXCLUDES(mutex_);
  void End(std::unique_ptr<NetMemory> memory) TUTTI_EXCLUDES(mutex_);

  // Keeps the progress thread away while it lives. Threads may be inside at the same time.
  class Inside {
   public:
    explicit Inside(RmaConnection& connection) : connection_(connection) { connection_.Enter(); }
    ~Inside() { connection_.Leave(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    RmaConnection& connection_;
  };

  // The functions that follow REQUIRE: the caller is inside.

  // Begins to put `data` to `to`, and `signal` after it unless it is null. Returns null when there
  // is no room now.
  Result<NetRequest*> Put(NetLocal from, NetRemote to, size_t bytes, const NetSignal* signal)
      TUTTI_EXCLUDES(mutex_);
  Result<NetRequest*> Get(NetLocal to, NetRemote from, size_t bytes) TUTTI_EXCLUDES(mutex_);
  Result<NetRequest*> Flush() TUTTI_EXCLUDES(mutex_);
  // Moves what can be moved now. Returns true when something moved.
  Result<bool> Progress() TUTTI_EXCLUDES(mutex_);
  Result<bool> Test(NetRequest& request) TUTTI_EXCLUDES(mutex_);
  // Breaks the connection: nothing of it is read or written any more, whatever is under way.
  void Break() TUTTI_EXCLUDES(mutex_);
  // Sleeps until Progress may achieve something, at most `timeout_ns`.
  void Sleep(int64_t timeout_ns) TUTTI_EXCLUDES(mutex_);

 private:
  // A descriptor of the connection, as the event loop sees it.
  struct Descriptor {
    int fd = -1;
    bool added = false;
  };

  void Enter() TUTTI_EXCLUDES(mutex_);
  void Leave() TUTTI_EXCLUDES(mutex_);
  void Serve() TUTTI_EXCLUDES(mutex_);
  void Arm() TUTTI_REQUIRES(mutex_);
  void ServeLater(int64_t delay_ns) TUTTI_REQUIRES(mutex_);

  EventLoop& loop_;
  Mutex mutex_;
  const std::unique_ptr<NetRmaComm> comm_ TUTTI_PT_GUARDED_BY(mutex_);
  std::vector<Descriptor> descriptors_ TUTTI_GUARDED_BY(mutex_);
  std::vector<NetWait> waits_ TUTTI_GUARDED_BY(mutex_);
  int num_inside_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool broken_ TUTTI_GUARDED_BY(mutex_) = false;
  EventLoop::TimerId timer_ TUTTI_GUARDED_BY(mutex_) = 0;
};

}  // namespace tutti
