#pragma once

// The picture of a rank of a communicator, as lines of text for the log and for `tutti stat`.

#include <cstdint>
#include <string>
#include <vector>

#include "observe/snapshot.h"

namespace tutti::observe {

// Returns a line about the communicator, a line about its present activity, and a line for each run
// of equal collectives among the last ones. `now_ns` is the monotonic time of the snapshot.
std::vector<std::string> PictureOf(const CommunicatorSnapshot& one, int64_t now_ns);

}  // namespace tutti::observe
