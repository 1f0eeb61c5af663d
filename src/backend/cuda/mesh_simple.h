#pragma once

// SimplePrimitives (mesh_primitives.h).

#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

template <class T>
class SimplePrimitives : public MeshBlock<T> {
 public:
  TUTTI_HD SimplePrimitives(const MeshArgs& args, uint32_t block) : MeshBlock<T>(args, block) {
    this->EnterView(WindowView::kMesh);
  }
  using MeshBlock<T>::num_ranks;
  using MeshBlock<T>::rank;

  using MeshBlock<T>::Publish;
  using MeshBlock<T>::Wait;

  TUTTI_HD void Push(uint64_t round, const MeshParts& parts) {
    if (this->failed_) return;
    if (parts.SameForAll()) {
      const MeshPart part = parts(0);
      const size_t bytes = part.size * kSize;
      ForLinesOf(
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
    ForLinesOf(
        DivUp(n * kSize, 16),
        [&](Line& line, uint32_t i) {
          line = LoadSlot(Slot(args_.windows[rank()], round, from) + At(i));
        },
        [&](const Line& line, uint32_t i) {
          StoreToAll(to, i, line, from);
          StoreAny<16>(this->Output(out) + At(i), line, n * kSize - At(i));
        });
  }

 private:
  using MeshBlock<T>::kSize;
  using MeshBlock<T>::args_;

  TUTTI_HD uint32_t Ranks() const { return static_cast<uint32_t>(num_ranks()); }
  TUTTI_HD static size_t At(uint32_t line) { return static_cast<size_t>(line) * 16; }
  TUTTI_HD std::byte* Slot(std::byte* window, uint64_t round, int writer) const {
    return window + args_.layout.SimpleAt() +
           this->SlotIndex(round, writer) * args_.layout.slot_bytes;
  }
  TUTTI_HD void StoreToAll(uint64_t round, uint32_t i, const Line& line, int all_but) {
    TUTTI_UNROLL_BY(1)
    for (int k = 1; k < num_ranks(); ++k) {
      const int peer = this->Peer(k);
      if (peer != all_but) StoreLine(Slot(args_.windows[peer], round, rank()) + At(i), line);
    }
  }

  // As ForLinesOf over the parts of all peers, which form one sequence of lines to the threads.
  // Short parts therefore keep all threads busy.
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
    ForLinesOf(
        static_cast<size_t>(lines) * (Ranks() - 1),
        [&](Line& line, uint32_t k) {
          with(k, [&](int peer, const MeshPart& part, uint32_t i) { load(line, peer, part, i); });
        },
        [&](const Line& line, uint32_t k) {
          with(k, [&](int peer, const MeshPart& part, uint32_t i) { store(line, peer, part, i); });
        });
  }

  // Combines the own input and all slots, in rank order.
  template <class Store>
  TUTTI_HD void ReduceLines(uint64_t round, size_t in, size_t n, Store store) {
    if (this->failed_) return;
    // Sums of narrow elements are wide and need more registers.
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
