#pragma once

// Lets the ranks of a communicator agree whether all of them can go on: either all ranks go on or
// no rank does.

#include <atomic>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "operations/peer_info.h"

namespace tutti {

// Holds a rank's Status in the form that the rank sends to its peers. Longer messages are cut.
struct StatusWire {
  uint8_t code = 0;
  char text[375] = {};

  static StatusWire Of(const Status& status);
  bool ok() const { return code == 0; }
  // Returns the failure with the name of the failed rank, or success.
  Status From(int rank, const PeerInfo& peer) const;
};

// Says whether the ranks go on. All ranks have equal agreements.
struct Agreement {
  Status refusal;  // The reason of the first rank that cannot go on. Ok: all ranks go on.
  bool go_on() const { return refusal.ok(); }
};

// Returns the agreement to go on if `mine` is ok on all ranks. All ranks must call Agree. Fails if
// the ranks cannot talk to one another.
Result<Agreement> Agree(Bootstrap& bootstrap, std::span<const PeerInfo> peers, const Status& mine,
                        Deadline deadline, const std::atomic<bool>* abort_flag);

}  // namespace tutti
