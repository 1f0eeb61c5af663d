#pragma once

// AllReduce, AllGather, ReduceScatter and AlltoAll by two levels, for host ranks of several hosts.
// Inside a host every rank exchanges blocks of a work area with the blocks' owners. An owner
// exchanges its blocks along a rail with the owners of the same number on the remaining hosts.
//
//   host 0   (0,0)⇄(0,1)⇄(0,2) …    in shared memory, in one round from every rank to every owner
//              ⇅     ⇅
//   host 1   (1,0)⇄(1,1)⇄(1,2) …    each column of owners is a rail
//
// Rank l of a host is an owner where l < owners. One owner for each host gives the fewest messages
// between hosts; several owners share the work of a host.
//
//   AllReduce       part o of the vector is added up at owner o of each host, then by doubling
//                   along the rail (recursive_doubling.h), then given to all ranks of the host
//   AllGather       owner o collects the blocks of the ranks l with l mod owners = o, doubles them
//                   along the rail (recursive_halving.h), and gives all blocks to its host
//   ReduceScatter   the same backwards, with halving
//   AlltoAll        owner o collects all data for the ranks l of other hosts with
//                   l mod owners = o, exchanges them with the owners of number o, and gives the
//                   received data to its host: one message to another host instead of one for
//                   each two ranks
//
// The number of times that a byte passes between two hosts depends on the exchange along the rail
// alone, not on the number of ranks of a host. With two hosts a byte passes once. Round a ring of n
// ranks an AllReduce sends 2(n-1)/n of the vector from host to host and crosses between the hosts
// four times in sequence; with two levels the hosts exchange the vector once.
//
// Hosts may have different numbers of ranks. REQUIRES: 1 ≤ owners ≤ the ranks of each host; hosts ≥
// 2.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

#include "base/rounding.h"
#include "kernels/primitives.h"
#include "kernels/recursive_halving.h"
#include "plan/work.h"

namespace tutti::kernels {

// The ranks from the view of one rank.
struct HostsView {
  int host = 0;
  int local = 0;  // this rank's number in its host
  int owners = 1;
  std::span<const int> ranks;   // host by host
  std::span<const int> begins;  // Host h has ranks[begins[h]] to ranks[begins[h + 1] - 1].

  constexpr int num_hosts() const { return static_cast<int>(begins.size()) - 1; }
  constexpr int RanksOf(int of_host) const {
    const auto h = static_cast<size_t>(of_host);
    return begins[h + 1] - begins[h];
  }
  constexpr int num_local() const { return RanksOf(host); }
  constexpr int Rank(int of_host, int of_local) const {
    return ranks[static_cast<size_t>(begins[static_cast<size_t>(of_host)] + of_local)];
  }
  // Returns the local number that follows this rank's by `steps`, round the host.
  constexpr int LocalAfter(int steps) const {
    return (local + steps % num_local() + num_local()) % num_local();
  }
  constexpr int HostAt(int place) const {
    return (place % num_hosts() + num_hosts()) % num_hosts();
  }
  constexpr bool owns() const { return local < owners; }
  // Returns how many ranks of a host have their blocks at the host's owner number `owner`.
  constexpr int SharesOf(int of_host, int owner) const {
    return owner < owners ? (RanksOf(of_host) - owner + owners - 1) / owners : 0;
  }
  // Returns the sum of SharesOf over `count` hosts from `first` on.
  constexpr int SharesOf(int first, int count, int owner) const {
    int shares = 0;
    for (int h = 0; h < count; ++h) shares += SharesOf(HostAt(first + h), owner);
    return shares;
  }
  // Returns number i of the ranks that SharesOf counts from host `first` on.
  constexpr int ShareAt(int first, int owner, int i) const {
    int at = HostAt(first);
    for (; i >= SharesOf(at, owner); at = HostAt(at + 1)) i -= SharesOf(at, owner);
    return Rank(at, owner + i * owners);
  }
};

// Returns the blocks that belong to the owners of number `owner` on `count` hosts from `first` on.
template <class Parts>
constexpr auto SharesOfHosts(const HostsView& view, const Parts& parts, int owner, int first,
                             int count) {
  return ListedBlocks{view.SharesOf(first, count, owner), [&view, &parts, owner, first](int i) {
                        return BlockOf(parts, view.ShareAt(first, owner, i));
                      }};
}

// One block, or none.
struct OneBlock {
  Block block;
  bool is_there = true;
  constexpr int count() const { return is_there ? 1 : 0; }
  constexpr Block operator[](int) const { return block; }
};

// Returns the block of number `local` of the host if owner number `owner` collects the block.
template <class Parts>
constexpr OneBlock BlockFor(const HostsView& view, const Parts& parts, int local, int owner) {
  return {BlockOf(parts, view.Rank(view.host, local)), local % view.owners == owner};
}

// Part `owner` of a vector that is cut for the owners; parts begin at multiples of `unit` elements.
struct OwnerParts {
  size_t count = 0;
  size_t unit = 1;
  int owners = 1;
  constexpr OneBlock operator()(int owner) const {
    const auto share = DivUp(DivUp(count, static_cast<size_t>(owners)), unit) * unit;
    const size_t at = static_cast<size_t>(owner) * share;
    return {{std::min(at, count), ClampChunk(at, share, count)}, owner < owners};
  }
};

// Calls swap(to, from) for the numbers of the other ranks of the host. In each step a rank sends to
// one rank and receives from another, hence no two ranks wait for each other, with any lengths.
template <class Swap>
constexpr void WithOthersOfHost(const HostsView& view, const Swap& swap) {
  for (int i = 1; i < view.num_local(); ++i) swap(view.LocalAfter(i), view.LocalAfter(-i));
}

// Adds up the blocks of each owner, runs_of(number), at the owner's work area.
template <InputBlockPrimitives P, class RunsOf>
constexpr void ReduceInHost(P& p, const HostsView& view, const RunsOf& runs_of) {
  const auto own = runs_of(view.local);
  if (view.num_local() == 1) p.LoadBlocks(own);
  bool first = true;
  WithOthersOfHost(view, [&](int to, int from) {
    p.InputExchangeReduce(view.Rank(view.host, to), runs_of(to), view.Rank(view.host, from), own,
                          first);
    first = false;
  });
}

// Leaves the result in the work area. `along_rail(block)` makes an owner reduce the block of the
// work area with the owners of its rail, and completes the reduction.
template <InputBlockPrimitives P, class AlongRail>
constexpr void TwoLevelBlocksAllReduce(P& p, const HostsView& view, const OwnerParts& parts,
                                       const AlongRail& along_rail) {
  const auto rank = [&](int local) { return view.Rank(view.host, local); };
  const OneBlock own = parts(view.local);
  ReduceInHost(p, view, parts);
  if (own.count() > 0 && own.block.size > 0) along_rail(own.block);
  WithOthersOfHost(view,
                   [&](int to, int from) { p.Exchange(rank(to), own, rank(from), parts(from)); });
}

// The work area holds this rank's block, and in the end every rank's.
template <BlockPrimitives P, class Parts>
constexpr void TwoLevelBlocksAllGather(P& p, const HostsView& view, const Parts& parts) {
  const int hosts = view.num_hosts();
  const auto rank = [&](int local) { return view.Rank(view.host, local); };
  WithOthersOfHost(view, [&](int to, int from) {
    p.Exchange(rank(to), BlockFor(view, parts, view.local, to), rank(from),
               BlockFor(view, parts, from, view.local));
  });
  for (int d = 1; view.owns() && d < hosts; d *= 2) {
    const BlockSwap swap = DoublingSwap(view.host, hosts, d);
    p.Exchange(view.Rank(view.HostAt(swap.to), view.local),
               SharesOfHosts(view, parts, view.local, swap.sent, swap.blocks),
               view.Rank(view.HostAt(swap.from), view.local),
               SharesOfHosts(view, parts, view.local, swap.received, swap.blocks));
  }
  WithOthersOfHost(view, [&](int to, int from) {
    p.Exchange(rank(to), SharesOfHosts(view, parts, view.local, 0, hosts), rank(from),
               SharesOfHosts(view, parts, from, 0, hosts));
  });
}

// Adds up every rank's block. In the end the work area has the result in the rank's own block.
template <InputBlockPrimitives P, class Parts>
constexpr void TwoLevelBlocksReduceScatter(P& p, const HostsView& view, const Parts& parts) {
  const int hosts = view.num_hosts();
  const auto rank = [&](int local) { return view.Rank(view.host, local); };
  ReduceInHost(p, view, [&](int owner) { return SharesOfHosts(view, parts, owner, 0, hosts); });
  for (int d = static_cast<int>(std::bit_floor(static_cast<unsigned>(hosts - 1)));
       view.owns() && d >= 1; d /= 2) {
    const BlockSwap swap = HalvingSwap(view.host, hosts, d);
    p.ExchangeReduce(view.Rank(view.HostAt(swap.to), view.local),
                     SharesOfHosts(view, parts, view.local, swap.sent, swap.blocks),
                     view.Rank(view.HostAt(swap.from), view.local),
                     SharesOfHosts(view, parts, view.local, swap.received, swap.blocks), d == 1);
  }
  WithOthersOfHost(view, [&](int to, int from) {
    p.Exchange(rank(to), BlockFor(view, parts, to, view.local), rank(from),
               BlockFor(view, parts, view.local, from));
  });
}

// The work area has a block of `count` elements for every two ranks, row by row: row s is the data
// of sender s. The area holds this rank's row, and in the end this rank's column.
template <BlockPrimitives P>
constexpr void TwoLevelBlocksAlltoAll(P& p, const HostsView& view, size_t count) {
  const int n = static_cast<int>(view.ranks.size()), hosts = view.num_hosts();
  const int here = view.host, next = view.host + 1, k = view.owners;
  const auto rank = [&](int local) { return view.Rank(here, local); };
  const int me = rank(view.local);
  const auto block = [&](int from, int to) {
    return Block{
        (static_cast<size_t>(from) * static_cast<size_t>(n) + static_cast<size_t>(to)) * count,
        count};
  };
  // The blocks from rank `from` of this host to its rank `to` and to all ranks whose owner is `to`.
  const auto outgoing = [&](int from, int to) {
    return ListedBlocks{1 + view.SharesOf(next, hosts - 1, to),
                        [&block, &view, next, from, to, first = rank(to)](int i) {
                          return block(from, i == 0 ? first : view.ShareAt(next, to, i - 1));
                        }};
  };
  WithOthersOfHost(view, [&](int to, int from) {
    p.Exchange(rank(to), outgoing(me, to), rank(from), outgoing(rank(from), view.local));
  });
  // The blocks from the ranks of host `from` to the ranks of host `to` with this rank's owner
  // number.
  const auto between = [&](int from, int to) {
    const int columns = view.SharesOf(to, view.local);
    return ListedBlocks{view.RanksOf(from) * columns, [&block, &view, from, to, columns](int i) {
                          return block(view.Rank(from, i / columns),
                                       view.ShareAt(to, view.local, i % columns));
                        }};
  };
  for (int d = 1; view.owns() && d < hosts; ++d) {
    const int to = view.HostAt(here + d), from = view.HostAt(here - d);
    p.Exchange(view.Rank(to, view.local), between(here, to), view.Rank(from, view.local),
               between(from, here));
  }
  // The blocks for rank `to` of this host that have reached owner number `owner`.
  const auto incoming = [&](int owner, int to) {
    const bool owns = owner < k && to % k == owner;
    return ListedBlocks{owns ? n - view.num_local() : 0,
                        [&block, &view, next, column = rank(to)](int i) {
                          int host = view.HostAt(next);
                          for (; i >= view.RanksOf(host); host = view.HostAt(host + 1))
                            i -= view.RanksOf(host);
                          return block(view.Rank(host, i), column);
                        }};
  };
  WithOthersOfHost(view, [&](int to, int from) {
    p.Exchange(rank(to), incoming(view.local, to), rank(from), incoming(from, view.local));
  });
}

}  // namespace tutti::kernels
