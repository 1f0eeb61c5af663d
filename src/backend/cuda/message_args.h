#pragma once

// Plain values that the host passes to the kernel of sends and receives.
//
// A message goes through channels: FIFOs in the receiver's window, one set for each ordered pair of
// ranks. Unlike in the rounds of the mesh, only the two ends take part. Each channel therefore
// counts its own steps: the sender writes the tail into the receiver's window, and the receiver
// writes the head into the sender's. A step s may be written once s < head + kMessageSlots.
//
//   uint64_t sent[kMaxMeshRanks][kMessageChannels]       only their owner: steps so far
//   uint64_t received[kMaxMeshRanks][kMessageChannels]
//   uint64_t tails[kMaxMeshRanks][kMessageChannels]      by sender
//   uint64_t heads[kMaxMeshRanks][kMessageChannels]      by receiver
//   FlaggedLine ll[ranks - 1][kLLChannels][kMessageSlots][kLLLines]            LL
//   bytes       ll128[ranks - 1][channels][kMessageSlots][kLL128PieceBytes]    LL128
//   bytes       simple[ranks - 1][channels][kMessageSlots][kMessageBytes]      Simple
//
// The division of a message follows from its length and its most channels, which both ends know.
// Each end chooses its number of blocks independently.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/mesh_args.h"

namespace tutti::cuda {

inline constexpr size_t kMessageChannels = 64;
inline constexpr uint64_t kMessageSlots = 2;
inline constexpr size_t kMessageBytes = 128 << 10;  // the length of a slot
inline constexpr size_t kMessageMemory = 64 << 20;  // the most bytes of all slots together
inline constexpr size_t kMostMessages = 64;         // the most messages of one kernel
// Messages of at most kLLMessage bytes (plan/mesh_limits.h) go by LL, in channels of kLLLines
// lines.
inline constexpr size_t kLLPiece = kLLLines * kLLData;
inline constexpr uint32_t kLLChannels = kLLMessage / kLLPiece;
// The most pairs of lines in a slot of LL128, by which longer messages go if possible: one for each
// octet of a block of kFewThreads, and as many again.
inline constexpr uint32_t kLL128PiecePairs = 64;
inline constexpr size_t kLL128Piece = kLL128PiecePairs * kLL128PairData;
inline constexpr size_t kLL128PieceBytes = kLL128PiecePairs * kLL128PairBytes;
// Long messages are worth more threads while every block can have its own multiprocessor.
inline constexpr uint32_t kFewThreads = 256;
inline constexpr uint32_t kManyThreads = 512;
inline constexpr uint32_t kMostBlocksOfMany =
    128;  // There are never more such blocks than multiprocessors.

// Two slots of 128 KiB for each of 64 channels between two neighbours of a ring fill the wire (256
// KiB × 64 carry 356 GB/s of 360 between H200s, half of this memory carries 336). With many ranks a
// pair has fewer channels.
constexpr uint32_t ChannelsOf(int num_ranks, size_t memory = kMessageMemory) {
  const auto peers = static_cast<size_t>(num_ranks > 1 ? num_ranks - 1 : 1);
  const size_t channels = memory / (kMessageSlots * kMessageBytes) / peers;
  if (channels == 0) return 1;
  return static_cast<uint32_t>(channels > kMessageChannels ? kMessageChannels : channels);
}

struct MessageLayout {
  size_t at = 0;  // the layout's begin in the window
  int num_ranks = 1;
  uint32_t channels = ChannelsOf(num_ranks);  // the channels of a pair, and the most of a message

  // Names the counters (see the top of this file).
  static constexpr int kSent = 0, kReceived = 1, kTails = 2, kHeads = 3;
  static constexpr size_t kCounters = kMaxMeshRanks * kMessageChannels * sizeof(uint64_t);
  constexpr size_t LLAt() const { return at + 4 * kCounters; }
  constexpr size_t LL128At() const { return LLAt() + Pairs() * kLLChannels * kOneLLChannel; }
  constexpr size_t SlotsAt() const { return LL128At() + Pairs() * channels * kOneLL128Channel; }
  constexpr size_t EndsAt() const { return SlotsAt() + Pairs() * channels * kOnePair; }
  constexpr size_t CounterAt(int which, int peer, uint32_t channel) const {
    return at + static_cast<size_t>(which) * kCounters +
           (static_cast<size_t>(peer) * kMessageChannels + channel) * sizeof(uint64_t);
  }
  // Returns the offset of a slot in the window of `receiver`.
  constexpr size_t SlotAt(int sender, int receiver, uint32_t channel, uint64_t step) const {
    return SlotsAt() + (Pair(sender, receiver) * channels + channel) * kOnePair +
           step % kMessageSlots * kMessageBytes;
  }
  constexpr size_t LL128SlotAt(int sender, int receiver, uint32_t channel, uint64_t step) const {
    return LL128At() + (Pair(sender, receiver) * channels + channel) * kOneLL128Channel +
           step % kMessageSlots * kLL128PieceBytes;
  }
  constexpr size_t LLSlotAt(int sender, int receiver, uint32_t channel, uint64_t step) const {
    return LLAt() + (Pair(sender, receiver) * kLLChannels + channel) * kOneLLChannel +
           step % kMessageSlots * kLLLines * sizeof(FlaggedLine);
  }

 private:
  static constexpr size_t kOnePair = kMessageSlots * kMessageBytes;
  static constexpr size_t kOneLLChannel = kMessageSlots * kLLLines * sizeof(FlaggedLine);
  static constexpr size_t kOneLL128Channel = kMessageSlots * kLL128PieceBytes;
  constexpr size_t Pairs() const { return static_cast<size_t>(num_ranks - 1); }
  constexpr size_t Pair(int sender, int receiver) const {
    const int place = sender - receiver + (sender > receiver ? -1 : num_ranks - 1);
    return static_cast<size_t>(place);
  }
};
static_assert(MessageLayout::kCounters % 16 == 0);

// Says how one block handles a message.
enum class MessageKind : uint8_t {
  kSend,
  kReceive,
  kCopy,  // from → buffer, both in this rank's memory
  kSwap,  // buffer → peer, piece by piece, and peer's pieces → buffer
};

struct Message {
  std::byte* buffer = nullptr;
  size_t bytes = 0;
  int16_t peer = 0;
  MessageKind kind = MessageKind::kReceive;
  const std::byte* from = nullptr;  // the source of a copy
};

// The messages of one kind with one peer, one after another.
struct MessageFlow {
  int16_t peer = 0;
  MessageKind kind = MessageKind::kReceive;
};

struct MessageArgs {
  std::byte* windows[kMaxMeshRanks] = {};
  const uint32_t* abort_word = nullptr;
  MessageLayout layout;
  int rank = 0;
  int num_ranks = 1;
  uint32_t most_channels = 0;  // the most channels of a message, equal at both ends; 0: all
  // Messages of ll128_from to ll128_message bytes go by LL128, shorter messages by LL, longer
  // messages by Simple. ll128_message is 0 where LL128 cannot be used. Equal at both ends.
  size_t ll128_message = 0;
  size_t ll128_from = kLLMessage + 1;
  // Values above 0, equal at both ends, from plan/gpu_costs.def: the bytes for which a message
  // takes another channel, by Simple and by LL128, and the bytes on each channel that are worth
  // more threads.
  size_t bytes_per_channel = 1;
  size_t ll128_bytes_per_channel = 1;
  size_t long_part_bytes = 1;
  uint32_t most_blocks = ~0u;  // the most blocks of the kernel, if all flows have a block
  uint32_t most_blocks_of_many = kMostBlocksOfMany;
  uint32_t num_messages = 0;
  Message messages[kMostMessages];
  // Arrange sets the members below.
  uint32_t num_flows = 0;
  uint32_t channels = 0;  // the channels with work
  uint32_t blocks = 0;
  uint32_t threads = 0;
  MessageFlow flows[2 * kMaxMeshRanks];
};
static_assert(sizeof(MessageArgs) <= 4096 - 64);

// Returns the protocol of a message.
constexpr Protocol ProtocolOf(const MessageArgs& args, size_t bytes) {
  if (bytes >= args.ll128_from && bytes <= args.ll128_message) return Protocol::kLL128;
  return bytes <= kLLMessage ? Protocol::kLL : Protocol::kSimple;
}

// Returns the number of channels of a message.
constexpr uint32_t ChannelsFor(const MessageArgs& args, size_t bytes) {
  const uint32_t all = args.layout.channels;
  const uint32_t most =
      args.most_channels == 0 || args.most_channels > all ? all : args.most_channels;
  const Protocol protocol = ProtocolOf(args, bytes);
  const size_t wanted = protocol == Protocol::kLL      ? DivUp(bytes, kLLPiece)
                        : protocol == Protocol::kLL128 ? DivUp(bytes, args.ll128_bytes_per_channel)
                                                       : bytes / args.bytes_per_channel;
  return wanted < 1 ? 1 : wanted > most ? most : static_cast<uint32_t>(wanted);
}

// Returns the number of turns of a kernel of messages. A turn is one channel of one flow, and the
// turns of one channel are adjacent. A kernel with fewer blocks than turns gives each block a
// further turn after it has finished a turn. When all lower channels are done, all ends of a
// channel have therefore begun or begin next. No block has two turns of one channel, hence turns
// wait for nothing else.
constexpr uint32_t TurnsOf(const MessageArgs& args) { return args.num_flows * args.channels; }

// Computes the flows, channels, blocks and threads for the messages.
constexpr void Arrange(MessageArgs& args) {
  args.num_flows = 0;
  args.channels = 0;
  size_t longest = 0;
  for (uint32_t m = 0; m < args.num_messages; ++m) {
    const Message& message = args.messages[m];
    const uint32_t channels = ChannelsFor(args, message.bytes);
    if (channels > args.channels) args.channels = channels;
    if (message.bytes > longest) longest = message.bytes;
    uint32_t f = 0;
    while (f < args.num_flows &&
           (args.flows[f].peer != message.peer || args.flows[f].kind != message.kind))
      ++f;
    if (f < args.num_flows) continue;
    args.flows[args.num_flows++] = {message.peer, message.kind};
  }
  const uint32_t turns = TurnsOf(args);
  const bool many =
      longest >= args.long_part_bytes * args.channels && turns <= args.most_blocks_of_many;
  args.threads = many ? kManyThreads : kFewThreads;
  args.blocks = turns > args.most_blocks ? args.most_blocks : turns;
  if (args.blocks < args.num_flows) args.blocks = args.num_flows;
}

}  // namespace tutti::cuda
