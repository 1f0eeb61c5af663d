#pragma once

// Lines of 128 bytes whose last 8 bytes are their flag (target.h explains when this is sufficient).
// Eight threads, an octet, move a pair of lines at a time. The layout of a pair on the wire and in
// a buffer (L: 16 bytes of a line, D: 16 bytes of the data):
//
//             piece 0 … 6              piece 7
//   line 0    L0 = D0 … L6 = D6        8 bytes: first half of D14 ─ flag
//   line 1    L0 = D7 … L6 = D13       8 bytes: second half of D14 ─ flag
//
// Each thread of an octet has one piece: the first seven move 32 bytes of data, the last thread
// moves 16. On the host one thread has all pieces.

#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

// A thread's part of a pair's data: two lines for each of its pieces, and one for the last piece.
struct LL128Share {
  Line data[Octets::kPieces][2];
};
// The pieces of both lines with their flags, in the form of the wire.
struct LL128Wire {
  FlaggedLine line[Octets::kPieces][2];
};

struct LL128Line {
  static constexpr uint32_t kPieces = Octets::kPieces;
  static constexpr uint32_t kFlagPiece = 7;
  static constexpr size_t kLineBytes = kLL128PairBytes / 2;

  // Calls f(k, half, offset in the data of the pair) for all data of this thread.
  template <class F>
  TUTTI_HD static void ForEach(F f) {
    TUTTI_UNROLL
    for (uint32_t k = 0; k < kPieces; ++k) {
      TUTTI_UNROLL
      for (int half = 0; half < 2; ++half)
        if (half == 0 || Octets::piece(k) < kFlagPiece) f(k, half, DataAt(Octets::piece(k), half));
    }
  }

  // Copy from and to a buffer with `left` remaining bytes.
  TUTTI_HD static LL128Share FromBuffer(const std::byte* from, size_t left) {
    LL128Share share = {};
    // All loads of a whole pair are under way at once.
    if (left >= kLL128PairData && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      ForEach([&](uint32_t k, int half, size_t at) { share.data[k][half] = LoadLine(from + at); });
    } else {
      ForEach([&](uint32_t k, int half, size_t at) {
        if (at < left) share.data[k][half] = LoadPieces<16>(from + at, left - at);
      });
    }
    return share;
  }
  TUTTI_HD static void ToBuffer(std::byte* to, const LL128Share& share, size_t left) {
    ForEach([&](uint32_t k, int half, size_t at) {
      if (at < left) StoreAny<16>(to + at, share.data[k][half], left - at);
    });
  }

  TUTTI_HD static LL128Wire ToWire(uint64_t flag, const LL128Share& share) {
    LL128Wire wire;
    TUTTI_UNROLL
    for (uint32_t k = 0; k < kPieces; ++k) {
      const Line first = share.data[k][0], second = share.data[k][1];
      const bool last = Octets::piece(k) == kFlagPiece;
      wire.line[k][0] = {{Word(first, 0), last ? flag : Word(first, 1)}};
      wire.line[k][1] = {{last ? Word(first, 1) : Word(second, 0), last ? flag : Word(second, 1)}};
    }
    return wire;
  }
  TUTTI_HD static LL128Share FromWire(const LL128Wire& wire) {
    LL128Share share;
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

  TUTTI_HD static void Store(std::byte* pair, const LL128Wire& wire) {
    Octets::Converge();  // a line leaves as one only if its threads store together
    TUTTI_UNROLL
    for (int half = 0; half < 2; ++half) {
      TUTTI_UNROLL
      for (uint32_t k = 0; k < kPieces; ++k)
        StoreFlagged(pair + half * kLineBytes + 16 * Octets::piece(k), wire.line[k][half]);
    }
  }
  // Loads an octet by one instruction of its warp. With all pieces in one thread the flags come
  // first.
  TUTTI_HD static void Load(const std::byte* pair, LL128Wire& wire) {
    TUTTI_UNROLL
    for (uint32_t k = kPieces; k-- > 0;) {
      TUTTI_UNROLL
      for (int half = 0; half < 2; ++half)
        wire.line[k][half] = LoadFlagged(pair + half * kLineBytes + 16 * Octets::piece(k));
    }
  }
  // Returns whether this thread's flags, if it has any, equal `flag`.
  TUTTI_HD static bool HasFlags(uint64_t flag, const LL128Wire& wire) {
    bool complete = true;
    TUTTI_UNROLL
    for (uint32_t k = 0; k < kPieces; ++k)
      if (Octets::piece(k) == kFlagPiece)
        complete &= wire.line[k][0].word[1] == flag && wire.line[k][1].word[1] == flag;
    return complete;
  }

 private:
  TUTTI_HD static size_t DataAt(uint32_t piece, int half) {
    if (half == 0) return 16 * size_t{piece < kFlagPiece ? piece : 14};
    return 16 * size_t{kFlagPiece + piece};
  }
  TUTTI_HD static uint64_t Word(const Line& line, int i) {
    return line.w[2 * i] | static_cast<uint64_t>(line.w[2 * i + 1]) << 32;
  }
  TUTTI_HD static uint32_t Low(uint64_t word) { return static_cast<uint32_t>(word); }
  TUTTI_HD static uint32_t High(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
};

// Calls f(item, active) for every item, shared over the octets. The octets of a warp, which wait
// together, all make the same number of calls, some of them without an item at the end.
template <class F>
TUTTI_HD void ForOctetItems(uint32_t items, F f) {
  constexpr uint32_t kWarp = Octets::kTogether;
  const uint32_t index = Octets::index();
  TUTTI_UNROLL_BY(1)
  for (uint32_t first = index / kWarp * kWarp; first < items; first += Octets::count())
    f(first + index % kWarp, first + index % kWarp < items);
}

}  // namespace tutti::cuda
