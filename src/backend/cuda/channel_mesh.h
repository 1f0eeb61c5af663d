#pragma once

// The MeshOneShotPrimitives of kernels/mesh.h for one block over FIFOs to and from every peer. The
// arguments hold the FIFOs in the order of the ranks, without this rank. A round is a slot of each
// FIFO. Thread i of the block waits for FIFO i and announces its chunk. The words of all FIFOs,
// which may lie in the host's memory, are thus read and written at the same time.

#include "backend/cuda/channel_fifo.h"
#include "backend/cuda/ring_elements.h"
#include "kernels/mesh.h"

namespace tutti::cuda {

template <class T>
class ChannelMesh {
 public:
  TUTTI_HD explicit ChannelMesh(const ChannelArgs& args)
      : args_(args), elements_(args.reduce), block_(args.common) {}
  // Keeps the counts for the next kernel. Without the barrier a thread might still read old counts.
  TUTTI_HD void Finish() {
    Lanes::Sync();
    block_.KeepFailure();
    ForMyFifos([&](uint32_t i) {
      if (SendsTo(i)) DeviceProducer(args_.next[i], pushed_).KeepCount();
      DeviceConsumer(args_.previous[i], reduced_).KeepCount();
    });
  }

  TUTTI_HD int rank() const { return args_.rank; }
  TUTTI_HD int num_ranks() const { return args_.num_ranks; }
  TUTTI_HD uint64_t TakeRounds(uint64_t) const { return 0; }
  // Publish and Wait do nothing: Push announces a slot after writing it, and Reduce waits for a
  // slot before reading it.
  TUTTI_HD void Publish(uint64_t) const {}
  TUTTI_HD void Wait(uint64_t) const {}

  TUTTI_HD void Push(uint64_t, const MeshParts& parts) {
    only_ = parts.only;
    if (block_.failed()) return;
    ForMyFifos([&](uint32_t i) {
      if (SendsTo(i)) DeviceProducer(args_.next[i], pushed_).AwaitRoom(block_);
    });
    block_.ShareFailure();
    if (block_.failed()) return;
    FillSlots(parts);
    Lanes::Sync();
    ForMyFifos([&](uint32_t i) {
      if (!SendsTo(i)) return;
      const DeviceProducer producer(args_.next[i], pushed_);
      producer.Describe(parts(RankOf(i)).size * sizeof(T), block_.op_tag());
      FenceSystem();
      producer.Announce();
    });
    ++pushed_;
  }

  TUTTI_HD void Reduce(uint64_t, size_t in, size_t out, size_t n) {
    if (n == 0 || block_.failed()) return;
    ForMyFifos([&](uint32_t i) { DeviceConsumer(args_.previous[i], reduced_).AwaitChunk(block_); });
    block_.ShareFailure();
    if (block_.failed()) return;
    AddSlots(args_.input + in * sizeof(T), args_.output + out * sizeof(T), n * sizeof(T));
    Lanes::Sync();
    ForMyFifos([&](uint32_t i) { DeviceConsumer(args_.previous[i], reduced_).Release(); });
    ++reduced_;
  }

 private:
  using Sum = typename RingElements<T>::Sum;
  static constexpr uint32_t kMostPeers = kMostOneShotRanks - 1;

  TUTTI_HD uint32_t Peers() const { return static_cast<uint32_t>(args_.num_ranks) - 1; }
  TUTTI_HD int RankOf(uint32_t i) const {
    return static_cast<int>(i) + (static_cast<int>(i) >= args_.rank ? 1 : 0);
  }
  TUTTI_HD bool SendsTo(uint32_t i) const { return only_ < 0 || RankOf(i) == only_; }
  template <class Do>
  TUTTI_HD void ForMyFifos(Do run) const {
    TUTTI_UNROLL_BY(1)
    for (uint32_t i = Lanes::index(); i < Peers(); i += Lanes::count()) run(i);
  }

  // Writes the parts of all ranks at once, hence loads for one rank do not wait for another's.
  TUTTI_HD void FillSlots(const MeshParts& parts) const {
    std::byte* slots[kMostPeers] = {};
    size_t most = 0;
    TUTTI_UNROLL
    for (uint32_t i = 0; i < kMostPeers; ++i) {
      if (i >= Peers() || !SendsTo(i)) continue;
      slots[i] = DeviceProducer(args_.next[i], pushed_).slot();
      const size_t bytes = parts(RankOf(i)).size * sizeof(T);
      if (bytes > most) most = bytes;
    }
    const auto lines = static_cast<uint32_t>(DivUp(most, 16));
    TUTTI_UNROLL_BY(1)
    for (uint32_t l = Lanes::index(); l < lines; l += Lanes::count()) {
      const size_t at = size_t{16} * l;
      Line mine[kMostPeers] = {};
      TUTTI_UNROLL
      for (uint32_t i = 0; i < kMostPeers; ++i) {
        if (slots[i] == nullptr) continue;
        const MeshPart part = parts(RankOf(i));
        if (at < part.size * sizeof(T))
          mine[i] = elements_.template Load<false>(args_.input + part.at * sizeof(T) + at,
                                                   part.size * sizeof(T) - at);
      }
      // A slot has room for whole lines of the longest part.
      TUTTI_UNROLL
      for (uint32_t i = 0; i < kMostPeers; ++i)
        if (slots[i] != nullptr) StoreLine(slots[i] + at, mine[i]);
    }
  }

  // Adds this rank's elements and the slots of all peers, in the order of the ranks. All loads of a
  // line precede its additions.
  TUTTI_HD void AddSlots(const std::byte* input, std::byte* output, size_t bytes) const {
    const std::byte* slots[kMostPeers] = {};
    TUTTI_UNROLL
    for (uint32_t i = 0; i < kMostPeers; ++i)
      if (i < Peers()) slots[i] = DeviceConsumer(args_.previous[i], reduced_).slot();
    const auto lines = static_cast<uint32_t>(DivUp(bytes, 16));
    TUTTI_UNROLL_BY(1)
    for (uint32_t l = Lanes::index(); l < lines; l += Lanes::count()) {
      const size_t at = size_t{16} * l;
      Line theirs[kMostPeers] = {};
      TUTTI_UNROLL
      for (uint32_t i = 0; i < kMostPeers; ++i)
        if (i < Peers()) theirs[i] = LoadSlot(slots[i] + at);
      const Line mine = elements_.template Load<false>(input + at, bytes - at);
      auto sum = Sum::From(args_.rank == 0 ? mine.w : theirs[0].w);
      TUTTI_UNROLL
      for (uint32_t i = 0; i < kMostPeers; ++i) {
        // This rank's turn comes before the turn of the first rank behind it.
        if (i > 0 && static_cast<int>(i) == args_.rank)
          sum.Combine(args_.reduce.kind, Sum::From(mine.w));
        if (i < Peers() && (i > 0 || args_.rank == 0))
          sum.Combine(args_.reduce.kind, Sum::From(theirs[i].w));
      }
      if (args_.rank == static_cast<int>(kMostPeers))
        sum.Combine(args_.reduce.kind, Sum::From(mine.w));
      StoreAny<16>(output + at, elements_.Stored(sum, true), bytes - at);
    }
  }

  const ChannelArgs& args_;
  const RingElements<T> elements_;
  ChannelBlock block_;
  uint64_t pushed_ = 0, reduced_ = 0;  // rounds
  int only_ = -1;                      // the only rank that this rank pushes to; -1: all peers
};

// A reduction in one shot. It has kernels of its own: beside the rings, whose steps are functions,
// the compiler would keep its state in memory, and fences would wait for those stores.
template <class T>
TUTTI_HD void RunOneShotReduction(const ChannelArgs& args, uint32_t) {
  ChannelMesh<T> p(args);
  kernels::MeshOneShotReduction(p, MeshShapeOf({args.count, args.chunk_elems, args.root}),
                                kernels::ReductionOf(args.collective));
  p.Finish();
}

}  // namespace tutti::cuda
