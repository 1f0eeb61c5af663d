#pragma once

// LL128Primitives (mesh_primitives.h). Data go in pairs of lines of 128 bytes (ll128_line.h). As
// with LL there is no fence and no barrier. Each warp waits only for the lines that it needs next,
// and passes arrived data on while more data are under way. A message takes hardly more than its
// own bytes on the wire. As with LL, each operation and block has one piece.

#include "backend/cuda/ll128_line.h"

namespace tutti::cuda {

template <class T>
class LL128Primitives : public MeshBlock<T> {
 public:
  using MeshBlock<T>::MeshBlock;
  using MeshBlock<T>::num_ranks;
  using MeshBlock<T>::rank;

  TUTTI_HD void Publish(uint64_t) {}
  TUTTI_HD void Wait(uint64_t) {}

  TUTTI_HD void Push(uint64_t round, const MeshParts& parts) {
    if (this->failed_) return;
    if (parts.SameForAll()) {
      const size_t bytes = parts.size * kSize;
      const uint32_t pairs = Pairs(bytes), step = Octets::count();
      TUTTI_UNROLL_BY(1)
      for (uint32_t p = Octets::index(); p < pairs; p += 2 * step) {
        const Share first = LoadShare(parts.at, p, bytes);
        Share second = {};
        if (p + step < pairs) second = LoadShare(parts.at, p + step, bytes);
        SendAll(round, p, first, -1, true);
        if (p + step < pairs) SendAll(round, p + step, second, -1, true);
      }
      return;
    }
    ForParts(parts, [&](int peer, const MeshPart& part, uint32_t p, bool active) {
      if (active) Send(round, peer, p, LoadShare(part.at, p, part.size * kSize));
    });
  }
  TUTTI_HD void Fetch(uint64_t round, const MeshParts& parts) {
    ForParts(parts, [&](int peer, const MeshPart& part, uint32_t p, bool active) {
      Wire wire;
      Receive<1>(
          round, p, [&](int) { return peer; }, [&](int) { return active; }, &wire);
      if (active && !this->failed_)
        StoreShare(part.at, p, part.size * kSize, LL128Line::FromWire(wire));
    });
  }
  TUTTI_HD void Reduce(uint64_t round, size_t in, size_t out, size_t n) {
    ForPairs(n * kSize, [&](uint32_t p, bool active) {
      const Share sum = ReduceShare(round, p, in, n, active);
      if (active && !this->failed_) StoreShare(out, p, n * kSize, sum);
    });
  }
  TUTTI_HD void ReducePush(uint64_t round, size_t in, size_t out, size_t n, uint64_t to,
                           int target) {
    ForPairs(n * kSize, [&](uint32_t p, bool active) {
      const Share sum = ReduceShare(round, p, in, n, active);
      if (!active || this->failed_) return;
      SendAll(to, p, sum, target, target < 0);
      if (target < 0) StoreShare(out, p, n * kSize, sum);
    });
  }
  TUTTI_HD void Forward(uint64_t round, int from, size_t out, size_t n, uint64_t to) {
    ForPairs(n * kSize, [&](uint32_t p, bool active) {
      Wire wire = {};
      Receive<1>(
          round, p, [&](int) { return from; }, [&](int) { return active && from != rank(); },
          &wire);
      if (!active || this->failed_) return;
      const Share share = LL128Line::FromWire(wire);
      SendAll(to, p, share, from, true);
      StoreShare(out, p, n * kSize, share);
    });
  }

 private:
  using MeshBlock<T>::kSize;
  using MeshBlock<T>::args_;
  using Share = LL128Share;
  using Wire = LL128Wire;
  // The most ranks whose lines are requested at once, limited by the registers.
  static constexpr int kBatch = 4;

  // Every two ranks exchange a pair of lines in every round, even without data.
  TUTTI_HD static uint32_t Pairs(size_t bytes) {
    return bytes == 0 ? 1 : static_cast<uint32_t>(DivUp(bytes, kLL128PairData));
  }
  template <class F>
  TUTTI_HD static void ForPairs(size_t bytes, F f) {
    ForOctetItems(Pairs(bytes), f);
  }
  // Calls f(peer, part, pair, active) over all peers' parts, which form one sequence to the octets.
  template <class F>
  TUTTI_HD void ForParts(const MeshParts& parts, F f) {
    const auto longest = parts.size < parts.total ? parts.size : parts.total;
    const uint32_t pairs = Pairs(longest * kSize);
    ForOctetItems(pairs * static_cast<uint32_t>(num_ranks() - 1), [&](uint32_t item, bool active) {
      const int peer = this->Peer(active ? 1 + static_cast<int>(item / pairs) : 0);
      const MeshPart part = parts(peer);
      const uint32_t p = item % pairs;
      f(peer, part, p, active && (p == 0 || p * kLL128PairData < part.size * kSize));
    });
  }

  TUTTI_HD Share LoadShare(size_t at, uint32_t pair, size_t bytes) const {
    const size_t begin = pair * kLL128PairData;
    Share share = LL128Line::FromBuffer(this->Input(at) + begin, bytes - begin);
    if (args_.reduce.scale)
      LL128Line::ForEach([&](uint32_t k, int half, size_t) {
        share.data[k][half] = ScaleLine<T, 16>(share.data[k][half], this->scalar_);
      });
    return share;
  }
  TUTTI_HD void StoreShare(size_t at, uint32_t pair, size_t bytes, const Share& share) const {
    const size_t begin = pair * kLL128PairData;
    if (begin < bytes) LL128Line::ToBuffer(this->Output(at) + begin, share, bytes - begin);
  }

  TUTTI_HD std::byte* Slot(std::byte* window, uint64_t round, int writer, uint32_t pair) const {
    return window + args_.layout.LL128At() +
           this->SlotIndex(round, writer) * args_.layout.LL128Bytes() + pair * kLL128PairBytes;
  }
  TUTTI_HD void Send(uint64_t round, int peer, uint32_t pair, const Share& share) const {
    LL128Line::Store(Slot(args_.windows[peer], round, rank(), pair),
                     LL128Line::ToWire(round + 1, share));
  }
  // Sends as LLPrimitives::SendAll does.
  TUTTI_HD void SendAll(uint64_t round, uint32_t pair, const Share& share, int special,
                        bool with_others) const {
    const Wire wire = LL128Line::ToWire(round + 1, share);
    TUTTI_UNROLL_BY(1)
    for (int k = 1; k < num_ranks(); ++k) {
      const int peer = this->Peer(k);
      if (pair == 0 || (peer == special) != with_others)
        LL128Line::Store(Slot(args_.windows[peer], round, rank(), pair), wire);
    }
  }

  // Receives a pair from the wanted ones of kCount writers. All pairs are requested before any is
  // awaited. All threads of a warp call Receive, and return together.
  template <int kCount, class Writer, class Wanted>
  TUTTI_HD void Receive(uint64_t round, uint32_t pair, Writer writer, Wanted wanted, Wire* wires) {
    if (this->failed_) return;
    std::byte* const window = args_.windows[rank()];
    TUTTI_UNROLL_BY(1)
    for (uint32_t polls = 1;; ++polls) {
      TUTTI_UNROLL
      for (int i = 0; i < kCount; ++i)
        if (wanted(i)) LL128Line::Load(Slot(window, round, writer(i), pair), wires[i]);
      bool complete = true;
      TUTTI_UNROLL
      for (int i = 0; i < kCount; ++i)
        if (wanted(i)) complete &= LL128Line::HasFlags(round + 1, wires[i]);
      if (Lanes::WarpAll(complete)) return;
      const bool gives_up = this->Poll(polls);
      if (polls % kLookEvery == 0 && !Lanes::WarpAll(!gives_up)) {
        this->failed_ = true;
        return;
      }
    }
  }
  // Combines the own input and the pair of every rank, in rank order.
  TUTTI_HD Share ReduceShare(uint64_t round, uint32_t pair, size_t in, size_t n, bool active) {
    Share own = {};
    if (active) own = LoadShare(in, pair, n * kSize);
    Pack<T, 16> sum[Octets::kPieces][2];
    TUTTI_UNROLL_BY(1)
    for (int base = 0; base < num_ranks(); base += kBatch) {
      Wire theirs[kBatch];
      Receive<kBatch>(
          round, pair, [&](int k) { return base + k; },
          [&](int k) { return active && base + k < num_ranks() && base + k != rank(); }, theirs);
      TUTTI_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        if (base + k >= num_ranks()) continue;
        const Share share = base + k == rank() ? own : LL128Line::FromWire(theirs[k]);
        LL128Line::ForEach([&](uint32_t piece, int half, size_t) {
          const auto next = Pack<T, 16>::From(share.data[piece][half].w);
          if (base + k == 0)
            sum[piece][half] = next;
          else
            sum[piece][half].Combine(args_.reduce.kind, next);
        });
      }
    }
    Share result = {};
    LL128Line::ForEach([&](uint32_t piece, int half, size_t) {
      result.data[piece][half] = this->template FinalLine<16>(sum[piece][half]);
    });
    return result;
  }
};

}  // namespace tutti::cuda
