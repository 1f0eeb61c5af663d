#pragma once

// Guests: the connections of one event loop whose other end has not proved yet who it is, whichever
// listening socket they came to.
//
// Whoever reaches this host can open such connections, so together they hold a small share of the
// descriptors that the process may have, and the limit is never raised for them: a program that
// uses select(2), or that opens files of its own, must not notice a flood. When the share is used
// up the guest that came first gives way, so that a flood cannot lock ranks out.
//
// Threads: belongs to the loop; used on the loop's thread only.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

namespace tutti {

class Guests {
 public:
  using Number = uint64_t;

  explicit Guests(size_t limit) : limit_(limit) {}

  // The share of a process that may have `descriptors`: a quarter, because a process has two loops
  // that take connections, and half of its descriptors must stay its own.
  static size_t ShareOf(uint64_t descriptors);

  size_t limit() const { return limit_; }
  size_t size() const { return here_.size(); }
  // Whether another may enter now: there is room, or the first has had `grace_ns` to prove itself.
  bool Admits(int64_t grace_ns) const;
  // Dismisses the first guest when there is no room. `dismiss` closes the connection of the new
  // one; it may call Leave.
  Number Enter(std::function<void()> dismiss);
  // It proved itself, or is gone. No effect when it was dismissed.
  void Leave(Number number) { here_.erase(number); }
  // False when there is none.
  bool DismissFirst();

 private:
  struct Guest {
    int64_t entered_ns;
    std::function<void()> dismiss;
  };
  const size_t limit_;
  Number next_ = 1;
  std::map<Number, Guest> here_;  // by arrival
};

}  // namespace tutti
