#pragma once

// What ranks have done between two readings of the boards. Pure functions.

#include "observe/jobs.h"

namespace tutti::tools {

struct Rates {
  double collectives_per_s = 0;
  double messages_per_s = 0;
  // The mean length of the collectives that are still known, times their rate: elements of a call
  // times their size.
  double collective_bytes_per_s = 0;
  // The part of the time for which collectives waited for other ranks (observe/record.h), the
  // present wait included.
  double waiting_share = 0;
};

// Returns the rates of a rank from a reading `seconds` before. `before` may be null; the rates are
// then 0.
Rates RatesOf(const observe::RankView* before, const observe::RankView& now, double seconds);

// Returns the mean of the rates of the communicator's ranks. Every rank takes part in every
// collective.
Rates RatesOf(const observe::CommunicatorView& before, const observe::CommunicatorView& now);

}  // namespace tutti::tools
