#pragma once

// The MeshPrimitives of kernels/mesh.h for one block, in two forms:
//   LinePrimitives   small messages in flagged lines: no fence and no barrier; each thread waits
//                    for the very line that it needs. A message takes twice its bytes on the wire.
//   BulkPrimitives   large messages: plain 16-byte stores, then a flag per writer and round.
// An object belongs to one kernel and block; all threads of the block call it alike. Once the abort
// word is raised (looked at every kLookEvery polls) all waits end and results are left unfinished.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/mesh_args.h"

namespace tutti::cuda {

inline constexpr uint32_t kLookEvery = 4096;
// Peers whose lines are asked for at the same time: those of a machine with eight GPUs.
inline constexpr int kTogether = 8;

// Memory at any address, `valid` bytes of it up to kBytes; the rest reads as zero. What is not
// aligned, or the end of a buffer, goes word by word or byte by byte, out of line: it would stand
// in the code many times.
template <int kBytes>
TUTTI_OUTLINE Line LoadPieces(const std::byte* from, size_t valid) {
  Line line = {};
  const bool whole_words = reinterpret_cast<uintptr_t>(from) % 4 == 0;
  TUTTI_UNROLL
  for (size_t i = 0; i < kBytes / 4; ++i) {
    if (whole_words && i * 4 + 4 <= valid) {
      line.w[i] = *reinterpret_cast<const uint32_t*>(from + i * 4);
    } else {
      for (size_t b = i * 4; b < i * 4 + 4 && b < valid; ++b)
        line.w[i] |= static_cast<uint32_t>(from[b]) << (8 * (b % 4));
    }
  }
  return line;
}
template <int kBytes>
TUTTI_OUTLINE void StorePieces(std::byte* to, Line line, size_t valid) {
  const bool whole_words = reinterpret_cast<uintptr_t>(to) % 4 == 0;
  TUTTI_UNROLL
  for (size_t i = 0; i < kBytes / 4; ++i) {
    if (whole_words && i * 4 + 4 <= valid) {
      *reinterpret_cast<uint32_t*>(to + i * 4) = line.w[i];
    } else {
      for (size_t b = i * 4; b < i * 4 + 4 && b < valid; ++b)
        to[b] = static_cast<std::byte>(line.w[i] >> (8 * (b % 4)));
    }
  }
}

template <int kBytes>
TUTTI_HD Line LoadAny(const std::byte* from, size_t valid) {
  if (valid < kBytes || reinterpret_cast<uintptr_t>(from) % kBytes != 0)
    return LoadPieces<kBytes>(from, valid);
  if constexpr (kBytes == 16) return LoadLine(from);
  const uint64_t word = *reinterpret_cast<const uint64_t*>(from);
  return {{static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), 0, 0}};
}
template <int kBytes>
TUTTI_HD void StoreAny(std::byte* to, const Line& line, size_t valid) {
  if (valid < kBytes || reinterpret_cast<uintptr_t>(to) % kBytes != 0)
    StorePieces<kBytes>(to, line, valid);
  else if constexpr (kBytes == 16)
    StoreLine(to, line);
  else
    *reinterpret_cast<uint64_t*>(to) = line.w[0] | static_cast<uint64_t>(line.w[1]) << 32;
}

// Lines of a thread under way at the same time.
inline constexpr uint32_t kUnroll = 4;

// load(line, i), then store(line, i), for i < lines, shared out over the block's threads; kUnroll
// loads are under way before the first store.
template <class Load, class Store>
TUTTI_HD void ForLinesOf(size_t num_lines, Load load, Store store) {
  const auto lines = static_cast<uint32_t>(num_lines);
  const uint32_t step = Lanes::count();
  TUTTI_UNROLL_BY(1)
  for (uint32_t first = Lanes::index(); first < lines; first += step * kUnroll) {
    Line line[kUnroll];
    TUTTI_UNROLL
    for (uint32_t u = 0; u < kUnroll; ++u)
      if (first + u * step < lines) load(line[u], first + u * step);
    TUTTI_UNROLL
    for (uint32_t u = 0; u < kUnroll; ++u)
      if (first + u * step < lines) store(line[u], first + u * step);
  }
}

// Both halves of a round's number count, so that a line of four thousand million rounds ago is
// not taken for a new one.
TUTTI_HD uint32_t LowFlag(uint64_t round) { return static_cast<uint32_t>(round + 1); }
TUTTI_HD uint32_t HighFlag(uint64_t round) {
  return static_cast<uint32_t>(round + 1) ^ static_cast<uint32_t>((round + 1) >> 32) ^ 0x5a5a5a5au;
}
TUTTI_HD FlaggedLine MakeFlagged(uint64_t round, const Line& data) {
  return {{data.w[0] | static_cast<uint64_t>(LowFlag(round)) << 32,
           data.w[1] | static_cast<uint64_t>(HighFlag(round)) << 32}};
}
TUTTI_HD bool HasFlags(uint64_t round, const FlaggedLine& line) {
  return static_cast<uint32_t>(line.word[0] >> 32) == LowFlag(round) &&
         static_cast<uint32_t>(line.word[1] >> 32) == HighFlag(round);
}
TUTTI_HD Line DataOf(const FlaggedLine& line) {
  return {{static_cast<uint32_t>(line.word[0]), static_cast<uint32_t>(line.word[1]), 0, 0}};
}

// What both forms share: who is who, where slots are, the count of rounds, and giving up.
template <class T>
class MeshBlock {
 public:
  TUTTI_HD MeshBlock(const MeshArgs& args, uint32_t block)
      : args_(args), block_(block), scalar_(args.reduce.scalar) {
    std::byte* const window = args.windows[args.rank];
    round_ = *Word(window, 0);
    view_ = *Word(window, WindowLayout::kViewsAt);
    if (args.reduce.live_scalar != nullptr) {
      scalar_ = 0;
      __builtin_memcpy(&scalar_, args.reduce.live_scalar, sizeof(T));
    }
  }

  TUTTI_HD int rank() const { return args_.rank; }
  TUTTI_HD int num_ranks() const { return args_.num_ranks; }
  TUTTI_HD uint64_t TakeRounds(uint64_t rounds) {
    const uint64_t first = round_;
    round_ += rounds;
    return first;
  }

  // Keeps the counts for the next kernel. The barrier: no thread may still be about to read it.
  TUTTI_HD void Finish() {
    Lanes::Sync();
    if (Lanes::index() == 0) {
      *Word(args_.windows[args_.rank], 0) = round_;
      *Word(args_.windows[args_.rank], WindowLayout::kViewsAt) = view_;
    }
  }

 protected:
  static constexpr size_t kSize = sizeof(T);
  // To all others: what this block has written to them is there.
  TUTTI_HD void Publish(uint64_t round) {
    Lanes::Sync();
    TUTTI_UNROLL_BY(1)
    for (uint32_t k = Lanes::index(); k < static_cast<uint32_t>(num_ranks()); k += Lanes::count()) {
      if (static_cast<int>(k) == rank()) continue;
      FenceSystem();
      StoreFlag(Flag(args_.windows[k], rank()), round + 1);
    }
  }
  // Until all others have published the round to this block.
  TUTTI_HD void Wait(uint64_t round) {
    TUTTI_UNROLL_BY(1)
    for (uint32_t k = Lanes::index(); k < static_cast<uint32_t>(num_ranks()); k += Lanes::count()) {
      if (static_cast<int>(k) == rank()) continue;
      const uint64_t* flag = Flag(args_.windows[rank()], static_cast<int>(k));
      TUTTI_UNROLL_BY(1)
      for (uint32_t polls = 1; !failed_ && LoadFlagAcquire(flag) < round + 1; ++polls)
        if (Poll(polls)) break;
    }
    failed_ = Lanes::SyncAny(failed_);
  }

  TUTTI_HD uint64_t* Word(std::byte* window, size_t array_at) const {
    return reinterpret_cast<uint64_t*>(window + array_at) + block_;
  }
  TUTTI_HD uint64_t* Flag(std::byte* window, int writer) const {
    return reinterpret_cast<uint64_t*>(window + WindowLayout::kFlagsAt) +
           static_cast<size_t>(block_) * kMaxMeshRanks + writer;
  }
  // Before the first use of bulk slots: see mesh_args.h.
  TUTTI_HD void EnterView(WindowView view) {
    if (view_ == static_cast<uint64_t>(view)) return;
    view_ = static_cast<uint64_t>(view);
    const uint64_t round = TakeRounds(1);
    Publish(round);
    Wait(round);
  }
  // The i-th other rank, each rank beginning with its neighbour.
  TUTTI_HD int Peer(int i) const {
    const int peer = args_.rank + i;
    return peer < args_.num_ranks ? peer : peer - args_.num_ranks;
  }
  TUTTI_HD const std::byte* Input(size_t at) const { return args_.input + at * kSize; }
  TUTTI_HD std::byte* Output(size_t at) const { return args_.output + at * kSize; }
  TUTTI_HD size_t SlotIndex(uint64_t round, int writer) const {
    return args_.layout.SlotIndex(block_, round, writer);
  }
  // Whether to give up; polls count up from 1.
  TUTTI_HD bool Poll(uint32_t polls) {
    Lanes::Relax();
    if (polls % kLookEvery == 0 && IsRaised(args_.abort_word)) failed_ = true;
    return failed_;
  }
  template <int kBytes>
  TUTTI_HD Line LoadInput(size_t at, size_t byte, size_t bytes) const {
    const Line line = LoadAny<kBytes>(Input(at) + byte, bytes - byte);
    return args_.reduce.scale ? ScaleLine<T, kBytes>(line, scalar_) : line;
  }
  template <int kBytes>
  TUTTI_HD Line FinalLine(const Pack<T, kBytes>& sum) const {
    Line line = {};
    if (args_.reduce.divisor > 1)
      line = DividedBy<T, kBytes>(sum, args_.reduce.divisor);
    else
      sum.To(line.w);
    return line;
  }

  const MeshArgs& args_;
  const uint32_t block_;
  uint64_t scalar_;
  uint64_t round_;
  uint64_t view_;
  bool failed_ = false;
};

template <class T>
class LinePrimitives : public MeshBlock<T> {
 public:
  using MeshBlock<T>::MeshBlock;
  using MeshBlock<T>::num_ranks;
  using MeshBlock<T>::rank;

  TUTTI_HD void Publish(uint64_t) {}
  TUTTI_HD void Wait(uint64_t) {}

  TUTTI_HD void Push(uint64_t round, const MeshParts& parts) {
    if (parts.SameForAll()) {
      const size_t bytes = parts.size * kSize;
      ForLines(parts.size, [&](uint32_t i, size_t byte) {
        Line data = {};
        if (byte < bytes) data = this->template LoadInput<8>(parts.at, byte, bytes);
        SendAll(round, i, data, -1, true);
      });
      return;
    }
    for (int base = 1; base < num_ranks(); base += kTogether) {
      ForLines(Longest(parts), [&](uint32_t i, size_t byte) {
        Line data[kTogether] = {};
        LoadParts(parts, base, byte, data);
        TUTTI_UNROLL
        for (int k = 0; k < kTogether; ++k) {
          if (base + k >= num_ranks()) continue;
          const int peer = this->Peer(base + k);
          if (i == 0 || byte < parts(peer).size * kSize) Send(round, peer, i, data[k]);
        }
      });
    }
  }

  TUTTI_HD void Fetch(uint64_t round, const MeshParts& parts) {
    for (int base = 1; base < num_ranks(); base += kTogether) {
      ForLines(Longest(parts), [&](uint32_t i, size_t byte) {
        Line data[kTogether];
        const auto wanted = [&](int k) {
          return base + k < num_ranks() &&
                 (i == 0 || byte < parts(this->Peer(base + k)).size * kSize);
        };
        Receive(
            round, i, [&](int k) { return this->Peer(base + k); }, wanted, data);
        TUTTI_UNROLL
        for (int k = 0; k < kTogether; ++k) {
          if (base + k >= num_ranks()) continue;
          const MeshPart part = parts(this->Peer(base + k));
          if (byte < part.size * kSize)
            StoreAny<8>(this->Output(part.at) + byte, data[k], part.size * kSize - byte);
        }
      });
    }
  }

  TUTTI_HD void Reduce(uint64_t round, size_t in, size_t out, size_t n) {
    ForLines(n, [&](uint32_t i, size_t byte) {
      const Line data = ReduceLine(round, i, in, byte, n);
      if (byte < n * kSize) StoreAny<8>(this->Output(out) + byte, data, n * kSize - byte);
    });
  }
  TUTTI_HD void ReducePush(uint64_t round, size_t in, size_t out, size_t n, uint64_t to,
                           int target) {
    ForLines(n, [&](uint32_t i, size_t byte) {
      const Line data = ReduceLine(round, i, in, byte, n);
      SendAll(to, i, data, target, target < 0);
      if (target < 0 && byte < n * kSize)
        StoreAny<8>(this->Output(out) + byte, data, n * kSize - byte);
    });
  }
  TUTTI_HD void Forward(uint64_t round, int from, size_t out, size_t n, uint64_t to) {
    ForLines(n, [&](uint32_t i, size_t byte) {
      Line data[kTogether] = {};
      Receive(
          round, i, [&](int) { return from; }, [&](int k) { return k == 0 && from != rank(); },
          data);
      SendAll(to, i, data[0], from, true);
      if (byte < n * kSize) StoreAny<8>(this->Output(out) + byte, data[0], n * kSize - byte);
    });
  }
  TUTTI_HD void CopyLocal(size_t in, size_t out, size_t n) {
    if (this->Input(in) == this->Output(out)) return;
    ForLines(n, [&](uint32_t, size_t byte) {
      if (byte >= n * kSize) return;
      const size_t left = n * kSize - byte;
      StoreAny<8>(this->Output(out) + byte, LoadAny<8>(this->Input(in) + byte, left), left);
    });
  }

 private:
  using MeshBlock<T>::kSize;
  using MeshBlock<T>::args_;

  // The words at `byte` of the parts of kTogether peers. Whole ones are asked for together: what
  // might call LoadPieces in between would wait for each before it asks for the next.
  TUTTI_HD void LoadParts(const MeshParts& parts, int base, size_t byte, Line* data) const {
    const std::byte* from[kTogether];
    size_t left[kTogether];
    bool whole = !args_.reduce.scale;
    TUTTI_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      left[k] = 0;
      if (base + k >= num_ranks()) continue;
      const MeshPart part = parts(this->Peer(base + k));
      from[k] = this->Input(part.at) + byte;
      if (byte < part.size * kSize) left[k] = part.size * kSize - byte;
      if (left[k] > 0 && (left[k] < 8 || reinterpret_cast<uintptr_t>(from[k]) % 8 != 0))
        whole = false;
    }
    if (whole) {
      TUTTI_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        if (left[k] == 0) continue;
        const uint64_t word = *reinterpret_cast<const uint64_t*>(from[k]);
        data[k] = {{static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), 0, 0}};
      }
      return;
    }
    TUTTI_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      if (left[k] == 0) continue;
      data[k] = LoadAny<8>(from[k], left[k]);
      if (args_.reduce.scale) data[k] = ScaleLine<T, 8>(data[k], this->scalar_);
    }
  }

  // Every pair exchanges a line in every round, also when it has no data.
  template <class F>
  TUTTI_HD void ForLines(size_t n, F f) {
    const auto lines = n == 0 ? 1 : static_cast<uint32_t>(DivUp(n * kSize, kLineData));
    TUTTI_UNROLL_BY(1)
    for (uint32_t i = Lanes::index(); i < lines; i += Lanes::count())
      f(i, static_cast<size_t>(i) * kLineData);
  }
  TUTTI_HD static size_t Longest(const MeshParts& parts) {
    return parts.size < parts.total ? parts.size : parts.total;
  }
  TUTTI_HD std::byte* Slot(std::byte* window, uint64_t round, int writer, uint32_t i) const {
    return window + WindowLayout::kLinesAt +
           (this->SlotIndex(round, writer) * kLines + i) * sizeof(FlaggedLine);
  }
  TUTTI_HD void Send(uint64_t round, int peer, uint32_t i, const Line& data) {
    StoreFlagged(Slot(args_.windows[peer], round, rank(), i), MakeFlagged(round, data));
  }
  // To all others; to `special` with the others (`with_others`: it gets line 0 only, to keep the
  // round whole) or the other way round.
  TUTTI_HD void SendAll(uint64_t round, uint32_t i, const Line& data, int special,
                        bool with_others) {
    const FlaggedLine line = MakeFlagged(round, data);
    TUTTI_UNROLL_BY(1)
    for (int k = 1; k < num_ranks(); ++k) {
      const int peer = this->Peer(k);
      if (i == 0 || (peer == special) != with_others)
        StoreFlagged(Slot(args_.windows[peer], round, rank(), i), line);
    }
  }

  // Line i of the wanted ones of kTogether writers. All are asked for before any is waited for.
  template <class Writer, class Wanted>
  TUTTI_HD void Receive(uint64_t round, uint32_t i, Writer writer, Wanted wanted, Line* data) {
    std::byte* const window = args_.windows[rank()];
    bool complete = false;
    TUTTI_UNROLL_BY(1)
    for (uint32_t polls = 1; !complete && !this->failed_; ++polls) {
      complete = true;
      FlaggedLine lines[kTogether] = {};
      TUTTI_UNROLL
      for (int k = 0; k < kTogether; ++k)
        if (wanted(k)) lines[k] = LoadFlagged(Slot(window, round, writer(k), i));
      TUTTI_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        if (!wanted(k)) continue;
        data[k] = DataOf(lines[k]);
        complete &= HasFlags(round, lines[k]);
      }
      if (!complete && this->Poll(polls)) return;
    }
  }

  // Own input and everybody's line i, in rank order.
  TUTTI_HD Line ReduceLine(uint64_t round, uint32_t i, size_t in, size_t byte, size_t n) {
    Line own = {};
    if (byte < n * kSize) own = this->template LoadInput<8>(in, byte, n * kSize);
    Pack<T, 8> sum;
    TUTTI_UNROLL_BY(1)
    for (int base = 0; base < num_ranks(); base += kTogether) {
      Line theirs[kTogether];
      Receive(
          round, i, [&](int k) { return base + k; },
          [&](int k) { return base + k < num_ranks() && base + k != rank(); }, theirs);
      TUTTI_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        if (base + k >= num_ranks()) continue;
        // By value: a choice of pointers would keep all of them in memory.
        Line line = theirs[k];
        if (base + k == rank()) line = own;
        const auto next = Pack<T, 8>::From(line.w);
        if (base + k == 0)
          sum = next;
        else
          sum.Combine(args_.reduce.kind, next);
      }
    }
    return this->template FinalLine<8>(sum);
  }
};

template <class T>
class BulkPrimitives : public MeshBlock<T> {
 public:
  TUTTI_HD BulkPrimitives(const MeshArgs& args, uint32_t block) : MeshBlock<T>(args, block) {
    this->EnterView(WindowView::kMesh);
  }
  using MeshBlock<T>::num_ranks;
  using MeshBlock<T>::rank;

  using MeshBlock<T>::Publish;
  using MeshBlock<T>::Wait;

  TUTTI_HD void Push(uint64_t round, const MeshParts& parts) {
    if (parts.SameForAll()) {
      const MeshPart part = parts(0);
      const size_t bytes = part.size * kSize;
      ForLines(
          DivUp(bytes, 16),
          [&](Line& line, uint32_t i) {
            line = this->template LoadInput<16>(part.at, At(i), bytes);
          },
          [&](const Line& line, uint32_t i) { StoreToAll(round, i, line, -1); });
      return;
    }
    ForPartLines(
        parts,
        [&](Line& line, int, const MeshPart& part, uint32_t i) {
          line = this->template LoadInput<16>(part.at, At(i), part.size * kSize);
        },
        [&](const Line& line, int peer, const MeshPart&, uint32_t i) {
          StoreLine(Slot(args_.windows[peer], round, rank()) + At(i), line);
        });
  }
  TUTTI_HD void Fetch(uint64_t round, const MeshParts& parts) {
    if (this->failed_) return;
    ForPartLines(
        parts,
        [&](Line& line, int peer, const MeshPart&, uint32_t i) {
          line = LoadSlot(Slot(args_.windows[rank()], round, peer) + At(i));
        },
        [&](const Line& line, int, const MeshPart& part, uint32_t i) {
          StoreAny<16>(this->Output(part.at) + At(i), line, part.size * kSize - At(i));
        });
  }
  TUTTI_HD void Reduce(uint64_t round, size_t in, size_t out, size_t n) {
    ReduceLines(round, in, n, [&](const Line& line, uint32_t i) {
      StoreAny<16>(this->Output(out) + At(i), line, n * kSize - At(i));
    });
  }
  TUTTI_HD void ReducePush(uint64_t round, size_t in, size_t out, size_t n, uint64_t to,
                           int target) {
    ReduceLines(round, in, n, [&](const Line& line, uint32_t i) {
      if (target >= 0) {
        StoreLine(Slot(args_.windows[target], to, rank()) + At(i), line);
        return;
      }
      StoreToAll(to, i, line, -1);
      StoreAny<16>(this->Output(out) + At(i), line, n * kSize - At(i));
    });
  }
  TUTTI_HD void Forward(uint64_t round, int from, size_t out, size_t n, uint64_t to) {
    if (this->failed_) return;
    ForLines(
        DivUp(n * kSize, 16),
        [&](Line& line, uint32_t i) {
          line = LoadSlot(Slot(args_.windows[rank()], round, from) + At(i));
        },
        [&](const Line& line, uint32_t i) {
          StoreToAll(to, i, line, from);
          StoreAny<16>(this->Output(out) + At(i), line, n * kSize - At(i));
        });
  }
  TUTTI_HD void CopyLocal(size_t in, size_t out, size_t n) {
    if (this->Input(in) == this->Output(out)) return;
    const size_t bytes = n * kSize;
    ForLines(
        DivUp(bytes, 16),
        [&](Line& line, uint32_t i) { line = LoadAny<16>(this->Input(in) + At(i), bytes - At(i)); },
        [&](const Line& line, uint32_t i) {
          StoreAny<16>(this->Output(out) + At(i), line, bytes - At(i));
        });
  }

 private:
  using MeshBlock<T>::kSize;
  using MeshBlock<T>::args_;

  TUTTI_HD uint32_t Ranks() const { return static_cast<uint32_t>(num_ranks()); }
  TUTTI_HD static size_t At(uint32_t line) { return static_cast<size_t>(line) * 16; }
  TUTTI_HD std::byte* Slot(std::byte* window, uint64_t round, int writer) const {
    return window + args_.layout.BulkAt() +
           this->SlotIndex(round, writer) * args_.layout.slot_bytes;
  }
  TUTTI_HD void StoreToAll(uint64_t round, uint32_t i, const Line& line, int all_but) {
    TUTTI_UNROLL_BY(1)
    for (int k = 1; k < num_ranks(); ++k) {
      const int peer = this->Peer(k);
      if (peer != all_but) StoreLine(Slot(args_.windows[peer], round, rank()) + At(i), line);
    }
  }

  template <class Load, class Store>
  TUTTI_HD static void ForLines(size_t num_lines, Load load, Store store) {
    ForLinesOf(num_lines, load, store);
  }
  // The same over the parts of all other ranks, which are one sequence of lines to the threads, so
  // that short parts keep them all busy.
  template <class Load, class Store>
  TUTTI_HD void ForPartLines(const MeshParts& parts, Load load, Store store) {
    const auto longest = parts.size < parts.total ? parts.size : parts.total;
    const auto lines = static_cast<uint32_t>(DivUp(longest * kSize, 16));
    if (lines == 0) return;
    const auto with = [&](uint32_t k, auto f) {
      const int peer = this->Peer(1 + static_cast<int>(k / lines));
      const uint32_t i = k % lines;
      const MeshPart part = parts(peer);
      if (At(i) < part.size * kSize) f(peer, part, i);
    };
    ForLines(
        static_cast<size_t>(lines) * (Ranks() - 1),
        [&](Line& line, uint32_t k) {
          with(k, [&](int peer, const MeshPart& part, uint32_t i) { load(line, peer, part, i); });
        },
        [&](const Line& line, uint32_t k) {
          with(k, [&](int peer, const MeshPart& part, uint32_t i) { store(line, peer, part, i); });
        });
  }

  // Own input and all slots, in rank order.
  template <class Store>
  TUTTI_HD void ReduceLines(uint64_t round, size_t in, size_t n, Store store) {
    if (this->failed_) return;
    // Sums of narrow elements are wide.
    constexpr uint32_t kAtOnce = sizeof(T) == 1 ? 1 : sizeof(T) == 2 ? 2 : kUnroll;
    const size_t bytes = n * kSize;
    const auto lines = static_cast<uint32_t>(DivUp(bytes, 16));
    const uint32_t step = Lanes::count();
    TUTTI_UNROLL_BY(1)
    for (uint32_t first = Lanes::index(); first < lines; first += step * kAtOnce) {
      Pack<T, 16> sum[kAtOnce];
      TUTTI_UNROLL_BY(1)
      for (int source = 0; source < num_ranks(); ++source) {
        const std::byte* slot = Slot(args_.windows[rank()], round, source);
        Line line[kAtOnce] = {};
        TUTTI_UNROLL
        for (uint32_t u = 0; u < kAtOnce; ++u) {
          const uint32_t i = first + u * step;
          if (i >= lines) continue;
          if (source == rank())
            line[u] = this->template LoadInput<16>(in, At(i), bytes);
          else
            line[u] = LoadSlot(slot + At(i));
        }
        TUTTI_UNROLL
        for (uint32_t u = 0; u < kAtOnce; ++u) {
          const auto next = Pack<T, 16>::From(line[u].w);
          if (source == 0)
            sum[u] = next;
          else
            sum[u].Combine(args_.reduce.kind, next);
        }
      }
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint32_t i = first + u * step;
        if (i < lines) store(this->template FinalLine<16>(sum[u]), i);
      }
    }
  }
};

}  // namespace tutti::cuda
