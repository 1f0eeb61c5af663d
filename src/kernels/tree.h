#pragma once

// AllReduce over a binary tree: partial sums go up to the root, the result comes down. That takes
// log2(n) hops instead of n, so it wins where latency counts. Two trees that are each other's
// mirror share the data: a leaf of one is an inner rank of the other, so that the work of inner
// ranks is shared out. A host rank has one thread and runs the trees one after the other: in a FIFO
// that both trees use, their chunks must come in an order that both ends know.

#include "kernels/primitives.h"
#include "plan/work.h"

namespace tutti::kernels {

// A rank is so many chunks ahead on the way up: it sends chunk c to its parent before it receives
// chunk c - kTreeLag from there, so that the links upward stay full while the first results come
// down. It is less than kFifoSlots, or the root would wait for a slot behind chunks that nobody
// takes yet.
inline constexpr size_t kTreeLag = 3;

// Runs AllReduce of elements [begin, begin + count) over one tree. `up` receives from the children
// and sends to the parent, `down` the other way round. At the root, `up` sends to the children,
// since the reduced chunk goes straight to them.
template <FifoPrimitives Up, FifoPrimitives Down>
constexpr void TreeAllReduce(Up& up, Down& down, const TreeView& tree, size_t begin, size_t count,
                             size_t chunk_elems) {
  const bool is_root = tree.parent < 0;
  const bool is_leaf = tree.children[0] < 0 && tree.children[1] < 0;
  const size_t chunks = DivUp(count, chunk_elems);
  const auto offset_of = [&](size_t c) { return begin + c * chunk_elems; };
  const auto size_of = [&](size_t c) { return ClampChunk(c * chunk_elems, chunk_elems, count); };

  const auto go_down = [&](size_t c) {
    if (is_leaf)
      down.Recv(offset_of(c), size_of(c));
    else
      down.RecvCopySend(offset_of(c), size_of(c));
  };

  for (size_t c = 0; c < chunks; ++c) {
    if (is_root) {
      up.RecvReduceCopySendFinal(offset_of(c), offset_of(c), size_of(c));
      continue;
    }
    if (is_leaf)
      up.Send(offset_of(c), size_of(c));
    else
      up.RecvReduceSend(offset_of(c), size_of(c));
    if (c >= kTreeLag) go_down(c - kTreeLag);
  }
  if (is_root) return;
  for (size_t c = chunks > kTreeLag ? chunks - kTreeLag : 0; c < chunks; ++c) go_down(c);
}

}  // namespace tutti::kernels
