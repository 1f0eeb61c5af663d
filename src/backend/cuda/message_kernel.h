#pragma once

// Sends and receives of one group. Short messages go in lines with their own flags (LL and LL128),
// and the rest in pieces with a flag each (Simple). A MessageBlock is one channel of one flow (all
// messages of one kind with one peer). A MessageBlock takes its share of each of the flow's
// messages, in the order of the calls.

#include "backend/cuda/ll128_line.h"
#include "backend/cuda/message_args.h"

namespace tutti::cuda {

class MessageBlock {
 public:
  // `turn` counts flows and channels (TurnsOf).
  TUTTI_HD MessageBlock(const MessageArgs& args, uint32_t turn)
      : args_(args), channel_(turn / args.num_flows), flow_(args.flows[turn % args.num_flows]) {}

  // Runs the turn. Returns false when the kernel has given up.
  TUTTI_HD bool Run() {
    const bool sends = flow_.kind == MessageKind::kSend || flow_.kind == MessageKind::kSwap;
    const bool receives = flow_.kind == MessageKind::kReceive || flow_.kind == MessageKind::kSwap;
    if (sends) sent_ = *Counter(args_.rank, kSent, flow_.peer);
    if (receives) received_ = *Counter(args_.rank, kReceived, flow_.peer);
    TUTTI_UNROLL_BY(1)
    for (uint32_t m = 0; m < args_.num_messages && !failed_; ++m) {
      const Message& message = args_.messages[m];
      if (message.peer == flow_.peer && message.kind == flow_.kind) Carry(message);
    }
    // Without the barrier another thread could still be about to read the counters.
    Lanes::Sync();
    if (Lanes::index() == 0) {
      if (sends) *Counter(args_.rank, kSent, flow_.peer) = sent_;
      if (receives) *Counter(args_.rank, kReceived, flow_.peer) = received_;
    }
    return !failed_;
  }

 private:
  static constexpr int kSent = MessageLayout::kSent, kReceived = MessageLayout::kReceived;
  static constexpr int kTails = MessageLayout::kTails, kHeads = MessageLayout::kHeads;
  static constexpr size_t kPieceUnit = 128;

  TUTTI_HD uint64_t* Counter(int rank, int which, int peer) const {
    return reinterpret_cast<uint64_t*>(args_.windows[rank] +
                                       args_.layout.CounterAt(which, peer, channel_));
  }

  // Channels take pieces in turn, hence all of them work in one neighbourhood of memory. Each piece
  // costs some microseconds besides its bytes, hence pieces are as few as the slots allow.
  TUTTI_HD void Carry(const Message& message) {
    const size_t channels = ChannelsFor(args_, message.bytes);
    if (channel_ >= channels || message.bytes == 0) return;
    const Protocol protocol = ProtocolOf(args_, message.bytes);
    const size_t share = DivUp(message.bytes, channels);
    const auto cut = [&](size_t most, size_t unit) {
      return DivUp(DivUp(share, DivUp(share, most)), unit) * unit;
    };
    const size_t piece = protocol == Protocol::kLL      ? kLLPiece
                         : protocol == Protocol::kLL128 ? cut(kLL128Piece, kLL128PairData)
                                                        : cut(kMessageBytes, kPieceUnit);
    TUTTI_UNROLL_BY(1)
    for (size_t at = channel_ * piece; at < message.bytes && !failed_; at += channels * piece) {
      const size_t bytes = ClampChunk(at, piece, message.bytes);
      std::byte* const user = message.buffer + at;
      if (message.kind == MessageKind::kCopy)
        CopyBytes<Place::kUser, Place::kUser>(user, message.from + at, bytes);
      if (message.kind == MessageKind::kSend || message.kind == MessageKind::kSwap)
        SendPiece(protocol, user, bytes);
      // A swap has sent the piece, and thus has already read the bytes that are overwritten now.
      if (message.kind == MessageKind::kReceive || message.kind == MessageKind::kSwap)
        ReceivePiece(protocol, user, bytes);
    }
  }
  TUTTI_HD void SendPiece(Protocol protocol, const std::byte* user, size_t bytes) {
    if (protocol == Protocol::kLL)
      SendLL(user, bytes);
    else if (protocol == Protocol::kLL128)
      SendLL128(user, bytes);
    else
      SendSimple(user, bytes);
  }
  TUTTI_HD void ReceivePiece(Protocol protocol, std::byte* user, size_t bytes) {
    if (protocol == Protocol::kLL)
      ReceiveLL(user, bytes);
    else if (protocol == Protocol::kLL128)
      ReceiveLL128(user, bytes);
    else
      ReceiveSimple(user, bytes);
  }

  // Runs without barriers or fences between lines: each thread waits for room and lines on its own.
  TUTTI_HD void SendLL(const std::byte* user, size_t bytes) {
    std::byte* const slot =
        args_.windows[flow_.peer] + args_.layout.LLSlotAt(args_.rank, flow_.peer, channel_, sent_);
    const uint64_t* const head = Counter(args_.rank, kHeads, flow_.peer);
    bool room = sent_ < kMessageSlots;
    TUTTI_UNROLL_BY(1)
    for (size_t i = Lanes::index(); i * kLLData < bytes && !failed_; i += Lanes::count()) {
      const Line data = LoadAny<8>(user + i * kLLData, bytes - i * kLLData);
      TUTTI_UNROLL_BY(1)
      for (uint32_t polls = 1; !room && !failed_; ++polls) {
        room = LoadFlagAcquire(head) + kMessageSlots > sent_;
        if (!room) Poll(polls);
      }
      if (room) StoreFlagged(slot + i * sizeof(FlaggedLine), MakeFlagged(sent_, data));
    }
    ++sent_;
    failed_ = Lanes::SyncAny(failed_);
  }
  TUTTI_HD void ReceiveLL(std::byte* user, size_t bytes) {
    const std::byte* const slot =
        args_.windows[args_.rank] +
        args_.layout.LLSlotAt(flow_.peer, args_.rank, channel_, received_);
    TUTTI_UNROLL_BY(1)
    for (size_t i = Lanes::index(); i * kLLData < bytes && !failed_; i += Lanes::count()) {
      FlaggedLine line = LoadFlagged(slot + i * sizeof(FlaggedLine));
      TUTTI_UNROLL_BY(1)
      for (uint32_t polls = 1; !failed_ && !HasFlags(received_, line); ++polls) {
        Poll(polls);
        line = LoadFlagged(slot + i * sizeof(FlaggedLine));
      }
      if (!failed_) StoreAny<8>(user + i * kLLData, DataOf(line), bytes - i * kLLData);
    }
    failed_ = Lanes::SyncAny(failed_);
    if (!failed_) AnnounceRead();
  }
  // As SendLL, by octets. The threads of a warp wait together, since each line takes eight of them.
  TUTTI_HD void SendLL128(const std::byte* user, size_t bytes) {
    std::byte* const slot = args_.windows[flow_.peer] +
                            args_.layout.LL128SlotAt(args_.rank, flow_.peer, channel_, sent_);
    const uint64_t* const head = Counter(args_.rank, kHeads, flow_.peer);
    bool room = sent_ < kMessageSlots;
    ForOctetItems(LL128Pairs(bytes), [&](uint32_t p, bool active) {
      LL128Share share = {};
      if (active) share = PairFrom(user, p, bytes);
      if (!room) room = AwaitByWarp([&] { return LoadFlagAcquire(head) + kMessageSlots > sent_; });
      if (active && room)
        LL128Line::Store(slot + p * kLL128PairBytes, LL128Line::ToWire(sent_ + 1, share));
    });
    ++sent_;
    failed_ = Lanes::SyncAny(failed_);
  }
  TUTTI_HD void ReceiveLL128(std::byte* user, size_t bytes) {
    const std::byte* const slot =
        args_.windows[args_.rank] +
        args_.layout.LL128SlotAt(flow_.peer, args_.rank, channel_, received_);
    ForOctetItems(LL128Pairs(bytes), [&](uint32_t p, bool active) {
      LL128Wire wire;
      const bool came = AwaitByWarp([&] {
        if (!active) return true;
        LL128Line::Load(slot + p * kLL128PairBytes, wire);
        return LL128Line::HasFlags(received_ + 1, wire);
      });
      if (!active || !came) return;
      const size_t begin = p * kLL128PairData;
      LL128Line::ToBuffer(user + begin, LL128Line::FromWire(wire), bytes - begin);
    });
    failed_ = Lanes::SyncAny(failed_);
    if (!failed_) AnnounceRead();
  }
  TUTTI_HD static uint32_t LL128Pairs(size_t bytes) {
    return static_cast<uint32_t>(DivUp(bytes, kLL128PairData));
  }
  TUTTI_HD static LL128Share PairFrom(const std::byte* user, uint32_t pair, size_t bytes) {
    const size_t begin = pair * kLL128PairData;
    return LL128Line::FromBuffer(user + begin, bytes - begin);
  }
  // Waits until is_so() holds for all threads of the calling warp. Returns false after giving up.
  template <class IsSo>
  TUTTI_HD bool AwaitByWarp(IsSo is_so) {
    TUTTI_UNROLL_BY(1)
    for (uint32_t polls = 1; !failed_; ++polls) {
      if (Lanes::WarpAll(is_so())) return true;
      bool gives_up = false;
      if (polls % kLookEvery == 0) gives_up = IsRaised(args_.abort_word);
      Lanes::Relax();
      if (polls % kLookEvery == 0) failed_ = !Lanes::WarpAll(!gives_up);
    }
    return false;
  }
  TUTTI_HD void Poll(uint32_t polls) {
    Lanes::Relax();
    if (polls % kLookEvery == 0 && IsRaised(args_.abort_word)) failed_ = true;
  }

  TUTTI_HD void SendSimple(const std::byte* user, size_t bytes) {
    if (sent_ >= kMessageSlots) WaitUntil(kHeads, sent_ + 1 - kMessageSlots);
    if (failed_) return;
    CopyBytes<Place::kUser, Place::kSlot>(
        args_.windows[flow_.peer] + args_.layout.SlotAt(args_.rank, flow_.peer, channel_, sent_),
        user, bytes);
    Announce(kTails, ++sent_);
  }
  TUTTI_HD void ReceiveSimple(std::byte* user, size_t bytes) {
    WaitUntil(kTails, received_ + 1);
    if (failed_) return;
    CopyBytes<Place::kSlot, Place::kUser>(
        user,
        args_.windows[args_.rank] +
            args_.layout.SlotAt(flow_.peer, args_.rank, channel_, received_),
        bytes);
    Announce(kHeads, ++received_);
  }

  TUTTI_HD void WaitUntil(int which, uint64_t value) {
    const uint64_t* const counter = Counter(args_.rank, which, flow_.peer);
    if (Lanes::index() == 0) {
      TUTTI_UNROLL_BY(1)
      for (uint32_t polls = 1; !failed_ && LoadFlagAcquire(counter) < value; ++polls) Poll(polls);
    }
    failed_ = Lanes::SyncAny(failed_);
  }
  TUTTI_HD void Announce(int which, uint64_t value) {
    Lanes::Sync();
    if (Lanes::index() != 0) return;
    FenceSystem();
    StoreFlag(Counter(flow_.peer, which, args_.rank), value);
  }
  // Announces, after a barrier of the block, that a slot of lines has been read. No fence is
  // needed: a reader that has found the flag in a line has the line, and the sender reads nothing
  // else that this block has written.
  TUTTI_HD void AnnounceRead() {
    ++received_;
    if (Lanes::index() == 0) StoreFlag(Counter(flow_.peer, kHeads, args_.rank), received_);
  }

  enum class Place { kUser, kSlot };
  template <Place kFrom, Place kTo>
  TUTTI_HD static void CopyBytes(std::byte* to, const std::byte* from, size_t bytes) {
    const auto aligned = [](const std::byte* p) {
      return reinterpret_cast<uintptr_t>(p) % 16 == 0;
    };
    if (bytes % 16 == 0 && (kFrom == Place::kSlot || aligned(from)) &&
        (kTo == Place::kSlot || aligned(to))) {
      ForLinesOf(
          bytes / 16,
          [&](Line& line, uint32_t i) {
            const std::byte* const at = from + size_t{16} * i;
            if constexpr (kFrom == Place::kSlot)
              line = LoadSlot(at);
            else
              line = LoadLine(at);
          },
          [&](const Line& line, uint32_t i) { StoreLine(to + size_t{16} * i, line); });
      return;
    }
    ForLinesOf(
        DivUp(bytes, 16),
        [&](Line& line, uint32_t i) {
          const size_t at = size_t{16} * i;
          if constexpr (kFrom == Place::kSlot)
            line = LoadSlot(from + at);
          else
            line = LoadAny<16>(from + at, bytes - at);
        },
        [&](const Line& line, uint32_t i) {
          const size_t at = size_t{16} * i;
          if constexpr (kTo == Place::kSlot)
            StoreLine(to + at, line);
          else
            StoreAny<16>(to + at, line, bytes - at);
        });
  }

  const MessageArgs& args_;
  const uint32_t channel_;
  const MessageFlow flow_;
  uint64_t sent_ = 0, received_ = 0;
  bool failed_ = false;
};

TUTTI_HD void RunMessages(const MessageArgs& args, uint32_t block) {
  bool runs = true;
  TUTTI_UNROLL_BY(1)
  for (uint32_t turn = block; runs && turn < TurnsOf(args); turn += args.blocks)
    runs = MessageBlock(args, turn).Run();
}

}  // namespace tutti::cuda
