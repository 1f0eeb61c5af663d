#pragma once

// Checks whether the ranks' requests for a tensor fit together. Every rank holds the same claim,
// and therefore finds the same sentence. Pure functions.

#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/round_message.h"

namespace tutti::coordinator {

// Returns InvalidArgument for a request that is wrong by itself, without asking another rank.
// `members` are the global ranks of the process set.
Status CheckRequest(const std::string& name, const Request& request,
                    const std::vector<int>& members);

// Returns "" or the sentence that names the tensor, both sides, and their ranks. `joined` are the
// ranks that bring nothing.
std::string FindMismatch(const std::string& name, const Claim& claim, const RankSet& joined);

}  // namespace tutti::coordinator
