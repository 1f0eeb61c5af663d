#pragma once

// What host and kernel share where a host thread moves the data of a GPU (gpu/relay.h): the
// kernel copies between user buffers and pinned memory as it is told, and says when it has.
//
// Blocks are shared out over relay channels, each with a host thread of its own. A block has a box
// in pinned memory. `done` counts up, by the block alone: once when a kernel begins, once for each
// command. The host writes a command, and its number last: the value that `done` will have when it
// is carried out. So neither side ever overwrites what the other has yet to read, and nothing is
// reset from one kernel to the next.
//
//   kernel   begins: its first pieces, `operation`, done = d+1 │ …waits… │ pieces, done = d+2 │ …
//   host     sees d+1: knows which operation has the stream    │ command d+2  …
//
// A command with `last` ends the block.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/copy_args.h"

namespace tutti::cuda {

inline constexpr uint32_t kMostRelayChannels = 8;
// Blocks of a relay channel, each with a slot of pinned memory: while the host works on one slot,
// the GPU copies into and out of the other.
inline constexpr uint32_t kRelayBlocks = 2;
inline constexpr uint32_t kRelayThreads = 512;
inline constexpr size_t kMostPieces = 256;      // in a command
inline constexpr size_t kMostFirstPieces = 16;  // in a kernel's arguments

struct alignas(128) RelayBox {
  // By the block.
  uint64_t done = 0;
  uint64_t operation = 0;
  // By the host, on a line of its own.
  alignas(128) uint64_t number = 0;
  uint32_t num_pieces = 0;
  uint32_t last = 0;
  // Copied one after another: a later piece may overwrite what an earlier one has read.
  CopyPiece pieces[kMostPieces];
};

struct RelayArgs {
  RelayBox* boxes = nullptr;  // kRelayBlocks of each relay channel
  const uint32_t* abort_word = nullptr;
  uint64_t operation = 0;  // what the host knows the operation by
  uint8_t box_of_block[kMostRelayChannels * kRelayBlocks] = {};
  // What block 0 copies before it is told anything, which saves small operations a round trip.
  uint32_t num_first = 0;
  CopyPiece first[kMostFirstPieces];
};

}  // namespace tutti::cuda
