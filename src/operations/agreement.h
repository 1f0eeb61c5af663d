#pragma once

// The ranks of a communicator agree here whether all of them can go on with something, so that
// either all do or none does.

#include <atomic>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "operations/peer_info.h"

namespace tutti {

// A rank's Status in the form in which it travels to the others. Longer sentences are cut.
struct StatusWire {
  uint8_t code = 0;
  char text[375] = {};

  static StatusWire Of(const Status& status);
  bool ok() const { return code == 0; }
  // Returns the failure, which names the rank that it came from; success stays success.
  Status From(int rank, const PeerInfo& peer) const;
};

// Says what the ranks have agreed on: to go on, or that one of them cannot. It is the same on every
// rank.
struct Agreement {
  Status refusal;  // The reason of the first rank that cannot go on; ok: all can.
  bool go_on() const { return refusal.ok(); }
};

// Agrees to go on if `mine` is ok on all ranks, which all call this. Fails when the ranks cannot
// talk.
Result<Agreement> Agree(Bootstrap& bootstrap, std::span<const PeerInfo> peers, const Status& mine,
                        Deadline deadline, const std::atomic<bool>* abort_flag);

}  // namespace tutti
