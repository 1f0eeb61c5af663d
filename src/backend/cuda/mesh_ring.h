#pragma once

// The FifoPrimitives of kernels/primitives.h for one block: the ring and chain algorithms of
// kernels/ring.h among GPUs. Block b of a rank receives from block b of the previous rank and sends
// to block b of the next rank. Arrived data are read in their slot, combined, and written at once
// into the next rank's window and, if they are a result, into the output. Each byte crosses the
// wire once, and no block turns from sending to fetching while the wire idles.
//
//   sender    wait until head + kRingSlots > step ─ write the slot ─ tail = step + 1
//   receiver  wait until tail > step ─ read the slot ─ head = step + 1
//
// The sender writes the tail into the receiver's window, and the receiver writes the head into the
// sender's. Slots are a block's Simple slots, in the ring's view (mesh_args.h).

#include "backend/cuda/mesh_primitives.h"
#include "backend/cuda/ring_steps.h"

namespace tutti::cuda {

template <class T>
class RingPrimitives : public MeshBlock<T>, public RingSteps<RingPrimitives<T>> {
 public:
  // `begin`: this block's first element of input and output.
  TUTTI_HD RingPrimitives(const MeshArgs& args, uint32_t block, size_t begin)
      : MeshBlock<T>(args, block), elements_(args.reduce), begin_(begin) {
    this->EnterView(WindowView::kRing);
    const int index = args.ring_index, n = args.num_ranks;
    next_ = args.windows[args.ring[index + 1 < n ? index + 1 : 0]];
    previous_ = args.windows[args.ring[index > 0 ? index - 1 : n - 1]];
    own_ = args.windows[args.rank];
    sent_ = *this->Word(own_, WindowLayout::kSentAt);
    received_ = *this->Word(own_, WindowLayout::kReceivedAt);
  }
  // As MeshBlock::Finish, and keeps the steps of the ring.
  TUTTI_HD void Finish() {
    MeshBlock<T>::Finish();
    if (Lanes::index() != 0) return;
    *this->Word(own_, WindowLayout::kSentAt) = sent_;
    *this->Word(own_, WindowLayout::kReceivedAt) = received_;
  }

 private:
  friend class RingSteps<RingPrimitives>;
  template <class P>
  friend class KeepsOwnPart;
  using MeshBlock<T>::kSize;
  using MeshBlock<T>::args_;

  // Out of line, because otherwise every call of the algorithms would contain a copy.
  TUTTI_OUTLINE void Step(uint32_t what, size_t in, size_t out, size_t n) {
    if (this->failed_) return;
    WaitForPeers(what);
    if (this->failed_) return;
    MoveStep(elements_, what,
             {.from = own_ + args_.layout.RingSlotAt(this->block_, received_),
              .to = next_ + args_.layout.RingSlotAt(this->block_, sent_),
              .input = this->Input(begin_ + in),
              .output = this->Output(begin_ + out),
              .bytes = n * kSize});
    Announce(what);
  }

  TUTTI_HD void WaitForPeers(uint32_t what) {
    // Two warps wait, if there are two.
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
  // One fence serves both: it orders the writes before the tail and the reads before the head.
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

  const RingElements<T> elements_;
  const size_t begin_;
  std::byte *own_, *next_, *previous_;
  uint64_t sent_, received_;
};

}  // namespace tutti::cuda
