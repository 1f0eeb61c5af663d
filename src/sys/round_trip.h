#pragma once

// How long the other end of a TCP connection takes to answer, by the kernel's own measurements.

#include <cstdint>

namespace tutti {

// Returns the shortest time in nanoseconds in which the other host has acknowledged something, of
// the last minutes; 0 where the kernel does not know any. The other host's kernel answers, so a
// busy process makes the time no longer.
int64_t ShortestRoundTripNs(int fd);

}  // namespace tutti
