#pragma once

// Chooses the ports that carry the queue pairs of an end. A port is left out while the port is
// down, and while the peer does not answer behind the port. Own ports of the device return after a
// while.
//
// Threads: one at a time.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/net/verbs/table.h"

namespace tutti {

class PortChoice {
 public:
  // The time until a look at own ports that were left out. Each return doubles the time, so that a
  // port which comes and goes is left alone.
  static constexpr int64_t kReturnAfterNs = 1'000'000'000;
  static constexpr int64_t kReturnAtMostNs = 64'000'000'000;
  // Losses in a row until spares take over from active own ports.
  static constexpr int kLossesBeforeSpares = 2;

  // The first `own` of `all` ports are the device's own, and all later ports are spares.
  PortChoice(size_t own, size_t all) : own_((1u << own) - 1), alone_(all == 1) {}

  // Leaves a port out while further ports can be tried, because the peer did not answer.
  void Suspect(size_t port) { suspects_.set(port); }

  // Returns the ports for the queue pairs, out of the `active` ports.
  PortFlags Choose(PortFlags active, int losses_in_a_row, int64_t now_ns) {
    const PortFlags chosen = alone_ ? own_ : Sound(active, losses_in_a_row);
    missed_ = own_ & ~chosen;
    return_at_ns_ = now_ns + return_after_ns_;
    return chosen;
  }
  // Returns whether own ports were left out.
  bool misses() const { return missed_.any(); }
  // Returns whether the time has come to look at own ports that were left out.
  bool IsDue(int64_t now_ns) const { return misses() && now_ns >= return_at_ns_; }
  // Returns whether an own port that was left out is active, and in this case trusts all active
  // ports again.
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
  const bool alone_;  // The only port serves even while down, since it may be up later.
  PortFlags suspects_;
  PortFlags missed_;  // own ports outside the last choice
  int64_t return_at_ns_ = 0;
  int64_t return_after_ns_ = kReturnAfterNs;
};

}  // namespace tutti
