#pragma once

// What the host hands to the kernel of sends and receives.
//
// A message goes through channels: rings of slots in the receiver's window, one set for each ordered
// pair of ranks. Unlike the rounds of the mesh, only the two ends take part, so each channel counts
// its own steps: the sender writes the tail into the receiver's window, the receiver writes the head
// into the sender's. A step s may be written once s < head + kMessageSlots.
//
//   uint64_t sent[kMaxMeshRanks][kMessageChannels]       only their owner: steps so far
//   uint64_t received[kMaxMeshRanks][kMessageChannels]
//   uint64_t tails[kMaxMeshRanks][kMessageChannels]      by sender
//   uint64_t heads[kMaxMeshRanks][kMessageChannels]      by receiver
//   bytes    slots[ranks][channels][kMessageSlots][kMessageBytes]

#include <cstddef>
#include <cstdint>

#include "backend/cuda/mesh_args.h"

namespace tutti::cuda {

inline constexpr size_t kMessageChannels = 32;
inline constexpr uint64_t kMessageSlots = 4;
inline constexpr size_t kMessageBytes = 64 << 10;  // of a slot
// A message takes another channel for each so many bytes.
inline constexpr size_t kBytesPerChannel = 16 << 10;
inline constexpr size_t kMostMessages = 64;  // in one kernel

// Blocks of all pairs run at the same time, whatever else the GPU does, so they must be few.
constexpr uint32_t ChannelsOf(int num_ranks) {
  const int channels = 128 / num_ranks;
  return static_cast<uint32_t>(channels > 32 ? 32 : channels);
}

struct MessageLayout {
  size_t at = 0;  // in the window
  int num_ranks = 1;

  static constexpr size_t kCounters = kMaxMeshRanks * kMessageChannels * sizeof(uint64_t);
  constexpr size_t SlotsAt() const { return at + 4 * kCounters; }
  constexpr size_t EndsAt() const {
    return SlotsAt() +
           static_cast<size_t>(num_ranks) * ChannelsOf(num_ranks) * kMessageSlots * kMessageBytes;
  }
  constexpr size_t CounterAt(int which, int peer, uint32_t channel) const {
    return at + static_cast<size_t>(which) * kCounters +
           (static_cast<size_t>(peer) * kMessageChannels + channel) * sizeof(uint64_t);
  }
  constexpr size_t SlotAt(int sender, uint32_t channel, uint64_t step) const {
    return SlotsAt() +
           ((static_cast<size_t>(sender) * ChannelsOf(num_ranks) + channel) * kMessageSlots +
            step % kMessageSlots) *
               kMessageBytes;
  }
};
static_assert(MessageLayout::kCounters % 16 == 0);

struct Message {
  std::byte* buffer = nullptr;
  size_t bytes = 0;
  int16_t peer = 0;
  bool is_send = false;
};

struct MessageArgs {
  std::byte* windows[kMaxMeshRanks] = {};
  const uint32_t* abort_word = nullptr;
  MessageLayout layout;
  int rank = 0;
  int num_ranks = 1;
  uint32_t num_messages = 0;
  Message messages[kMostMessages];
};
// How many blocks a kernel of messages has.
constexpr uint32_t BlocksOf(const MessageArgs& args) {
  return 2 * static_cast<uint32_t>(args.num_ranks) * ChannelsOf(args.num_ranks);
}

static_assert(sizeof(MessageArgs) <= 4096 - 64);

}  // namespace tutti::cuda
