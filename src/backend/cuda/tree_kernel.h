#pragma once

// Runs one node of a tree (gpu/channel_trees.h) by a block, slice by slice. The node adds the slots
// of its predecessors and this rank's elements. The node writes the sum at once into the slots of
// its successors and, if the sum is a result, into the output. On the way down nothing is added.

#include "backend/cuda/channel_fifo.h"
#include "backend/cuda/ring_elements.h"
#include "backend/cuda/tree_args.h"

namespace tutti::cuda {

template <class T>
class TreeBlock {
 public:
  TUTTI_HD TreeBlock(const TreeArgs& args, const TreeNodeArgs& node)
      : args_(args),
        node_(node),
        elements_(args.reduce),
        block_(args.common),
        from_{DeviceConsumer(node.from[0]), DeviceConsumer(node.from[1]),
              DeviceConsumer(node.from[2])},
        to_{DeviceProducer(node.to[0]), DeviceProducer(node.to[1]), DeviceProducer(node.to[2])} {
    static_assert(kMostTreeLinks == 3);
  }

  TUTTI_HD void Run() {
    TUTTI_UNROLL_BY(1)
    for (size_t at = 0; at < node_.count && !block_.failed(); at += args_.slice_elems)
      Slice(node_.begin + at, ClampChunk(at, args_.slice_elems, node_.count));
    // Without the barrier a thread could still be about to read the counts that are kept here.
    Lanes::Sync();
    block_.KeepFailure();
    if (Lanes::index() != 0) return;
    ForLinks([&](uint32_t i) {
      from_[i].KeepCount();
      to_[i].KeepCount();
    });
  }

 private:
  using Sum = typename RingElements<T>::Sum;
  static constexpr size_t kSize = sizeof(T);

  // Calls do_it(i) for each place of a link. IsFrom and IsTo say whether the node has the link.
  template <class Do>
  TUTTI_HD static void ForLinks(Do do_it) {
    TUTTI_UNROLL
    for (uint32_t i = 0; i < kMostTreeLinks; ++i) do_it(i);
  }
  TUTTI_HD bool IsFrom(uint32_t i) const { return i < node_.num_from; }
  TUTTI_HD bool IsTo(uint32_t i) const { return i < node_.num_to; }

  TUTTI_HD void Slice(size_t at, size_t n) {
    // Each link has a warp that waits for it, if there are enough warps.
    const uint32_t apart = Lanes::count() > 32 * (2 * kMostTreeLinks - 1) ? 32 : 0;
    ForLinks([&](uint32_t i) {
      if (IsFrom(i) && Lanes::index() == apart * i) from_[i].AwaitChunk(block_);
      if (IsTo(i) && Lanes::index() == apart * (kMostTreeLinks + i)) to_[i].AwaitRoom(block_);
    });
    block_.ShareFailure();
    if (block_.failed()) return;
    const std::byte* const input = node_.reads ? args_.input + at * kSize : nullptr;
    std::byte* const output = node_.writes ? args_.output + at * kSize : nullptr;
    if (elements_.ArePlain(input, output, n))
      MoveLines<true>(input, output, n * kSize);
    else
      MoveLines<false>(input, output, n * kSize);
    Announce(n * kSize);
  }

  // One fence for all writes orders them before the announcements.
  TUTTI_HD void Announce(size_t bytes) {
    Lanes::Sync();
    if (Lanes::index() == 0) {
      ForLinks([&](uint32_t i) {
        if (IsTo(i)) to_[i].Describe(bytes, block_.op_tag());
      });
      if (node_.num_to > 0) FenceSystem();
      ForLinks([&](uint32_t i) {
        if (IsTo(i)) to_[i].Announce();
        if (IsFrom(i)) from_[i].Release();
      });
    }
    ForLinks([&](uint32_t i) {
      if (IsTo(i)) to_[i].Pass();
      if (IsFrom(i)) from_[i].Pass();
    });
  }

  template <bool kPlain>
  TUTTI_HD void MoveLines(const std::byte* input, std::byte* output, size_t bytes) {
    const auto lines = static_cast<uint32_t>(DivUp(bytes, 16));
    const uint32_t step = Lanes::count();
    const auto at = [](uint32_t i) { return size_t{16} * i; };
    TUTTI_UNROLL_BY(1)
    for (uint32_t first = Lanes::index(); first < lines; first += step * kUnroll) {
      Line theirs[kMostTreeLinks][kUnroll] = {}, mine[kUnroll] = {};
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const uint32_t i = first + u * step;
        if (i >= lines) continue;
        ForLinks([&](uint32_t link) {
          if (IsFrom(link)) theirs[link][u] = LoadSlot(from_[link].slot() + at(i));
        });
        if (input != nullptr)
          mine[u] = elements_.template Load<kPlain>(input + at(i), bytes - at(i));
      }
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const uint32_t i = first + u * step;
        if (i >= lines) continue;
        const Line line = input == nullptr
                              ? theirs[0][u]
                              : Joined(theirs[0][u], theirs[1][u], theirs[2][u], mine[u]);
        ForLinks([&](uint32_t link) {
          if (IsTo(link)) StoreLine(to_[link].slot() + at(i), line);
        });
        if (output == nullptr) continue;
        if constexpr (kPlain)
          StoreLine(output + at(i), line);
        else
          StoreAny<16>(output + at(i), line, bytes - at(i));
      }
    }
  }
  // A sum of several is rounded once.
  TUTTI_HD Line Joined(const Line& a, const Line& b, const Line& c, const Line& mine) const {
    if (node_.num_from == 0) return mine;
    auto sum = Sum::From(mine.w);
    sum.Combine(args_.reduce.kind, Sum::From(a.w));
    if (IsFrom(1)) sum.Combine(args_.reduce.kind, Sum::From(b.w));
    if (IsFrom(2)) sum.Combine(args_.reduce.kind, Sum::From(c.w));
    return elements_.Stored(sum, node_.is_final);
  }

  const TreeArgs& args_;
  const TreeNodeArgs& node_;
  const RingElements<T> elements_;
  ChannelBlock block_;
  DeviceConsumer from_[kMostTreeLinks];
  DeviceProducer to_[kMostTreeLinks];
};

template <class T>
TUTTI_HD void RunTree(const TreeArgs& args, uint32_t block) {
  TreeBlock<T>(args, args.nodes[block]).Run();
}

}  // namespace tutti::cuda
