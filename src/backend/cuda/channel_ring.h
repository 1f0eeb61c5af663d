#pragma once

// The FifoPrimitives of kernels/primitives.h for one block over one channel. A chunk goes slice by
// slice through FIFOs, one slice per slot. Arrived data are read in their slot, combined, and
// written at once into the next rank's slot and, if they are a result, into the output.
//
// When elements are added in the order of the ranks, partial sums of narrow elements travel in the
// type of the additions, and are rounded only once (plan/reduction_order.h).

#include "backend/cuda/channel_fifo.h"
#include "backend/cuda/channel_two_level.h"
#include "backend/cuda/device/kernel.h"
#include "backend/cuda/ring_steps.h"
#include "kernels/rank_order.h"
#include "kernels/ring.h"

namespace tutti::cuda {

template <class T>
class ChannelRing : public RingSteps<ChannelRing<T>> {
 public:
  // `begin`: this channel's first element of input and output.
  TUTTI_HD ChannelRing(const ChannelArgs& args, uint32_t channel, size_t begin)
      : args_(args),
        elements_(args.reduce),
        block_(args.common),
        next_(args.next[channel]),
        previous_(args.previous[channel]),
        begin_(begin) {}
  // Keeps the counts for the next kernel. Without the barrier a thread might still read old counts.
  TUTTI_HD void Finish() {
    if (Lanes::index() == 0) next_.AwaitLent(block_);
    Lanes::Sync();
    block_.KeepFailure();
    if (Lanes::index() != 0) return;
    next_.KeepCount();
    previous_.KeepCount();
  }

 private:
  friend class RingSteps<ChannelRing>;
  template <class P>
  friend class KeepsOwnPart;
  using Sum = Pack<T, 16>;
  static constexpr size_t kSize = sizeof(T);
  // The lines of the partial sums of a line's elements, before rounding.
  static constexpr uint32_t kSumLines = sizeof(typename Sum::Wide) / kSize;

  // Out of line, because otherwise every call of the algorithms would contain a copy.
  TUTTI_OUTLINE void Step(uint32_t what, size_t in, size_t out, size_t n) {
    TUTTI_UNROLL_BY(1)
    for (size_t at = 0; at < n && !block_.failed(); at += args_.slice_elems)
      Slice(what, begin_ + in + at, begin_ + out + at, ClampChunk(at, args_.slice_elems, n));
  }
  TUTTI_HD void Slice(uint32_t what, size_t in, size_t out, size_t n) {
    WaitForPeers(what);
    if (block_.failed()) return;
    const std::byte* const input = args_.input + in * kSize;
    std::byte* const output = args_.output + out * kSize;
    const std::byte* const lent = LentPlace(what, input, output);
    const uint32_t moves = lent != nullptr ? what & ~uint32_t{kSends} : what;
    if constexpr (kSumLines > 1) {
      if (args_.in_rank_order && (what & kReads) != 0) {
        MoveSums(moves, input, output, n * kSize);
        Announce(what, lent, (what & kIsFinal) != 0 ? n * kSize : SumBytes(n * kSize));
        return;
      }
    }
    if ((moves & (kSends | kWrites)) != 0)
      MoveStep(elements_, moves,
               {.from = (what & kReceives) != 0 ? previous_.slot() : nullptr,
                .to = (moves & kSends) != 0 ? next_.slot() : nullptr,
                .input = input,
                .output = output,
                .bytes = n * kSize});
    Announce(what, lent, n * kSize);
  }
  // Returns where the NIC reads the sent data: own elements in the input, results in the output.
  TUTTI_HD const std::byte* LentPlace(uint32_t what, const std::byte* input,
                                      const std::byte* output) const {
    if ((what & kSends) == 0) return nullptr;
    return next_.LentPlace((what & (kReads | kReceives)) == kReads ? input : nullptr,
                           (what & kWrites) != 0 ? output : nullptr);
  }

  TUTTI_HD void WaitForPeers(uint32_t what) {
    // Two warps wait, if there are two.
    const uint32_t other = Lanes::count() > 32 ? 32 : 0;
    if ((what & kReceives) != 0 && Lanes::index() == 0) previous_.AwaitChunk(block_);
    if ((what & kSends) != 0 && Lanes::index() == other) next_.AwaitRoom(block_);
    block_.ShareFailure();
  }
  // The fence orders the writes before the announcement.
  TUTTI_HD void Announce(uint32_t what, const std::byte* lent, size_t bytes) {
    Lanes::Sync();
    if (Lanes::index() == 0) {
      if ((what & kReceives) != 0) previous_.Release();
      if ((what & kSends) != 0) {
        next_.DescribeAt(lent, bytes, block_.op_tag());
        FenceSystem();
        next_.Announce();
      }
    }
    if ((what & kSends) != 0) next_.Pass();
    if ((what & kReceives) != 0) previous_.Pass();
  }

  TUTTI_HD static constexpr size_t SumBytes(size_t bytes) {
    return DivUp(bytes, 16) * 16 * kSumLines;
  }
  // Adds this rank's elements to the arrived partial sums, which are not rounded. The sums of one
  // line of elements take several lines, which lie a slice's number of lines apart. Neighbours in a
  // warp therefore touch neighbours in memory.
  TUTTI_OUTLINE void MoveSums(uint32_t what, const std::byte* input, std::byte* output,
                              size_t bytes) {
    const std::byte* const from = (what & kReceives) != 0 ? previous_.slot() : nullptr;
    std::byte* const to = (what & kSends) != 0 ? next_.slot() : nullptr;
    const auto lines = static_cast<uint32_t>(DivUp(bytes, 16));
    TUTTI_UNROLL_BY(1)
    for (uint32_t i = Lanes::index(); i < lines; i += Lanes::count()) {
      const size_t at = size_t{16} * i;
      Sum sum = Sum::From(elements_.template Load<false>(input + at, bytes - at).w);
      if (from != nullptr) {
        Sum before = LoadSum(from + at, lines);
        before.Combine(args_.reduce.kind, sum);
        sum = before;
      }
      if ((what & kIsFinal) == 0) {
        StoreSum(to + at, lines, sum);
        continue;
      }
      const Line line = elements_.Stored(sum, true);
      if (to != nullptr) StoreLine(to + at, line);
      if ((what & kWrites) != 0) StoreAny<16>(output + at, line, bytes - at);
    }
  }
  TUTTI_HD static Sum LoadSum(const std::byte* from, uint32_t lines) {
    Line in[kSumLines] = {};
    TUTTI_UNROLL
    for (uint32_t l = 0; l < kSumLines; ++l) in[l] = LoadSlot(from + size_t{16} * lines * l);
    Sum sum;
    __builtin_memcpy(sum.v, in, sizeof(in));
    return sum;
  }
  TUTTI_HD static void StoreSum(std::byte* to, uint32_t lines, const Sum& sum) {
    Line out[kSumLines] = {};
    __builtin_memcpy(out, sum.v, sizeof(out));
    TUTTI_UNROLL
    for (uint32_t l = 0; l < kSumLines; ++l) StoreLine(to + size_t{16} * lines * l, out[l]);
  }

  const ChannelArgs& args_;
  const RingElements<T> elements_;
  ChannelBlock block_;
  DeviceProducer next_;
  DeviceConsumer previous_;
  const size_t begin_;
};

TUTTI_HD constexpr size_t ChannelBegin(const ChannelArgs& args, uint32_t channel) {
  return static_cast<size_t>(channel) * args.channel_elems;
}
TUTTI_HD constexpr kernels::RingWork RingWorkOf(const ChannelArgs& args, uint32_t channel) {
  return {.ring = args.rings[channel],
          .shape = {ClampChunk(ChannelBegin(args, channel), args.channel_elems, args.count),
                    args.chunk_elems, args.root},
          .stride = args.count,
          .in_place = args.input == args.output};
}
TUTTI_HD constexpr kernels::TwoLevelWork TwoLevelWorkOf(const ChannelArgs& args, uint32_t channel) {
  kernels::TwoLevelWork work = {
      .view = args.levels,
      .shape = RingWorkOf(args, channel).shape,
      .stride = args.count,
      .in_place = args.input == args.output + static_cast<size_t>(args.rank) * args.count};
  work.view.ring = args.host_rings[channel];
  return work;
}

template <class T>
TUTTI_HD void RunChannelReduction(const ChannelArgs& args, uint32_t channel) {
  if (args.two_level) {
    TwoLevelChannel<T> p(args, channel, ChannelBegin(args, channel));
    kernels::TwoLevelReduction(p, args.collective, TwoLevelWorkOf(args, channel));
    p.Finish();
    return;
  }
  ChannelRing<T> p(args, channel, ChannelBegin(args, channel));
  if (args.in_rank_order)
    kernels::RankOrderReduction(p, args.collective, RingWorkOf(args, channel), kFifoSlots);
  else
    kernels::RingReduction(p, args.collective, RingWorkOf(args, channel));
  p.Finish();
}

TUTTI_HD void RunChannelMove(const ChannelArgs& args, uint32_t channel) {
  if (args.two_level) {
    TwoLevelChannel<uint8_t> p(args, channel, ChannelBegin(args, channel));
    kernels::TwoLevelAllGather(p, TwoLevelWorkOf(args, channel));
    p.Finish();
    return;
  }
  ChannelRing<uint8_t> p(args, channel, ChannelBegin(args, channel));
  const size_t own = static_cast<size_t>(args.rank) * args.count;
  KeepsOwnPart<ChannelRing<uint8_t>> keeping(p, own, args.input == args.output + own);
  if (args.collective == Collective::kAllGather)
    kernels::RingMove(keeping, args.collective, RingWorkOf(args, channel));
  else
    kernels::RingMove(p, args.collective, RingWorkOf(args, channel));
  p.Finish();
}

}  // namespace tutti::cuda

// The entries of kernels, defined in device/channel.cu.
#define TUTTI_CHANNEL_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, ChannelArgs, tutti::cuda::kChannelThreads, 1, __VA_ARGS__)

#define TUTTI_CHANNEL_REDUCTION(name, T) \
  TUTTI_CHANNEL_KERNEL(tutti_##name##_channel, RunChannelReduction<T>)
