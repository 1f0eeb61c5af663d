#pragma once

// AcceptLimit: a bound on the connections of one event loop whose other end has not yet proved who
// it is, whichever listening socket they came to.
//
// Whoever reaches this host can open such connections, so together they hold a small share of the
// descriptors that the process may have, and the limit of descriptors is never raised for them: a
// program that uses select(2), or that opens files of its own, must not notice a flood. When the
// share is used up the connection that came first is closed, so that a flood cannot lock ranks out.
//
// It also holds one descriptor in reserve. A process that has used up its descriptors gives that
// one up to accept one more connection, and so finds out that a rank wants to reach it in vain; or
// to connect to another rank and tell it why it cannot go on.
//
// Root::Create bounds the ids that nobody has used in the same way.
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
  // Returns whether there is a connection and the first has had `grace_ns` to prove itself.
  bool FirstHad(int64_t grace_ns) const;
  // Counts a new connection, which `close` closes; `close` may call Leave. Closes the first one
  // when the limit is reached.
  Number Enter(std::function<void()> close);
  // Notes that the connection has proved itself, or is gone. Has no effect when it was closed by
  // this.
  void Leave(Number number) { here_.erase(number); }
  // Closes the connection that came first. Returns false when there is none.
  bool CloseFirst();

  // Closes the descriptor in reserve, so that another can be opened. Returns false when there is
  // none.
  bool ReleaseReserve();
  // Opens the descriptor in reserve if there is none. Returns whether there is one now.
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
