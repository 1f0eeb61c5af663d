#pragma once

// Sends and receives of one group. A block is one direction of one channel of one pair; it takes its
// share of each of the pair's messages, in the order in which they were issued.

#include "backend/cuda/mesh_primitives.h"
#include "backend/cuda/message_args.h"

namespace tutti::cuda {

class MessageBlock {
 public:
  // `block` counts directions, peers and channels: see BlocksOf.
  TUTTI_HD MessageBlock(const MessageArgs& args, uint32_t block) : args_(args) {
    const uint32_t channels = ChannelsOf(args.num_ranks);
    channel_ = block % channels;
    peer_ = static_cast<int>(block / channels) % args.num_ranks;
    sends_ = block / channels < static_cast<uint32_t>(args.num_ranks);
  }

  TUTTI_HD void Run() {
    bool any = false;
    for (uint32_t m = 0; m < args_.num_messages; ++m)
      any |= args_.messages[m].peer == peer_ && args_.messages[m].is_send == sends_;
    if (!any) return;
    uint64_t* const steps = Counter(args_.rank, sends_ ? 0 : 1, peer_);
    step_ = *steps;
    for (uint32_t m = 0; m < args_.num_messages && !failed_; ++m) {
      const Message& message = args_.messages[m];
      if (message.peer == peer_ && message.is_send == sends_) Carry(message);
    }
    Lanes::Sync();
    if (Lanes::index() == 0) *steps = step_;
  }

 private:
  // Of `rank`'s window: 0 sent, 1 received, 2 tails, 3 heads.
  TUTTI_HD uint64_t* Counter(int rank, int which, int peer) const {
    return reinterpret_cast<uint64_t*>(args_.windows[rank] +
                                       args_.layout.CounterAt(which, peer, channel_));
  }

  TUTTI_HD void Carry(const Message& message) {
    const uint32_t most = ChannelsOf(args_.num_ranks);
    size_t channels = message.bytes / kBytesPerChannel;
    channels = channels < 1 ? 1 : channels > most ? most : channels;
    const size_t share = DivUp(DivUp(message.bytes, channels), 16) * 16;
    const size_t begin = channel_ * share;
    if (channel_ >= channels) return;
    const size_t size = ClampChunk(begin, share, message.bytes);
    TUTTI_UNROLL_BY(1)
    for (size_t done = 0; done < size && !failed_; done += kMessageBytes)
      Step(message.buffer + begin + done, ClampChunk(done, kMessageBytes, size));
  }

  TUTTI_HD void Step(std::byte* user, size_t bytes) {
    // The sender waits for room, the receiver for data.
    const uint64_t* const counter = Counter(args_.rank, sends_ ? 3 : 2, peer_);
    const uint64_t needed = sends_ ? step_ + 1 : step_ + 1 + kMessageSlots;
    if (Lanes::index() == 0) {
      TUTTI_UNROLL_BY(1)
      for (uint32_t polls = 1; LoadFlagAcquire(counter) + kMessageSlots < needed; ++polls) {
        Lanes::Relax();
        if (polls % kLookEvery == 0 && IsRaised(args_.abort_word)) {
          failed_ = true;
          break;
        }
      }
    }
    failed_ = Lanes::SyncAny(failed_);
    if (failed_) return;
    std::byte* const slot =
        sends_ ? args_.windows[peer_] + args_.layout.SlotAt(args_.rank, channel_, step_)
               : args_.windows[args_.rank] + args_.layout.SlotAt(peer_, channel_, step_);
    if (sends_) {
      ForLinesOf(
          DivUp(bytes, 16),
          [&](Line& line, uint32_t i) {
            line = LoadAny<16>(user + size_t{16} * i, bytes - size_t{16} * i);
          },
          [&](const Line& line, uint32_t i) { StoreLine(slot + size_t{16} * i, line); });
    } else {
      ForLinesOf(
          DivUp(bytes, 16), [&](Line& line, uint32_t i) { line = LoadSlot(slot + size_t{16} * i); },
          [&](const Line& line, uint32_t i) {
            StoreAny<16>(user + size_t{16} * i, line, bytes - size_t{16} * i);
          });
    }
    ++step_;
    Lanes::Sync();
    if (Lanes::index() == 0) {
      FenceSystem();
      StoreFlag(Counter(peer_, sends_ ? 2 : 3, args_.rank), step_);
    }
  }

  const MessageArgs& args_;
  uint32_t channel_;
  int peer_;
  bool sends_;
  uint64_t step_ = 0;
  bool failed_ = false;
};

TUTTI_HD void RunMessages(const MessageArgs& args, uint32_t block) {
  MessageBlock(args, block).Run();
}

}  // namespace tutti::cuda
