#pragma once

// SilenceWatch: finds the connections of a network whose other host acknowledges nothing any more,
// though nobody has said that it is gone: a cable that is pulled, a switch or firewall that
// swallows packets. What counts is the other host's kernel (sys/silence.h): a process that is
// stopped or slow is not silent.
//
// The kernel itself probes connections that are idle. Those with something unanswered are looked at
// from time to time on an event loop, but only as long as something moves or is unanswered, so that
// idle connections wake nobody.
//
// Threads: any; the subjects are looked at on the loop's thread.

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
    // Ends its sockets if the other host has been silent for `dead_after_ns`. Returns whether it
    // waits for an answer.
    virtual bool LookForSilence(int64_t now_ns, int64_t dead_after_ns) = 0;
  };

  // `loop` must outlive the last connection.
  SilenceWatch(EventLoop& loop, int dead_after_s) : loop_(loop), dead_after_s_(dead_after_s) {}

  // Makes the kernel probe a socket that is idle, and send what is small at once, and within a host
  // all without pauses.
  Status Prepare(int fd) const;
  void Add(Subject* subject);
  // When this returns, the subject is not looked at any more.
  void Remove(Subject* subject);
  // Notes that something may have been sent. Costs next to nothing.
  void NoteActivity() {
    if (!active_.load(std::memory_order_relaxed)) active_.store(true);
    if (!ticking_.load()) Start();
  }

 private:
  void Start();
  void Tick();

  EventLoop& loop_;
  const int dead_after_s_;
  // NoteActivity stores the first and loads the second, Tick does the reverse: either a tick
  // follows, or it is begun.
  std::atomic<bool> active_ = false;
  std::atomic<bool> ticking_ = false;
  Mutex mutex_;
  std::vector<Subject*> subjects_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
