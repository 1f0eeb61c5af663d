#pragma once

// Inline data: the data of a very small allreduce travel with the states of a round. A scalar that
// is asked for and waited for, such as a loss or a count, thus costs one exchange instead of two.
//
// The states are followed by one block for each rank. A rank writes into its own block the cache
// slot and the data of its first pending tensor that fits, and fills the other blocks with 0xff.
// The exchange takes the least of each byte, and every rank thus gets the blocks of all ranks. When
// all ranks wrote the same slot, each of them reduces the blocks by itself, in the order of ranks.
//
//   block: slot (2 bytes, little-endian; 0xffff: empty), data (kInlineDataBytes, in the wire's type)
//
// Pure functions; any thread.

#include <cstddef>
#include <cstdint>
#include <span>

#include "coordinator/request.h"
#include "coordinator/response.h"

namespace tutti::coordinator {

// Sets with more ranks send no inline data: the blocks would cost more than the saved exchange.
inline constexpr int kMostInlineRanks = 16;
inline constexpr size_t kInlineBlockBytes = 2 + kInlineDataBytes;

// Returns whether the data of such a request fit a block. The answer is the same on all ranks.
bool FitsInline(const Request& request);

// Writes the block of `rank`, whose tensor is `input`.
void WriteInlineBlock(const Request& request, int slot, const void* input,
                      std::span<uint8_t> blocks, int rank);
// Returns the slot that all blocks name, or -1.
int SlotOfAllBlocks(std::span<const uint8_t> blocks);
// Stores the reduction of the data in `blocks`, one block a rank, in the wire's type.
void ReduceInlineBlocks(const Request& request, std::span<const uint8_t> blocks, std::byte* result);

}  // namespace tutti::coordinator
