#pragma once

// Riding: the data of a very small allreduce travel with the states of a round, so that a scalar
// that is asked for and waited for, a loss or a count, costs one exchange instead of two.
//
// The states are followed by one seat for each rank. A rank writes into its own the slot and the
// data of the first tensor pending here that may ride, and fills the others with 0xff; the exchange
// takes the least of each byte, so that every rank ends with what each one wrote. When all ranks
// wrote the same slot, each of them reduces the seats by itself, in the order of ranks.
//
//   seat: slot (2 bytes, little-endian; 0xffff: empty), data (kRidingBytes, in the wire's type)
//
// Pure functions; any thread.

#include <cstddef>
#include <cstdint>
#include <span>

#include "coordinator/request.h"
#include "coordinator/response.h"

namespace tutti::coordinator {

// With more ranks the seats would cost more than the exchange that they save.
inline constexpr int kMostRidingRanks = 16;
inline constexpr size_t kSeatBytes = 2 + kRidingBytes;

// Whether the tensor of such a request may ride; the same on all ranks.
bool MayRide(const Request& request);

// Writes the seat of `rank`, whose tensor is `input`.
void TakeSeat(const Request& request, int slot, const void* input, std::span<uint8_t> seats,
              int rank);
// The slot that is written in all seats, or -1.
int SlotOfAllSeats(std::span<const uint8_t> seats);
// The reduction of the data in `seats`, one seat a rank, in the wire's type.
void ReduceSeats(const Request& request, std::span<const uint8_t> seats, std::byte* result);

}  // namespace tutti::coordinator
