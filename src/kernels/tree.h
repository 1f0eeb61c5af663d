#pragma once

// AllReduce over a binary tree: partial sums go up to the root, and the result comes down. The way
// takes log2(n) hops instead of n, hence a tree wins where latency decides. Two trees that mirror
// each other share the data: a leaf of one tree is an inner rank of its mirror, and the work of
// inner ranks is thus spread over all ranks. A host rank has one thread and runs the trees one
// after the other, since the chunks of both trees must pass a shared FIFO in an order known to both
// ends.

#include "kernels/primitives.h"
#include "plan/work.h"

namespace tutti::kernels {

// The number of chunks by which a rank is ahead on the way up. A rank sends chunk c to its parent
// before it receives chunk c - kTreeLag from there, and so the links upward stay full while the
// first results come down. The lag is less than kFifoSlots, since the root would otherwise wait for
// a slot behind chunks whose receiver cannot take them yet.
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
