#pragma once

// Chooses the ports that carry the queue pairs of an end. A port is left out while the port is
// down, and while the other end does not answer behind the port. The device's own ports that had to
// be left out are tried again later.
//
// Threads: one at a time.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/net/verbs/table.h"

namespace tutti {

class PortChoice {
 public:
  // The time until an own port that was left out is looked at. Each return doubles the time, so
  // that a port that comes and goes is left alone.
  static constexpr int64_t kReturnAfterNs = 1'000'000'000;
  static constexpr int64_t kReturnAtMostNs = 64'000'000'000;
  // Losses in a row until spares take over from own ports that are active.
  static constexpr int kLossesBeforeSpares = 2;

  // The first `own` of `all` ports are the device's own, and the others are spares.
  PortChoice(size_t own, size_t all) : own_((1u << own) - 1), alone_(all == 1) {}

  // Leaves a port out while others can be tried, because the other end did not answer behind it.
  void Suspect(size_t port) { suspects_.set(port); }

  // Returns the ports for the queue pairs. `active` are the ports that can be used at all.
  PortFlags Choose(PortFlags active, int losses_in_a_row, int64_t now_ns) {
    const PortFlags chosen = alone_ ? own_ : Sound(active, losses_in_a_row);
    missed_ = own_ & ~chosen;
    return_at_ns_ = now_ns + return_after_ns_;
    return chosen;
  }
  // Returns whether own ports were left out.
  bool misses() const { return missed_.any(); }
  // Returns whether the time has come to look at the ports that were left out.
  bool IsDue(int64_t now_ns) const { return misses() && now_ns >= return_at_ns_; }
  // Returns whether one of the ports that were left out is active. All active ports are trusted
  // again then.
  bool Return(PortFlags active, int64_t now_ns) {
    return_at_ns_ = now_ns + return_after_ns_;
    if ((active & missed_).none()) return false;
    suspects_ &= ~active;
    return_after_ns_ = std::min(2 * return_after_ns_, kReturnAtMostNs);
    return true;
  }

 private:
  // Own ports are preferred: spares take over only after several losses in a row. Where no port is
  // beyond suspicion, all active ports are tried again.
  PortFlags Sound(PortFlags active, int losses_in_a_row) {
    const PortFlags sound = active & ~suspects_;
    if ((sound & own_).any() || (sound.any() && losses_in_a_row >= kLossesBeforeSpares))
      return sound;
    suspects_.reset();
    return active;
  }

  const PortFlags own_;
  const bool alone_;  // There is no choice: a port that is down now may be up when it is needed.
  PortFlags suspects_;
  PortFlags missed_;  // own ports that could not be used when the queue pairs were placed
  int64_t return_at_ns_ = 0;
  int64_t return_after_ns_ = kReturnAfterNs;
};

}  // namespace tutti
