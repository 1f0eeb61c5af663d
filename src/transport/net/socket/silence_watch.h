#pragma once

// SilenceWatch: finds connections whose other host acknowledges nothing any more without notice, as
// after a pulled cable, or behind a switch or firewall that swallows packets. Silence means silence
// of the other host's kernel (sys/silence.h): a stopped or slow process is not silent.
//
// The kernel itself probes idle connections. Connections with unacknowledged data are examined from
// time to time on an event loop, but only while data move or wait for an acknowledgement. Idle
// connections therefore wake nobody.
//
// Threads: any. The subjects are examined on the loop's thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "sys/event_loop.h"

namespace tutti {

class SilenceWatch : public std::enable_shared_from_this<SilenceWatch> {
 public:
  class Subject {
   public:
    virtual ~Subject() = default;
    // Ends the subject's sockets if the other host has been silent for `dead_after_ns`. Returns
    // whether the subject waits for an answer.
    virtual bool LookForSilence(int64_t now_ns, int64_t dead_after_ns) = 0;
  };

  // `loop` must outlive the last connection.
  SilenceWatch(EventLoop& loop, int dead_after_s) : loop_(loop), dead_after_s_(dead_after_s) {}

  // Makes the kernel probe the socket while it is idle, and, within a host, send all messages
  // without pauses.
  Status Prepare(int fd) const;
  void Add(Subject* subject);
  // When Remove returns, the subject is not examined any more.
  void Remove(Subject* subject);
  // Notes that data may have been sent. Costs next to nothing.
  void NoteActivity() {
    if (!active_.load(std::memory_order_relaxed)) active_.store(true);
    if (!ticking_.load()) Start();
  }

 private:
  void Start();
  void Tick();

  EventLoop& loop_;
  const int dead_after_s_;
  // NoteActivity stores active_ and then loads ticking_; Tick stores ticking_ and then loads
  // active_. A noted activity is therefore always followed by a tick.
  std::atomic<bool> active_ = false;
  std::atomic<bool> ticking_ = false;
  Mutex mutex_;
  std::vector<Subject*> subjects_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
