#pragma once

// The facts about a job that a root derives from requests, and their texts. Pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "bootstrap/root_messages.h"

namespace tutti {

// Returns "pid 7 on host node5".
std::string WhoIs(const RootRequest& request);
// Returns whether one process sent both requests: a process listens at an address of its own.
bool IsSameProcess(const RootRequest& one, const RootRequest& other);
// Returns the timeout that a person would have set: the time left is a few milliseconds less.
double RoundedSeconds(uint32_t ms);
// Returns a text such as "2, 5-7 and 9" with at most 16 entries named.
std::string RangesText(const std::vector<uint32_t>& ranks);
// Returns how many ranks of the job of `request` register with its root.
uint32_t RegistrationsDue(const RootRequest& request);
// Returns how many ranks of other roots ask the root of `request`: each asks once when one of its
// links leads to a rank of this root.
uint32_t LookUpsDue(const RootRequest& request);

}  // namespace tutti
