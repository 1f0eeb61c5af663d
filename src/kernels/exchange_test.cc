// Runs the algorithms of pairwise exchanges (recursive_doubling.h, recursive_halving.h,
// two_level_blocks.h) and of rails (two_level.h) in a world of symbolic memory, and compares the
// traffic with the predictions of counting.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "kernels/counting.h"
#include "kernels/recursive_doubling.h"
#include "kernels/recursive_halving.h"
#include "kernels/testing/symbolic_primitives.h"
#include "kernels/testing/symbolic_world.h"
#include "kernels/two_level.h"
#include "kernels/two_level_blocks.h"

namespace tutti {
namespace {

using kernels::BlockCounting;
using kernels::HostsView;
using testing::Place;
using testing::RanksTo;
using testing::SymbolicBlocks;
using testing::SymbolicExchange;
using testing::SymbolicRails;
using testing::Term;
using testing::Terms;
using testing::World;

size_t At(int rank) { return static_cast<size_t>(rank); }

// The elements that a connection carries in the order of the messages.
using Lengths = std::vector<size_t>;
using Sent = std::map<std::pair<int, int>, Lengths>;

// Adds the messages of a rank that counting predicts, both ways, to `sent` and `received`.
void AddMessages(const BlockCounting& count, int rank, Sent& sent, Sent& received) {
  for (const auto& [peer, is_send, traffic] : count.messages()) {
    (is_send ? sent[{rank, peer}] : received[{peer, rank}]).push_back(traffic.elems);
    EXPECT_EQ(traffic.chunks, DivUp(traffic.elems, size_t{2}));
  }
}
void CompareSent(World& world, const Sent& predicted) {
  for (int from = 0; from < world.num_ranks(); ++from)
    for (int to = 0; to < world.num_ranks(); ++to) {
      const auto at = predicted.find({from, to});
      EXPECT_EQ(at == predicted.end() ? Lengths() : at->second, world.LinkOf(from, to).lengths)
          << from << " to " << to;
    }
}

// ---- Recursive doubling

// Returns the sum that all ranks get. Where n is no power of two, pairs of the first ranks are
// added before all else.
Term DoubledSum(Terms& terms, int n, size_t index) {
  int power = 1;
  while (power * 2 <= n) power *= 2;
  std::vector<Term> sums;
  for (int r = 0; r < n; ++r) {
    const Term input = terms.Input(r, index);
    const bool paired = r < 2 * (n - power);
    sums.push_back(paired ? terms.Sum(input, terms.Input(++r, index)) : input);
  }
  while (sums.size() > 1) {
    std::vector<Term> halved;
    for (size_t i = 0; i < sums.size(); i += 2) halved.push_back(terms.Sum(sums[i], sums[i + 1]));
    sums = halved;
  }
  return terms.Finished(sums[0]);
}

TEST(RecursiveDoublingTest, AllRanksAddInOneOrder) {
  for (int n = 1; n <= 17; ++n)
    for (const Place place : {Place::kApart, Place::kSame})
      for (int order = 0; order < World::kOrders; ++order) {
        World world({n, 3, 3, place, {}, 1});
        for (int r = 0; r < n; ++r) {
          SymbolicExchange p(world, r);
          kernels::RecursiveDoublingAllReduce(p, r, n, 3);
        }
        ASSERT_EQ(world.Run(order), "") << n << " ranks, order " << order;
        for (int r = 0; r < n; ++r)
          for (size_t i = 0; i < 3; ++i)
            ASSERT_EQ(world.Differs(r, i, DoubledSum(world.terms(), n, i)), "");
      }
}

// ---- Recursive halving and doubling of blocks

// Parts of different lengths, some of them empty.
struct OddParts {
  int odd = 0;  // 0: equal parts.
  size_t Size(int rank) const { return odd == 0 ? 2 : At((rank + odd) % 4); }
  size_t Offset(int rank) const {
    size_t at = 0;
    for (int r = 0; r < rank; ++r) at += Size(r);
    return at;
  }
};

std::vector<int> Shuffled(int n) {
  std::vector<int> ranks = RanksTo(n);
  for (int i = 0; i < n; ++i) std::swap(ranks[At(i)], ranks[At((i * 7 + 2) % n)]);
  return ranks;
}

// Runs walk(primitives, rank) for all ranks and compares the traffic with counting.
template <class Walk>
void RunBlocks(World& world, int order, const Walk& walk) {
  Sent sent, received;
  for (int r = 0; r < world.num_ranks(); ++r) {
    SymbolicBlocks p(world, r);
    walk(p, r);
    BlockCounting count(2);
    walk(count, r);
    AddMessages(count, r, sent, received);
  }
  ASSERT_EQ(world.Run(order), "") << world.num_ranks() << " ranks, order " << order;
  CompareSent(world, sent);
  CompareSent(world, received);
}

template <class F>
void ForBlockCases(F f) {
  for (int n = 2; n <= 17; ++n)
    for (int odd = 0; odd < 4; ++odd)
      for (int order = n % 2; order < World::kOrders; order += 2) {
        SCOPED_TRACE(std::to_string(n) + " ranks, parts " + std::to_string(odd) + ", order " +
                     std::to_string(order));
        f(n, OddParts{odd}, order);
        if (::testing::Test::HasFailure()) return;
      }
}

size_t Total(World& world, int rank) {
  size_t total = 0;
  for (int to = 0; to < world.num_ranks(); ++to)
    for (const size_t n : world.LinkOf(rank, to).lengths) total += n;
  return total;
}

TEST(RecursiveHalvingTest, ReduceScatterLeavesEachSumAtItsOwner) {
  ForBlockCases([](int n, const OddParts& parts, int order) {
    const std::vector<int> ring = Shuffled(n);
    const size_t all = parts.Offset(n);
    World world({n, all, all, Place::kSame, {}, 1});
    RunBlocks(world, order, [&](auto& p, int rank) {
      const auto place = std::find(ring.begin(), ring.end(), rank) - ring.begin();
      kernels::HalvingReduceScatter(p, {static_cast<int>(place), n, ring.data()}, parts);
    });
    for (int r = 0; r < n; ++r)
      for (size_t i = parts.Offset(r); i < parts.Offset(r) + parts.Size(r); ++i)
        ASSERT_EQ(world.DiffersFromSum(r, i, i, false), "");
    // With equal blocks no rank sends more than round a ring.
    if (parts.odd == 0) {
      for (int r = 0; r < n; ++r) EXPECT_EQ(Total(world, r), all - parts.Size(r));
    }
  });
}

TEST(RecursiveHalvingTest, AllGatherBringsEachBlockToAll) {
  ForBlockCases([](int n, const OddParts& parts, int order) {
    const std::vector<int> ring = Shuffled(n);
    const size_t all = parts.Offset(n);
    World world({n, 0, all, Place::kApart, {}, 1});
    for (int r = 0; r < n; ++r) world.FillOutput(r, parts.Offset(r), parts.Size(r));
    RunBlocks(world, order, [&](auto& p, int rank) {
      const auto place = std::find(ring.begin(), ring.end(), rank) - ring.begin();
      kernels::DoublingAllGather(p, {static_cast<int>(place), n, ring.data()}, parts);
    });
    for (int r = 0; r < n; ++r)
      for (int from = 0; from < n; ++from)
        for (size_t i = parts.Offset(from); i < parts.Offset(from) + parts.Size(from); ++i)
          ASSERT_EQ(world.Differs(r, i, world.terms().Input(from, i)), "");
    if (parts.odd == 0) {
      for (int r = 0; r < n; ++r) EXPECT_EQ(Total(world, r), all - parts.Size(r));
    }
  });
}

// Among 2^k places the distances below the ranks of a host stay within the host.
TEST(RecursiveHalvingTest, PowersOfTwoSwapInPairsWithinAlignedRuns) {
  for (int n = 2; n <= 64; n *= 2)
    for (int d = 1; d < n; d *= 2)
      for (int me = 0; me < n; ++me) {
        const kernels::BlockSwap swap = kernels::HalvingSwap(me, n, d);
        EXPECT_EQ(swap.to, swap.from);
        EXPECT_EQ(swap.to / (2 * d), me / (2 * d));
        EXPECT_EQ(kernels::HalvingSwap(swap.to, n, d).to, me);
        EXPECT_EQ(swap.received, me / d * d);
      }
}

// ---- Two levels, in blocks

// Hosts with these numbers of ranks. The ranks of the hosts lie in a mixed order.
struct Hosts {
  explicit Hosts(std::vector<int> sizes_) : sizes(std::move(sizes_)) {
    int n = 0;
    begins.push_back(0);
    for (const int size : sizes) begins.push_back(n += size);
    ranks = Shuffled(n);
  }
  int num_ranks() const { return static_cast<int>(ranks.size()); }
  int most_owners() const { return *std::min_element(sizes.begin(), sizes.end()); }
  HostsView Of(int rank, int owners) const {
    const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    int host = 0;
    while (begins[At(host + 1)] <= place) ++host;
    return {host, place - begins[At(host)], owners, ranks, begins};
  }
  // Returns the elements that pass between different hosts.
  size_t Crossings(World& world) const {
    size_t elems = 0;
    for (int from = 0; from < num_ranks(); ++from)
      for (int to = 0; to < num_ranks(); ++to)
        if (Of(from, 1).host != Of(to, 1).host)
          for (const size_t n : world.LinkOf(from, to).lengths) elems += n;
    return elems;
  }
  std::vector<int> sizes, begins, ranks;
};

template <class F>
void ForHosts(F f) {
  const std::vector<std::vector<int>> all = {{1, 1},       {2, 2},         {1, 3},    {3, 2},
                                             {4, 4},       {2, 2, 2},      {3, 1, 2}, {3, 3, 4},
                                             {2, 2, 2, 2}, {2, 3, 2, 1, 2}};
  for (const std::vector<int>& sizes : all) {
    const Hosts hosts(sizes);
    for (int owners = 1; owners <= hosts.most_owners(); ++owners)
      for (int order = owners % 2; order < World::kOrders; order += 2) {
        std::string text = "hosts of";
        for (const int size : sizes) text += " " + std::to_string(size);
        SCOPED_TRACE(text + " ranks, " + std::to_string(owners) + " owners, order " +
                     std::to_string(order));
        f(hosts, owners, order);
        if (::testing::Test::HasFailure()) return;
      }
  }
}

TEST(TwoLevelBlocksTest, AllReduceGivesAllRanksTheSameFullSum) {
  ForHosts([](const Hosts& hosts, int owners, int order) {
    const int n = hosts.num_ranks();
    for (const size_t count : {1, 5, 16})
      for (const Place place : {Place::kApart, Place::kSame}) {
        World world({n, count, count, place, {}, 1});
        for (int r = 0; r < n; ++r) {
          const HostsView view = hosts.Of(r, owners);
          SymbolicBlocks p(world, r);
          kernels::TwoLevelBlocksAllReduce(
              p, view, kernels::OwnerParts{count, 2, owners}, [&](Block block) {
                SymbolicExchange rail(
                    world, r, block.at, [view](int host) { return view.Rank(host, view.local); },
                    false);
                kernels::RecursiveDoublingAllReduce(rail, view.host, view.num_hosts(), block.size);
              });
        }
        ASSERT_EQ(world.Run(order), "") << count;
        for (size_t i = 0; i < count; ++i)
          for (int r = 0; r < n; ++r) ASSERT_EQ(world.DiffersFromSum(r, i, i, true), "");
        // Two hosts exchange the vector once.
        if (hosts.sizes.size() == 2) {
          EXPECT_EQ(hosts.Crossings(world), 2 * count);
        }
      }
  });
}

TEST(TwoLevelBlocksTest, OwnersCutAVectorAtMultiplesOfTheUnit) {
  for (size_t count = 1; count <= 30; ++count)
    for (const size_t unit : {1, 4})
      for (int owners = 1; owners <= 5; ++owners) {
        const kernels::OwnerParts parts = {count, unit, owners};
        size_t covered = 0;
        for (int o = 0; o < owners; ++o) {
          const Block block = parts(o).block;
          EXPECT_EQ(block.at, covered);
          EXPECT_TRUE(block.size == 0 || block.at % unit == 0);
          covered += block.size;
        }
        EXPECT_EQ(covered, count);
        EXPECT_EQ(parts(owners).count(), 0);
      }
}

TEST(TwoLevelBlocksTest, AllGatherBringsEachBlockToAllAndOnceToEachHost) {
  ForHosts([](const Hosts& hosts, int owners, int order) {
    const int n = hosts.num_ranks();
    for (int odd = 0; odd < 2; ++odd) {
      const OddParts parts = {odd};
      const size_t all = parts.Offset(n);
      World world({n, 0, all, Place::kApart, {}, 1});
      for (int r = 0; r < n; ++r) world.FillOutput(r, parts.Offset(r), parts.Size(r));
      RunBlocks(world, order, [&](auto& p, int r) {
        kernels::TwoLevelBlocksAllGather(p, hosts.Of(r, owners), parts);
      });
      for (int r = 0; r < n; ++r)
        for (int from = 0; from < n; ++from)
          for (size_t i = parts.Offset(from); i < parts.Offset(from) + parts.Size(from); ++i)
            ASSERT_EQ(world.Differs(r, i, world.terms().Input(from, i)), "");
      EXPECT_EQ(hosts.Crossings(world), all * (hosts.sizes.size() - 1));
    }
  });
}

TEST(TwoLevelBlocksTest, ReduceScatterLeavesEachSumAtItsOwner) {
  ForHosts([](const Hosts& hosts, int owners, int order) {
    const int n = hosts.num_ranks();
    for (const Place place : {Place::kApart, Place::kSame}) {
      const OddParts parts = {place == Place::kSame ? 1 : 0};
      const size_t all = parts.Offset(n);
      World world({n, all, all, place, {}, 1});
      RunBlocks(world, order, [&](auto& p, int r) {
        kernels::TwoLevelBlocksReduceScatter(p, hosts.Of(r, owners), parts);
      });
      for (int r = 0; r < n; ++r)
        for (size_t i = parts.Offset(r); i < parts.Offset(r) + parts.Size(r); ++i)
          ASSERT_EQ(world.DiffersFromSum(r, i, i, false), "");
    }
  });
}

// Row s of a rank's area is the data of sender s, one block for each receiver.
TEST(TwoLevelBlocksTest, AlltoAllTransposesTheMatrixOfBlocks) {
  ForHosts([](const Hosts& hosts, int owners, int order) {
    const int n = hosts.num_ranks();
    constexpr size_t kCount = 2;
    const size_t row = At(n) * kCount, all = At(n) * row;
    World world({n, 0, all, Place::kApart, {}, 1});
    for (int r = 0; r < n; ++r) world.FillOutput(r, At(r) * row, row);
    RunBlocks(world, order, [&](auto& p, int r) {
      kernels::TwoLevelBlocksAlltoAll(p, hosts.Of(r, owners), kCount);
    });
    for (int r = 0; r < n; ++r)
      for (int from = 0; from < n; ++from)
        for (size_t i = 0; i < kCount; ++i) {
          const size_t at = At(from) * row + At(r) * kCount + i;
          ASSERT_EQ(world.Differs(r, at, world.terms().Input(from, at)), "");
        }
    // Each owner sends one message to each other host.
    for (int from = 0; from < n; ++from)
      for (int to = 0; to < n; ++to)
        if (hosts.Of(from, 1).host != hosts.Of(to, 1).host) {
          const bool rail =
              hosts.Of(from, 1).local == hosts.Of(to, 1).local && hosts.Of(from, owners).owns();
          EXPECT_EQ(world.LinkOf(from, to).lengths.size(), rail ? 1u : 0u);
        }
  });
}

// ---- Two levels, along rings and rails

// Equal hosts. The local ranks of a host form a ring in an order that depends on the host.
class Rails {
 public:
  Rails(int hosts, int locals) : hosts_(hosts), locals_(locals), ranks_(Shuffled(hosts * locals)) {
    for (int h = 0; h < hosts; ++h) {
      rings_.push_back(RanksTo(locals));
      std::rotate(rings_.back().begin(), rings_.back().begin() + h % locals, rings_.back().end());
      if (h % 2 == 1) std::reverse(rings_.back().begin(), rings_.back().end());
    }
  }
  int num_ranks() const { return hosts_ * locals_; }
  kernels::TwoLevelView Of(int host, int local) const {
    const std::vector<int>& ring = rings_[At(host)];
    const auto place = std::find(ring.begin(), ring.end(), local) - ring.begin();
    return {host, hosts_, local, {static_cast<int>(place), locals_, ring.data()}, ranks_.data()};
  }
  // Runs walk(primitives, view) for all ranks and compares the traffic with counting.
  template <class Walk>
  void Run(World& world, int order, const Walk& walk) const {
    for (int h = 0; h < hosts_; ++h)
      for (int l = 0; l < locals_; ++l) {
        const kernels::TwoLevelView view = Of(h, l);
        const auto at = [&](int step) {
          return view.Rank(h, view.ring.At(view.ring.index + step));
        };
        SymbolicRails p(world, view.Rank(h, l),
                        {at(-1), at(1), view.Rank(view.HostBefore(1), l),
                         view.Rank(view.HostBefore(hosts_ - 1), l)});
        walk(p, view);
      }
    ASSERT_EQ(world.Run(order), "");
    for (int h = 0; h < hosts_; ++h)
      for (int l = 0; l < locals_; ++l) {
        const kernels::TwoLevelView view = Of(h, l);
        kernels::TwoLevelCounting count(2);
        walk(count, view);
        const int me = view.Rank(h, l);
        const int host_after = view.Rank(h, view.ring.At(view.ring.index + 1));
        const int host_before = view.Rank(h, view.ring.At(view.ring.index - 1));
        Compare(world, me, host_after, count.host_sent());
        Compare(world, host_before, me, count.host_received());
        Compare(world, me, view.Rank(view.HostBefore(hosts_ - 1), l), count.rail_sent());
        Compare(world, view.Rank(view.HostBefore(1), l), me, count.rail_received());
      }
  }

 private:
  static void Compare(World& world, int from, int to, const kernels::Traffic& traffic) {
    size_t elems = 0, slices = 0;
    for (const size_t n : world.LinkOf(from, to).lengths) elems += n, slices += DivUp(n, size_t{2});
    EXPECT_EQ(traffic.steps, world.LinkOf(from, to).lengths.size()) << from << " to " << to;
    EXPECT_EQ(traffic.elems, elems) << from << " to " << to;
    EXPECT_EQ(traffic.chunks, slices) << from << " to " << to;
  }
  const int hosts_, locals_;
  const std::vector<int> ranks_;
  std::vector<std::vector<int>> rings_;
};

template <class F>
void ForRails(F f) {
  int number = 0;
  for (int hosts = 2; hosts <= 4; ++hosts)
    for (int locals = 2; locals <= 4; ++locals)
      for (const size_t count : {1, 9, 30})
        for (const size_t chunk : {1, 4})
          for (const int order : {number++ % 3, 3}) {
            SCOPED_TRACE(std::to_string(hosts) + " hosts of " + std::to_string(locals) +
                         " ranks, " + std::to_string(count) + " elements, chunks of " +
                         std::to_string(chunk) + ", order " + std::to_string(order));
            f(Rails(hosts, locals), count, chunk, order);
            if (::testing::Test::HasFailure()) return;
          }
}

// FIFOs have just the room that two_level.h requires.
TEST(TwoLevelTest, AllReduceGivesAllRanksTheSameFullSum) {
  ForRails([](const Rails& rails, size_t count, size_t chunk, int order) {
    const int n = rails.num_ranks();
    for (const Place place : {Place::kApart, Place::kSame}) {
      World world({n, count, count, place, {}, kernels::kTwoLevelChunks});
      rails.Run(world, order, [&](auto& p, const kernels::TwoLevelView& view) {
        kernels::TwoLevelReduction(p, Collective::kAllReduce, {view, {count, chunk}});
      });
      if (::testing::Test::HasFailure()) return;
      for (size_t i = 0; i < count; ++i)
        for (int r = 0; r < n; ++r) ASSERT_EQ(world.DiffersFromSum(r, i, i, true), "");
    }
  });
}

TEST(TwoLevelTest, AllGatherPutsEachPartInItsPlace) {
  ForRails([](const Rails& rails, size_t count, size_t chunk, int order) {
    const int n = rails.num_ranks();
    const size_t stride = count + 1;
    for (const bool in_place : {false, true}) {
      World::Shape shape = {n, count, At(n) * stride,
                            in_place ? Place::kInputInOutput : Place::kApart};
      for (int r = 0; r < n; ++r) shape.own.push_back(At(r) * stride);
      shape.capacity = kernels::kTwoLevelChunks;
      World world(shape);
      rails.Run(world, order, [&](auto& p, const kernels::TwoLevelView& view) {
        kernels::TwoLevelAllGather(p, {view, {count, chunk}, stride, in_place});
      });
      if (::testing::Test::HasFailure()) return;
      for (int r = 0; r < n; ++r)
        for (int from = 0; from < n; ++from)
          for (size_t i = 0; i < count; ++i)
            ASSERT_EQ(world.Differs(r, At(from) * stride + i, world.terms().Input(from, i)), "");
    }
  });
}

TEST(TwoLevelTest, ReduceScatterLeavesEachSumAtItsOwner) {
  ForRails([](const Rails& rails, size_t count, size_t chunk, int order) {
    const int n = rails.num_ranks();
    const size_t stride = count + 1;
    World world({n, At(n) * stride, count, Place::kApart, {}, kernels::kTwoLevelChunks});
    rails.Run(world, order, [&](auto& p, const kernels::TwoLevelView& view) {
      kernels::TwoLevelReduction(p, Collective::kReduceScatter, {view, {count, chunk}, stride});
    });
    if (::testing::Test::HasFailure()) return;
    for (int r = 0; r < n; ++r)
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(world.DiffersFromSum(r, i, At(r) * stride + i, false), "");
  });
}

}  // namespace
}  // namespace tutti
