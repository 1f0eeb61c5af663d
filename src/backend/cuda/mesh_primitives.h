#pragma once

// The MeshPrimitives of kernels/mesh.h for one block. There is one class for each protocol:
//   LLPrimitives      small messages, in lines of 16 bytes of which 8 are flags: no fence and no
//                     barrier; each thread waits for exactly the line that it needs. A message takes
//                     twice its bytes on the wire.
//   LL128Primitives   middle ones, where NVLink joins all ranks: the same in lines of 128 bytes.
//   SimplePrimitives  large messages: plain 16-byte stores, then a flag per writer and round.
// This header has the shared part of the three classes. An object belongs to one kernel and block,
// and all threads of the block make the same calls. Once the abort word is raised (it is read every
// kLookEvery polls) all waits end, results are left unfinished, and nothing more is written to
// peers.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/mesh_args.h"

namespace tutti::cuda {

inline constexpr uint32_t kLookEvery = 4096;
// The most peers whose lines are requested at once, for a machine with eight GPUs.
inline constexpr int kTogether = 8;

// Load and store memory at any address: `valid` bytes, up to kBytes; the rest reads as zero.
// Unaligned memory and the end of a buffer go word by word or byte by byte. The functions are out
// of line, since the code would otherwise contain many copies.
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
TUTTI_HD Line LoadAligned(const std::byte* from) {
  if constexpr (kBytes == 16) return LoadLine(from);
  const uint64_t word = *reinterpret_cast<const uint64_t*>(from);
  return {{static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), 0, 0}};
}
template <int kBytes>
TUTTI_HD Line LoadAny(const std::byte* from, size_t valid) {
  if (valid < kBytes || reinterpret_cast<uintptr_t>(from) % kBytes != 0)
    return LoadPieces<kBytes>(from, valid);
  return LoadAligned<kBytes>(from);
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

// The lines of a thread that are under way at the same time.
inline constexpr uint32_t kUnroll = 4;

// Calls load(line, i), then store(line, i), for i < lines, shared over the block's threads. kUnroll
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

// Copies with all threads of a block.
TUTTI_HD void CopyByBlock(std::byte* to, const std::byte* from, size_t bytes) {
  const auto at = [](uint32_t line) { return static_cast<size_t>(line) * 16; };
  ForLinesOf(
      DivUp(bytes, 16),
      [&](Line& line, uint32_t i) { line = LoadAny<16>(from + at(i), bytes - at(i)); },
      [&](const Line& line, uint32_t i) { StoreAny<16>(to + at(i), line, bytes - at(i)); });
}

// The flags depend on both halves of a round's number. A line of four thousand million rounds ago
// is thus never taken for a new line.
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

// Returns the element by which inputs are multiplied, in the first bytes of the result.
template <class T>
TUTTI_HD uint64_t ScalarOf(const ReduceArgs& reduce) {
  if (reduce.live_scalar == nullptr) return reduce.scalar;
  uint64_t scalar = 0;
  __builtin_memcpy(&scalar, reduce.live_scalar, sizeof(T));
  return scalar;
}

// Returns the result of a finished sum, rounded, and divided for an average.
template <class T, int kBytes>
TUTTI_HD Line FinalLine(const ReduceArgs& reduce, const Pack<T, kBytes>& sum) {
  if (reduce.divisor > 1) return DividedBy<T, kBytes>(sum, reduce.divisor);
  Line line = {};
  sum.template To<true>(line.w, reduce.kind);
  return line;
}

// The shared part of the protocols: ranks, places of slots, the count of rounds, and giving up.
template <class T>
class MeshBlock {
 public:
  TUTTI_HD MeshBlock(const MeshArgs& args, uint32_t block)
      : args_(args), block_(block), scalar_(ScalarOf<T>(args.reduce)) {
    std::byte* const window = args.windows[args.rank];
    round_ = *Word(window, 0);
    view_ = *Word(window, WindowLayout::kViewsAt);
    failed_ = view_ == static_cast<uint64_t>(WindowView::kGivenUp);
  }

  TUTTI_HD int rank() const { return args_.rank; }
  TUTTI_HD int num_ranks() const { return args_.num_ranks; }
  TUTTI_HD uint64_t TakeRounds(uint64_t rounds) {
    const uint64_t first = round_;
    round_ += rounds;
    return first;
  }

  TUTTI_HD void CopyLocal(size_t in, size_t out, size_t n) {
    const std::byte* const from = Input(in);
    std::byte* const to = Output(out);
    if (from != to) CopyByBlock(to, from, n * kSize);
  }

  // Keeps the counts for the next kernel. Without the barrier a thread might still read old counts.
  TUTTI_HD void Finish() {
    if (Lanes::SyncAny(failed_)) view_ = static_cast<uint64_t>(WindowView::kGivenUp);
    if (Lanes::index() == 0) {
      *Word(args_.windows[args_.rank], 0) = round_;
      *Word(args_.windows[args_.rank], WindowLayout::kViewsAt) = view_;
    }
  }

 protected:
  static constexpr size_t kSize = sizeof(T);
  // Tells all peers that this block's writes to them have been made.
  TUTTI_HD void Publish(uint64_t round) {
    if (failed_) return;  // equal in all threads, by Wait
    Lanes::Sync();
    TUTTI_UNROLL_BY(1)
    for (uint32_t k = Lanes::index(); k < static_cast<uint32_t>(num_ranks()); k += Lanes::count()) {
      if (static_cast<int>(k) == rank()) continue;
      FenceSystem();
      StoreFlag(Flag(args_.windows[k], rank()), round + 1);
    }
  }
  // Waits until all peers have published the round to this block.
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
  // Prepares Simple slots for their first use in a view (mesh_args.h).
  TUTTI_HD void EnterView(WindowView view) {
    if (failed_ || view_ == static_cast<uint64_t>(view)) return;
    view_ = static_cast<uint64_t>(view);
    const uint64_t round = TakeRounds(1);
    Publish(round);
    Wait(round);
  }
  // Returns the i-th peer. Each rank begins with its neighbour.
  TUTTI_HD int Peer(int i) const {
    const int peer = args_.rank + i;
    return peer < args_.num_ranks ? peer : peer - args_.num_ranks;
  }
  TUTTI_HD const std::byte* Input(size_t at) const { return args_.input + at * kSize; }
  TUTTI_HD std::byte* Output(size_t at) const { return args_.output + at * kSize; }
  TUTTI_HD size_t SlotIndex(uint64_t round, int writer) const {
    return args_.layout.SlotIndex(block_, round, writer);
  }
  // Returns whether to give up; `polls` counts up from 1.
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
    return cuda::FinalLine(args_.reduce, sum);
  }

  const MeshArgs& args_;
  const uint32_t block_;
  const uint64_t scalar_;
  uint64_t round_;
  uint64_t view_;
  bool failed_ = false;
};

}  // namespace tutti::cuda
