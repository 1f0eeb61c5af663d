#pragma once

// AcceptLimit: a bound on the unproved connections of an event loop, over all its listening sockets
// together. A connection is unproved until its other end has shown that it holds the key.
//
// Anybody who reaches this host can open such connections. Together they therefore hold a small
// share of the process's descriptors, and the limit of descriptors is never raised for them: a
// program that uses select(2), or that opens files of its own, must not notice a flood. When the
// share is used up the oldest connection is closed, so a flood cannot lock ranks out.
//
// The limit also holds a descriptor in reserve. A process without further descriptors gives up the
// reserve to accept one more connection, and so learns that a rank tries in vain to reach this
// process; or to connect to another rank and tell the reason why this rank cannot go on.
//
// Root::Create bounds unused ids in the same way.
//
// Threads: belongs to the loop; used on the loop's thread only.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "base/unique_fd.h"

namespace tutti {

class AcceptLimit {
 public:
  using Number = uint64_t;

  explicit AcceptLimit(size_t limit) : limit_(limit) {}

  // Returns the share of a process that may have `descriptors`: a quarter, because a process has
  // two loops that take connections, and half of its descriptors must stay its own.
  static size_t ShareOf(uint64_t descriptors);

  size_t limit() const { return limit_; }
  size_t size() const { return here_.size(); }
  // Returns whether another connection may be accepted now: fewer than the limit are open, or the
  // first has had `grace_ns` to prove itself.
  bool Admits(int64_t grace_ns) const;
  // Returns whether a connection exists and the first has had `grace_ns` to prove itself.
  bool FirstHad(int64_t grace_ns) const;
  // Counts a new connection, which `close` closes; `close` may call Leave. Closes the oldest
  // connection when the limit is reached.
  Number Enter(std::function<void()> close);
  // Notes that the connection has proved itself, or is gone. Has no effect when the limit has
  // closed the connection.
  void Leave(Number number) { here_.erase(number); }
  // Closes the oldest connection. Returns false without any.
  bool CloseFirst();

  // Closes the descriptor in reserve, so that another can be opened. Returns false without a
  // reserve.
  bool ReleaseReserve();
  // Opens the descriptor in reserve if it is closed. Returns whether it is open now.
  bool RestoreReserve();

 private:
  struct Connection {
    int64_t entered_ns;
    std::function<void()> close;
  };
  const size_t limit_;
  Number next_ = 1;
  std::map<Number, Connection> here_;  // They are in the order of their arrival.
  UniqueFd reserve_;
};

}  // namespace tutti
