#pragma once

// The third form of the MeshPrimitives, between lines and bulk: WidePrimitives, lines of 128 bytes
// whose last 8 are their flag (target.h says why that is enough, and where). As in small lines there
// is no fence and no barrier, and each warp waits for just what it needs next, so that it sends on
// what has come while more is under way; and a message takes hardly more than its bytes on the wire.
// One piece for each operation and block, as with small lines.
//
// A pair of lines lies in the window and in a buffer so (L: 16 bytes of a line, D: of the data):
//
//             piece 0 … 6              piece 7
//   line 0    L0 = D0 … L6 = D6        8 bytes: first half of D14 ─ flag
//   line 1    L0 = D7 … L6 = D13       8 bytes: second half of D14 ─ flag
//
// Each thread of an octet has one piece: the first seven move 32 bytes of data, the last one 16.

#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

template <class T>
class WidePrimitives : public MeshBlock<T> {
 public:
  using MeshBlock<T>::MeshBlock;
  using MeshBlock<T>::num_ranks;
  using MeshBlock<T>::rank;

  TUTTI_HD void Publish(uint64_t) {}
  TUTTI_HD void Wait(uint64_t) {}

  TUTTI_HD void Push(uint64_t round, const MeshParts& parts) {
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
      if (active) StoreShare(part.at, p, part.size * kSize, ShareOf(wire));
    });
  }
  TUTTI_HD void Reduce(uint64_t round, size_t in, size_t out, size_t n) {
    ForPairs(n * kSize, [&](uint32_t p, bool active) {
      const Share sum = ReduceShare(round, p, in, n, active);
      if (active) StoreShare(out, p, n * kSize, sum);
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
      const Share share = ShareOf(wire);
      SendAll(to, p, share, from, true);
      StoreShare(out, p, n * kSize, share);
    });
  }

 private:
  using MeshBlock<T>::kSize;
  using MeshBlock<T>::args_;
  static constexpr uint32_t kPieces = Octets::kPieces;
  static constexpr uint32_t kFlagPiece = 7;
  // Ranks whose lines are asked for at once: what registers have room for.
  static constexpr int kBatch = 4;

  // What a thread has of a pair's data: of each of its pieces two lines of data; one of the last.
  struct Share {
    Line data[kPieces][2];
  };
  TUTTI_HD static bool Has(uint32_t piece, int half) { return half == 0 || piece < kFlagPiece; }
  TUTTI_HD static size_t DataAt(uint32_t piece, int half) {
    if (half == 0) return 16 * size_t{piece < kFlagPiece ? piece : 14};
    return 16 * size_t{kFlagPiece + piece};
  }

  // Every two ranks exchange a pair of lines in every round, also when they have no data.
  TUTTI_HD static uint32_t Pairs(size_t bytes) {
    return bytes == 0 ? 1 : static_cast<uint32_t>(DivUp(bytes, kWidePairData));
  }
  // f(item, active) for every item, shared out over the octets; the octets of a warp, which wait
  // together, call it equally often, some of them without an item at the end.
  template <class F>
  TUTTI_HD static void ForItems(uint32_t items, F f) {
    constexpr uint32_t kWarp = Octets::kTogether;
    const uint32_t index = Octets::index();
    TUTTI_UNROLL_BY(1)
    for (uint32_t first = index / kWarp * kWarp; first < items; first += Octets::count())
      f(first + index % kWarp, first + index % kWarp < items);
  }
  template <class F>
  TUTTI_HD static void ForPairs(size_t bytes, F f) {
    ForItems(Pairs(bytes), f);
  }
  // The same over the parts of all other ranks, which are one sequence to the octets: f(peer, part,
  // pair, active).
  template <class F>
  TUTTI_HD void ForParts(const MeshParts& parts, F f) {
    const auto longest = parts.size < parts.total ? parts.size : parts.total;
    const uint32_t pairs = Pairs(longest * kSize);
    ForItems(pairs * static_cast<uint32_t>(num_ranks() - 1), [&](uint32_t item, bool active) {
      const int peer = this->Peer(active ? 1 + static_cast<int>(item / pairs) : 0);
      const MeshPart part = parts(peer);
      const uint32_t p = item % pairs;
      f(peer, part, p, active && (p == 0 || p * kWidePairData < part.size * kSize));
    });
  }

  TUTTI_HD Share LoadShare(size_t at, uint32_t pair, size_t bytes) const {
    Share share = {};
    const size_t begin = pair * kWidePairData;
    const std::byte* const from = this->Input(at) + begin;
    const size_t left = bytes - begin;
    // All loads of a whole pair are under way at once.
    if (left >= kWidePairData && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      ForEach([&](uint32_t k, int half, size_t data_at) {
        share.data[k][half] = LoadLine(from + data_at);
      });
    } else {
      ForEach([&](uint32_t k, int half, size_t data_at) {
        if (data_at < left) share.data[k][half] = LoadPieces<16>(from + data_at, left - data_at);
      });
    }
    if (args_.reduce.scale)
      ForEach([&](uint32_t k, int half, size_t) {
        share.data[k][half] = ScaleLine<T, 16>(share.data[k][half], this->scalar_);
      });
    return share;
  }
  TUTTI_HD void StoreShare(size_t at, uint32_t pair, size_t bytes, const Share& share) const {
    const size_t begin = pair * kWidePairData;
    std::byte* const to = this->Output(at) + begin;
    ForEach([&](uint32_t k, int half, size_t data_at) {
      if (begin + data_at < bytes)
        StoreAny<16>(to + data_at, share.data[k][half], bytes - begin - data_at);
    });
  }
  // f(k, half, where in the data of the pair) for all that this thread has.
  template <class F>
  TUTTI_HD static void ForEach(F f) {
    TUTTI_UNROLL
    for (uint32_t k = 0; k < kPieces; ++k) {
      TUTTI_UNROLL
      for (int half = 0; half < 2; ++half)
        if (Has(Octets::piece(k), half)) f(k, half, DataAt(Octets::piece(k), half));
    }
  }

  TUTTI_HD std::byte* Slot(std::byte* window, uint64_t round, int writer, uint32_t pair) const {
    return window + args_.layout.WideAt() +
           this->SlotIndex(round, writer) * args_.layout.WideBytes() + pair * kWidePairBytes;
  }
  static constexpr size_t kLineBytes = kWidePairBytes / 2;

  // The pieces of both lines with their flags, as they cross the wire.
  struct Wire {
    FlaggedLine line[kPieces][2];
  };
  TUTTI_HD static uint64_t Word(const Line& line, int i) {
    return line.w[2 * i] | static_cast<uint64_t>(line.w[2 * i + 1]) << 32;
  }
  TUTTI_HD static Wire WireOf(uint64_t round, const Share& share) {
    Wire wire;
    TUTTI_UNROLL
    for (uint32_t k = 0; k < kPieces; ++k) {
      const Line first = share.data[k][0], second = share.data[k][1];
      const bool last = Octets::piece(k) == kFlagPiece;
      wire.line[k][0] = {{Word(first, 0), last ? round + 1 : Word(first, 1)}};
      wire.line[k][1] = {{last ? Word(first, 1) : Word(second, 0),  //
                          last ? round + 1 : Word(second, 1)}};
    }
    return wire;
  }
  TUTTI_HD static void Store(std::byte* slot, const Wire& wire) {
    Octets::Converge();  // a line leaves as one only if its threads store together
    TUTTI_UNROLL
    for (int half = 0; half < 2; ++half) {
      TUTTI_UNROLL
      for (uint32_t k = 0; k < kPieces; ++k)
        StoreFlagged(slot + half * kLineBytes + 16 * Octets::piece(k), wire.line[k][half]);
    }
  }
  TUTTI_HD void Send(uint64_t round, int peer, uint32_t pair, const Share& share) const {
    Store(Slot(args_.windows[peer], round, rank(), pair), WireOf(round, share));
  }
  // As in LinePrimitives.
  TUTTI_HD void SendAll(uint64_t round, uint32_t pair, const Share& share, int special,
                        bool with_others) const {
    const Wire wire = WireOf(round, share);
    TUTTI_UNROLL_BY(1)
    for (int k = 1; k < num_ranks(); ++k) {
      const int peer = this->Peer(k);
      if (pair == 0 || (peer == special) != with_others)
        Store(Slot(args_.windows[peer], round, rank(), pair), wire);
    }
  }

  // A pair of the wanted ones of kCount writers; all are asked for before any is waited for. All
  // threads of a warp call it, and return together.
  template <int kCount, class Writer, class Wanted>
  TUTTI_HD void Receive(uint64_t round, uint32_t pair, Writer writer, Wanted wanted, Wire* wires) {
    if (this->failed_) return;
    std::byte* const window = args_.windows[rank()];
    TUTTI_UNROLL_BY(1)
    for (uint32_t polls = 1;; ++polls) {
      TUTTI_UNROLL
      for (int i = 0; i < kCount; ++i)
        if (wanted(i)) Load(Slot(window, round, writer(i), pair), wires[i]);
      bool complete = true;
      TUTTI_UNROLL
      for (int i = 0; i < kCount; ++i)
        if (wanted(i)) complete &= IsOf(round, wires[i]);
      if (Lanes::WarpAll(complete)) break;
      const bool gives_up = this->Poll(polls);
      if (polls % kLookEvery == 0 && !Lanes::WarpAll(!gives_up)) {
        this->failed_ = true;
        return;
      }
    }
    // That a line is written as one does not say that eight threads read it as one.
    TUTTI_UNROLL
    for (int i = 0; i < kCount; ++i)
      if (wanted(i)) Load(Slot(window, round, writer(i), pair), wires[i]);
  }
  // The flags first, where one thread loads all pieces.
  TUTTI_HD static void Load(const std::byte* slot, Wire& wire) {
    TUTTI_UNROLL
    for (uint32_t k = kPieces; k-- > 0;) {
      TUTTI_UNROLL
      for (int half = 0; half < 2; ++half)
        wire.line[k][half] = LoadFlagged(slot + half * kLineBytes + 16 * Octets::piece(k));
    }
  }
  // Whether the flags, if this thread has them, are those of the round.
  TUTTI_HD static bool IsOf(uint64_t round, const Wire& wire) {
    bool complete = true;
    TUTTI_UNROLL
    for (uint32_t k = 0; k < kPieces; ++k)
      if (Octets::piece(k) == kFlagPiece)
        complete &= wire.line[k][0].word[1] == round + 1 && wire.line[k][1].word[1] == round + 1;
    return complete;
  }
  TUTTI_HD static Share ShareOf(const Wire& wire) {
    Share share;
    TUTTI_UNROLL
    for (uint32_t k = 0; k < kPieces; ++k) {
      const FlaggedLine first = wire.line[k][0], second = wire.line[k][1];
      const uint64_t word = Octets::piece(k) == kFlagPiece ? second.word[0] : first.word[1];
      share.data[k][0] = {{Low(first.word[0]), High(first.word[0]), Low(word), High(word)}};
      share.data[k][1] = {
          {Low(second.word[0]), High(second.word[0]), Low(second.word[1]), High(second.word[1])}};
    }
    return share;
  }
  TUTTI_HD static uint32_t Low(uint64_t word) { return static_cast<uint32_t>(word); }
  TUTTI_HD static uint32_t High(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

  // Own input and everybody's pair, in rank order.
  TUTTI_HD Share ReduceShare(uint64_t round, uint32_t pair, size_t in, size_t n, bool active) {
    Share own = {};
    if (active) own = LoadShare(in, pair, n * kSize);
    Pack<T, 16> sum[kPieces][2];
    TUTTI_UNROLL_BY(1)
    for (int base = 0; base < num_ranks(); base += kBatch) {
      Wire theirs[kBatch];
      Receive<kBatch>(
          round, pair, [&](int k) { return base + k; },
          [&](int k) { return active && base + k < num_ranks() && base + k != rank(); }, theirs);
      TUTTI_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        if (base + k >= num_ranks()) continue;
        const Share share = base + k == rank() ? own : ShareOf(theirs[k]);
        ForEach([&](uint32_t piece, int half, size_t) {
          const auto next = Pack<T, 16>::From(share.data[piece][half].w);
          if (base + k == 0)
            sum[piece][half] = next;
          else
            sum[piece][half].Combine(args_.reduce.kind, next);
        });
      }
    }
    Share result = {};
    ForEach([&](uint32_t piece, int half, size_t) {
      result.data[piece][half] = this->template FinalLine<16>(sum[piece][half]);
    });
    return result;
  }
};

}  // namespace tutti::cuda
