#pragma once

// AllReduce over a binary tree: partial sums go up to the root, the result comes down. log2(n) hops
// instead of n, so it wins where latency counts. Two trees that are each other's mirror share the
// data: a leaf of one is an inner rank of the other, so that the work of inner ranks is shared out.
// A host rank has one thread and runs them one after the other: in a ring of slots that both trees
// use, their chunks must come in an order that both ends know.

#include "kernels/primitives.h"
#include "plan/work.h"

namespace tutti::kernels {

// `Up` receives from the children and sends to the parent, `Down` the other way round. The reduced
// chunk at the root goes straight into the downward links: there they are the send side of `Up`.
//
// A rank sends chunk c up before it takes chunk c - kTreeLag from above, so that the way up stays
// full while the first results come down. kTreeLag < kFifoSlots keeps the root from waiting for
// room behind chunks nobody fetches yet.
inline constexpr size_t kTreeLag = 3;

template <class Up, class Down>
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
