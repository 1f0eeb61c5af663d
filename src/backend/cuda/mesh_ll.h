#pragma once

// LLPrimitives (mesh_primitives.h).

#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

template <class T>
class LLPrimitives : public MeshBlock<T> {
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
      ForLines(parts.size, [&](uint32_t i, size_t byte) {
        Line data = {};
        if (byte < bytes) data = this->template LoadInput<8>(parts.at, byte, bytes);
        SendAll(round, i, data, -1, true);
      });
      return;
    }
    ForPartLines(parts, [&]<uint32_t kCount>(const PartLine(&items)[kCount]) {
      Line data[kCount];
      LoadParts(items, data);
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kCount; ++u)
        if (items[u].wanted) Send(round, items[u].peer, items[u].line, data[u]);
    });
  }

  TUTTI_HD void Fetch(uint64_t round, const MeshParts& parts) {
    ForPartLines(parts, [&]<uint32_t kCount>(const PartLine(&items)[kCount]) {
      Line data[kCount];
      Receive<kCount>(
          round, [&](int u) { return Inbox(round, items[u].peer, items[u].line); },
          [&](int u) { return items[u].wanted; }, data);
      if (this->failed_) return;
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kCount; ++u)
        if (items[u].left > 0) StoreAny<8>(this->Output(0) + items[u].byte, data[u], items[u].left);
    });
  }

  TUTTI_HD void Reduce(uint64_t round, size_t in, size_t out, size_t n) {
    ForLines(n, [&](uint32_t i, size_t byte) {
      const Line data = ReduceLine(round, i, in, byte, n);
      if (this->failed_) return;
      if (byte < n * kSize) StoreAny<8>(this->Output(out) + byte, data, n * kSize - byte);
    });
  }
  TUTTI_HD void ReducePush(uint64_t round, size_t in, size_t out, size_t n, uint64_t to,
                           int target) {
    ForLines(n, [&](uint32_t i, size_t byte) {
      const Line data = ReduceLine(round, i, in, byte, n);
      if (this->failed_) return;
      SendAll(to, i, data, target, target < 0);
      if (target < 0 && byte < n * kSize)
        StoreAny<8>(this->Output(out) + byte, data, n * kSize - byte);
    });
  }
  TUTTI_HD void Forward(uint64_t round, int from, size_t out, size_t n, uint64_t to) {
    ForLines(n, [&](uint32_t i, size_t byte) {
      Line data = {};
      Receive<1>(
          round, [&](int) { return Inbox(round, from, i); }, [&](int) { return from != rank(); },
          &data);
      if (this->failed_) return;
      SendAll(to, i, data, from, true);
      if (byte < n * kSize) StoreAny<8>(this->Output(out) + byte, data, n * kSize - byte);
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

  // A line of another rank's part.
  struct PartLine {
    int peer;
    uint32_t line;
    bool wanted;
    size_t byte;  // the data's offset in the buffer
    size_t left;  // the rest of the part from there on; 0: the line carries no data
  };
  // Calls f with lines of the parts of all peers; some lines may not be wanted. The parts form one
  // sequence to the threads.
  template <class F>
  TUTTI_HD void ForPartLines(const MeshParts& parts, F f) {
    const uint32_t lines = NumLines(parts.size < parts.total ? parts.size : parts.total);
    if (lines * static_cast<uint32_t>(num_ranks() - 1) <= Lanes::count())
      WalkPartLines<1>(parts, lines, f);  // a little faster
    else
      WalkPartLines<kUnroll>(parts, lines, f);
  }
  template <uint32_t kCount, class F>
  TUTTI_HD void WalkPartLines(const MeshParts& parts, uint32_t lines, F f) {
    const uint32_t all = lines * static_cast<uint32_t>(num_ranks() - 1);
    const uint32_t step = Lanes::count();
    TUTTI_UNROLL_BY(1)
    for (uint32_t first = Lanes::index(); first < all; first += step * kCount) {
      PartLine items[kCount];
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kCount; ++u) {
        const uint32_t item = first + u * step;
        PartLine& it = items[u];
        it.peer = this->Peer(item < all ? 1 + static_cast<int>(item / lines) : 0);
        it.line = item % lines;
        const MeshPart part = parts(it.peer);
        const size_t offset = it.line * kLLData, bytes = part.size * kSize;
        it.byte = part.at * kSize + offset;
        it.left = item < all && offset < bytes ? bytes - offset : 0;
        it.wanted = item < all && (it.line == 0 || it.left > 0);
      }
      f(items);
    }
  }
  // Requests whole words together. A loop that might call LoadPieces in between would wait for each
  // word before it requests the next.
  template <uint32_t kCount>
  TUTTI_HD void LoadParts(const PartLine (&items)[kCount], Line* data) const {
    bool whole = !args_.reduce.scale;
    TUTTI_UNROLL
    for (uint32_t u = 0; u < kCount; ++u) {
      data[u] = {};
      const std::byte* const from = this->Input(0) + items[u].byte;
      if (items[u].left > 0 && (items[u].left < 8 || reinterpret_cast<uintptr_t>(from) % 8 != 0))
        whole = false;
    }
    if (whole) {
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kCount; ++u)
        if (items[u].left > 0) data[u] = LoadAligned<8>(this->Input(0) + items[u].byte);
      return;
    }
    TUTTI_UNROLL
    for (uint32_t u = 0; u < kCount; ++u) {
      if (items[u].left == 0) continue;
      data[u] = LoadAny<8>(this->Input(0) + items[u].byte, items[u].left);
      if (args_.reduce.scale) data[u] = ScaleLine<T, 8>(data[u], this->scalar_);
    }
  }

  // Every pair exchanges a line in every round, even without data.
  TUTTI_HD static uint32_t NumLines(size_t n) {
    return n == 0 ? 1 : static_cast<uint32_t>(DivUp(n * kSize, kLLData));
  }
  template <class F>
  TUTTI_HD void ForLines(size_t n, F f) {
    const uint32_t lines = NumLines(n);
    TUTTI_UNROLL_BY(1)
    for (uint32_t i = Lanes::index(); i < lines; i += Lanes::count())
      f(i, static_cast<size_t>(i) * kLLData);
  }
  TUTTI_HD std::byte* Slot(std::byte* window, uint64_t round, int writer, uint32_t i) const {
    return window + WindowLayout::kLLAt +
           (this->SlotIndex(round, writer) * kLLLines + i) * sizeof(FlaggedLine);
  }
  TUTTI_HD std::byte* Inbox(uint64_t round, int writer, uint32_t i) const {
    return Slot(args_.windows[rank()], round, writer, i);
  }
  TUTTI_HD void Send(uint64_t round, int peer, uint32_t i, const Line& data) {
    StoreFlagged(Slot(args_.windows[peer], round, rank(), i), MakeFlagged(round, data));
  }
  // Sends to all peers except `special`, or with `with_others` false to `special` alone. The
  // excluded ranks get line 0 only, which keeps the round whole.
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

  // Receives the wanted ones of kCount lines of the round. All are requested before any is awaited.
  template <int kCount, class Slots, class Wanted>
  TUTTI_HD void Receive(uint64_t round, Slots slot, Wanted wanted, Line* data) {
    bool complete = false;
    TUTTI_UNROLL_BY(1)
    for (uint32_t polls = 1; !complete && !this->failed_; ++polls) {
      complete = true;
      FlaggedLine lines[kCount] = {};
      TUTTI_UNROLL
      for (int k = 0; k < kCount; ++k)
        if (wanted(k)) lines[k] = LoadFlagged(slot(k));
      TUTTI_UNROLL
      for (int k = 0; k < kCount; ++k) {
        if (!wanted(k)) continue;
        data[k] = DataOf(lines[k]);
        complete &= HasFlags(round, lines[k]);
      }
      if (!complete && this->Poll(polls)) return;
    }
  }

  // Combines the own input and line i of every rank, in rank order.
  TUTTI_HD Line ReduceLine(uint64_t round, uint32_t i, size_t in, size_t byte, size_t n) {
    Line own = {};
    if (byte < n * kSize) own = this->template LoadInput<8>(in, byte, n * kSize);
    Pack<T, 8> sum;
    TUTTI_UNROLL_BY(1)
    for (int base = 0; base < num_ranks(); base += kTogether) {
      Line theirs[kTogether];
      Receive<kTogether>(
          round, [&](int k) { return Inbox(round, base + k, i); },
          [&](int k) { return base + k < num_ranks() && base + k != rank(); }, theirs);
      TUTTI_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        if (base + k >= num_ranks()) continue;
        // By value: a choice of pointers would keep all lines in memory.
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

}  // namespace tutti::cuda
