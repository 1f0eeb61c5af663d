#pragma once

// The primitives of kernels/symmetric.h. A publisher's fence orders all earlier reads and writes of
// its block before the flag, and a waiter's acquire comes before its block's barrier (target.h).
// Plain loads and stores are therefore sufficient.

#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

template <class T>
class SymmetricPrimitives : public MeshBlock<T> {
 public:
  TUTTI_HD SymmetricPrimitives(const SymmetricArgs& args, uint32_t block)
      : MeshBlock<T>(args, block), all_(args) {}

  TUTTI_HD void Meet() {
    const uint64_t round = this->TakeRounds(1);
    this->Publish(round);
    this->Wait(round);
  }

  TUTTI_HD void Reduce(size_t in, size_t out, size_t n, bool to_all) {
    if (this->failed_) return;
    const size_t bytes = n * kSize;
    const auto lines = static_cast<uint32_t>(DivUp(bytes, 16));
    const uint32_t step = Lanes::count();
    TUTTI_UNROLL_BY(1)
    for (uint32_t first = Lanes::index(); first < lines; first += step * kAtOnce) {
      Pack<T, 16> sum[kAtOnce];
      TUTTI_UNROLL_BY(1)
      for (int base = 0; base < this->num_ranks(); base += kBatch) {
        Line line[kBatch][kAtOnce] = {};
        ForAll(base, lines, first, [&](int k, uint32_t u, uint32_t i) {
          line[k][u] = LoadAny<16>(all_.inputs[base + k] + in * kSize + At(i), bytes - At(i));
        });
        ForAll(base, lines, first, [&](int k, uint32_t u, uint32_t) {
          const auto next = Pack<T, 16>::From(line[k][u].w);
          if (base + k == 0)
            sum[u] = next;
          else
            sum[u].Combine(all_.reduce.kind, next);
        });
      }
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint32_t i = first + u * step;
        if (i >= lines) continue;
        const Line line = this->template FinalLine<16>(sum[u]);
        if (to_all)
          StoreToAll(out * kSize + At(i), line, bytes - At(i));
        else
          StoreAny<16>(this->Output(out) + At(i), line, bytes - At(i));
      }
    }
  }

  TUTTI_HD void CopyToAll(size_t in, size_t out, size_t n) {
    if (this->failed_) return;
    const size_t bytes = n * kSize;
    ForLinesOf(
        DivUp(bytes, 16),
        [&](Line& line, uint32_t i) { line = LoadAny<16>(this->Input(in) + At(i), bytes - At(i)); },
        [&](const Line& line, uint32_t i) {
          StoreToAll(out * kSize + At(i), line, bytes - At(i));
        });
  }

 private:
  using MeshBlock<T>::kSize;
  // The lines and ranks that a thread requests at once.
  static constexpr uint32_t kAtOnce = sizeof(T) == 1 ? 1 : 2;
  static constexpr int kBatch = 4;

  TUTTI_HD static size_t At(uint32_t line) { return static_cast<size_t>(line) * 16; }
  template <class F>
  TUTTI_HD void ForAll(int base, uint32_t lines, uint32_t first, F f) const {
    TUTTI_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      if (base + k >= this->num_ranks()) continue;
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint32_t i = first + u * Lanes::count();
        if (i < lines) f(k, u, i);
      }
    }
  }
  TUTTI_HD void StoreToAll(size_t byte, const Line& line, size_t valid) const {
    TUTTI_UNROLL_BY(1)
    for (int k = 0; k < this->num_ranks(); ++k)
      StoreAny<16>(all_.outputs[this->Peer(k)] + byte, line, valid);
  }

  const SymmetricArgs& all_;
};

}  // namespace tutti::cuda
