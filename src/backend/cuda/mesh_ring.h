#pragma once

// The FifoPrimitives of kernels/primitives.h for one block: the ring and chain algorithms of
// kernels/ring.h among GPUs. Block b of a rank takes from block b of the rank before it and gives
// to block b of the next one. What comes is read where it came to, combined, and written at once
// into the next rank's window and, where it is a result, into the output: each byte crosses the
// wire once, and no block ever turns from sending to fetching while the wire waits.
//
//   sender    wait until head + kRingSlots > step ─ write the slot ─ tail = step + 1
//   receiver  wait until tail > step ─ read the slot ─ head = step + 1
//
// The sender writes the tail into the receiver's window, the receiver the head into the sender's.
// Slots are a block's Simple slots, in the ring's view of them (mesh_args.h).

#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

template <class T>
class RingPrimitives : public MeshBlock<T> {
 public:
  // `begin`: the first element of input and output that is this block's.
  TUTTI_HD RingPrimitives(const MeshArgs& args, uint32_t block, size_t begin)
      : MeshBlock<T>(args, block), begin_(begin) {
    this->EnterView(WindowView::kRing);
    const int index = args.ring_index, n = args.num_ranks;
    next_ = args.windows[args.ring[index + 1 < n ? index + 1 : 0]];
    previous_ = args.windows[args.ring[index > 0 ? index - 1 : n - 1]];
    own_ = args.windows[args.rank];
    sent_ = *this->Word(own_, WindowLayout::kSentAt);
    received_ = *this->Word(own_, WindowLayout::kReceivedAt);
  }
  // Does before the kernel ends what MeshBlock::Finish does.
  TUTTI_HD void Finish() {
    MeshBlock<T>::Finish();
    if (Lanes::index() != 0) return;
    *this->Word(own_, WindowLayout::kSentAt) = sent_;
    *this->Word(own_, WindowLayout::kReceivedAt) = received_;
  }

  TUTTI_HD void Send(size_t in, size_t n) { Step(kReads | kSends, in, 0, n); }
  TUTTI_HD void CopySend(size_t in, size_t out, size_t n) {
    Step(kReads | kSends | kWrites, in, out, n);
  }
  TUTTI_HD void Recv(size_t out, size_t n) { Step(kReceives | kWrites, 0, out, n); }
  TUTTI_HD void RecvCopySend(size_t out, size_t n) {
    Step(kReceives | kSends | kWrites, 0, out, n);
  }
  TUTTI_HD void RecvReduceSend(size_t in, size_t n) { Step(kReceives | kReads | kSends, in, 0, n); }
  TUTTI_HD void RecvSend(size_t n) { Step(kReceives | kSends, 0, 0, n); }
  TUTTI_HD void RecvReduceSendFinal(size_t in, size_t n) {
    Step(kReceives | kReads | kSends | kIsFinal, in, 0, n);
  }
  TUTTI_HD void RecvReduceCopyFinal(size_t in, size_t out, size_t n) {
    Step(kReceives | kReads | kWrites | kIsFinal, in, out, n);
  }
  TUTTI_HD void RecvReduceCopySendFinal(size_t in, size_t out, size_t n) {
    Step(kReceives | kReads | kSends | kWrites | kIsFinal, in, out, n);
  }

 private:
  using MeshBlock<T>::kSize;
  using MeshBlock<T>::args_;
  // What a step does.
  enum : uint32_t { kReceives = 1, kReads = 2, kSends = 4, kWrites = 8, kIsFinal = 16 };
  // Elements of the wide sums that a thread holds are the limit here, not the lines.
  static constexpr uint32_t kAtOnce = kUnroll;

  // Out of line: every call of the algorithms would have a copy of it.
  TUTTI_OUTLINE void Step(uint32_t what, size_t in, size_t out, size_t n) {
    if (this->failed_) return;
    WaitForPeers(what);
    if (this->failed_) return;
    const std::byte* const input = this->Input(begin_ + in);
    std::byte* const output = this->Output(begin_ + out);
    // Aligned lines, nothing to multiply: all but the ends of buffers.
    const bool plain = n * kSize % 16 == 0 && !args_.reduce.scale &&
                       ((what & kReads) == 0 || reinterpret_cast<uintptr_t>(input) % 16 == 0) &&
                       ((what & kWrites) == 0 || reinterpret_cast<uintptr_t>(output) % 16 == 0);
    if (plain)
      MoveLines<true>(what, input, output, n * kSize);
    else
      MoveLines<false>(what, input, output, n * kSize);
    Announce(what);
  }

  TUTTI_HD void WaitForPeers(uint32_t what) {
    // By two warps, where there are two.
    const uint32_t other = Lanes::count() > 32 ? 32 : 0;
    if ((what & kReceives) != 0 && Lanes::index() == 0)
      WaitUntil(this->Word(own_, WindowLayout::kTailsAt), received_ + 1);
    if ((what & kSends) != 0 && sent_ >= kRingSlots && Lanes::index() == other)
      WaitUntil(this->Word(own_, WindowLayout::kHeadsAt), sent_ + 1 - kRingSlots);
    this->failed_ = Lanes::SyncAny(this->failed_);
  }
  TUTTI_HD void WaitUntil(const uint64_t* counter, uint64_t value) {
    TUTTI_UNROLL_BY(1)
    for (uint32_t polls = 1; !this->failed_ && LoadFlagAcquire(counter) < value; ++polls)
      if (this->Poll(polls)) break;
  }
  // One fence for both: it orders the writes before the tail and the reads before the head.
  TUTTI_HD void Announce(uint32_t what) {
    if ((what & kSends) != 0) ++sent_;
    if ((what & kReceives) != 0) ++received_;
    Lanes::Sync();
    if (Lanes::index() != 0) return;
    FenceSystem();
    if ((what & kSends) != 0) StoreFlag(this->Word(next_, WindowLayout::kTailsAt), sent_);
    if ((what & kReceives) != 0)
      StoreFlag(this->Word(previous_, WindowLayout::kHeadsAt), received_);
  }

  template <bool kPlain>
  TUTTI_HD void MoveLines(uint32_t what, const std::byte* input, std::byte* output, size_t bytes) {
    const std::byte* const from = own_ + args_.layout.RingSlotAt(this->block_, received_);
    std::byte* const to = next_ + args_.layout.RingSlotAt(this->block_, sent_);
    const auto lines = static_cast<uint32_t>(DivUp(bytes, 16));
    const uint32_t step = Lanes::count();
    const auto at = [](uint32_t i) { return size_t{16} * i; };
    TUTTI_UNROLL_BY(1)
    for (uint32_t first = Lanes::index(); first < lines; first += step * kAtOnce) {
      Line theirs[kAtOnce] = {}, mine[kAtOnce] = {};
      if ((what & kReceives) != 0) {
        TUTTI_UNROLL
        for (uint32_t u = 0; u < kAtOnce; ++u)
          if (first + u * step < lines) theirs[u] = LoadSlot(from + at(first + u * step));
      }
      if ((what & kReads) != 0) {
        TUTTI_UNROLL
        for (uint32_t u = 0; u < kAtOnce; ++u) {
          const uint32_t i = first + u * step;
          if (i < lines) mine[u] = LoadMine<kPlain>(input + at(i), bytes - at(i));
        }
      }
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint32_t i = first + u * step;
        if (i >= lines) continue;
        const Line line = Joined(what, theirs[u], mine[u]);
        if ((what & kSends) != 0) StoreLine(to + at(i), line);
        if ((what & kWrites) == 0) continue;
        if constexpr (kPlain)
          StoreLine(output + at(i), line);
        else
          StoreAny<16>(output + at(i), line, bytes - at(i));
      }
    }
  }
  template <bool kPlain>
  TUTTI_HD Line LoadMine(const std::byte* input, size_t left) const {
    if constexpr (kPlain) return LoadLine(input);
    const Line line = LoadAny<16>(input, left);
    return args_.reduce.scale ? ScaleLine<T, 16>(line, this->scalar_) : line;
  }
  TUTTI_HD Line Joined(uint32_t what, const Line& theirs, const Line& mine) const {
    if ((what & kReceives) == 0) return mine;
    if ((what & kReads) == 0) return theirs;
    auto sum = Pack<T, 16>::From(theirs.w);
    sum.Combine(args_.reduce.kind, Pack<T, 16>::From(mine.w));
    if ((what & kIsFinal) != 0) return this->template FinalLine<16>(sum);
    Line line = {};
    sum.To(line.w, args_.reduce.kind);
    return line;
  }

  const size_t begin_;
  std::byte *own_, *next_, *previous_;
  uint64_t sent_, received_;
};

// AllGather's own part goes to the output on its way to the next rank.
template <class P>
class KeepsOwnPart {
 public:
  // `own`: where in the output; `in_place`: it is there already.
  TUTTI_HD KeepsOwnPart(P& p, size_t own, bool in_place) : p_(p), own_(own), in_place_(in_place) {}
  TUTTI_HD void Send(size_t in, size_t n) {
    if (in_place_)
      p_.Send(in, n);
    else
      p_.CopySend(in, own_ + in, n);
  }
  TUTTI_HD void CopySend(size_t in, size_t out, size_t n) { p_.CopySend(in, out, n); }
  TUTTI_HD void Recv(size_t out, size_t n) { p_.Recv(out, n); }
  TUTTI_HD void RecvCopySend(size_t out, size_t n) { p_.RecvCopySend(out, n); }
  TUTTI_HD void RecvReduceSend(size_t in, size_t n) { p_.RecvReduceSend(in, n); }
  TUTTI_HD void RecvReduceCopyFinal(size_t in, size_t out, size_t n) {
    p_.RecvReduceCopyFinal(in, out, n);
  }
  TUTTI_HD void RecvReduceCopySendFinal(size_t in, size_t out, size_t n) {
    p_.RecvReduceCopySendFinal(in, out, n);
  }

 private:
  P& p_;
  const size_t own_;
  const bool in_place_;
};

}  // namespace tutti::cuda
