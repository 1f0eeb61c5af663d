// Runs the algorithms of ranks that reach one another's memory (direct.h, pull.h, symmetric.h,
// mesh.h) in a world of symbolic memory, in several orders of the ranks' steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "kernels/counting.h"
#include "kernels/testing/symbolic_primitives.h"
#include "kernels/testing/symbolic_world.h"

namespace tutti {
namespace {

using kernels::EqualParts;
using kernels::MeshMove;
using testing::kNothing;
using testing::Place;
using testing::RanksTo;
using testing::SymbolicDirect;
using testing::SymbolicInboxes;
using testing::SymbolicMesh;
using testing::SymbolicPull;
using testing::SymbolicRegistered;
using testing::SymbolicStages;
using testing::Term;
using testing::World;

size_t At(int rank) { return static_cast<size_t>(rank); }

struct Case {
  int n;
  size_t count, chunk;
  int order;

  size_t all() const { return At(n) * count; }
  WorkShape Work(int root = 0) const { return {count, chunk, root}; }
};
Term Sum(World& world, size_t index) {
  return world.terms().Finished(world.terms().Fold(RanksTo(world.num_ranks()), index));
}

template <class F>
void ForCases(F f) {
  int number = 0;
  for (int n = 2; n <= 9; ++n)
    for (const size_t count : {1, 4, 11, 23})
      for (const size_t chunk : {1, 3, 30})
        for (const int order : {number++ % 3, 3}) {
          SCOPED_TRACE(std::to_string(n) + " ranks, " + std::to_string(count) +
                       " elements, chunks of " + std::to_string(chunk) + ", order " +
                       std::to_string(order));
          f(Case{n, count, chunk, order});
          if (::testing::Test::HasFailure()) return;
        }
}

World::Shape Shape(const Case& c, size_t input, size_t output, Place place = Place::kApart) {
  World::Shape shape = {c.n, input, output, place};
  for (int r = 0; r < c.n; ++r) shape.own.push_back(At(r) * c.count);
  return shape;
}

// ---- What each collective must give, whatever the algorithm

void ExpectSums(World& world, const Case& c) {
  for (int r = 0; r < c.n; ++r)
    for (size_t i = 0; i < c.count; ++i) ASSERT_EQ(world.Differs(r, i, Sum(world, i)), "");
}
// Ranks besides the root may have no output buffer.
void ExpectSumAtRoot(World& world, const Case& c, int root) {
  for (int r = 0; r < c.n; ++r)
    for (size_t i = 0; i < c.count; ++i)
      ASSERT_EQ(world.Differs(r, i, r == root ? Sum(world, i) : kNothing), "");
}
void ExpectOwnSums(World& world, const Case& c) {
  for (int r = 0; r < c.n; ++r)
    for (size_t i = 0; i < c.count; ++i)
      ASSERT_EQ(world.Differs(r, i, Sum(world, At(r) * c.count + i)), "");
}
void ExpectGathered(World& world, const Case& c, int only = -1) {
  for (int r = 0; r < c.n; ++r)
    for (int from = 0; from < c.n; ++from)
      for (size_t i = 0; i < c.count; ++i)
        ASSERT_EQ(world.Differs(r, At(from) * c.count + i,
                                only < 0 || r == only ? world.terms().Input(from, i) : kNothing),
                  "");
}
void ExpectTransposed(World& world, const Case& c) {
  for (int r = 0; r < c.n; ++r)
    for (int from = 0; from < c.n; ++from)
      for (size_t i = 0; i < c.count; ++i)
        ASSERT_EQ(world.Differs(r, At(from) * c.count + i,
                                world.terms().Input(from, At(r) * c.count + i)),
                  "");
}
void ExpectCopies(World& world, const Case& c, int root) {
  for (int r = 0; r < c.n; ++r)
    for (size_t i = 0; i < c.count; ++i)
      ASSERT_EQ(world.Differs(r, i, world.terms().Input(root, i)), "");
}
void ExpectScattered(World& world, const Case& c, int root) {
  for (int r = 0; r < c.n; ++r)
    for (size_t i = 0; i < c.count; ++i)
      ASSERT_EQ(world.Differs(r, i, world.terms().Input(root, At(r) * c.count + i)), "");
}
// The roots to try: all of few ranks, and three of many.
std::vector<int> RootsOf(int n) { return n <= 4 ? RanksTo(n) : std::vector<int>{0, n / 2, n - 1}; }

// ---- Stages

// Runs walk(primitives) twice for each rank, since rounds go on from operation to operation.
template <class Walk>
void RunStages(World& world, const Case& c, size_t slot_elems, const Walk& walk, int times = 2) {
  SymbolicStages stages(world, slot_elems);
  for (int r = 0; r < c.n; ++r) {
    uint64_t next_round = 0;
    SymbolicDirect p(stages, r, next_round);
    for (int i = 0; i < times; ++i) walk(p);
  }
  ASSERT_EQ(world.Run(c.order), "");
}

TEST(DirectTest, AllReduceAddsInTheOrderOfTheRanks) {
  ForCases([](const Case& c) {
    for (const Place place : {Place::kApart, Place::kSame}) {
      const int times = place == Place::kSame ? 1 : 2;
      World one(Shape(c, c.count, c.count, place));
      RunStages(
          one, c, c.chunk, [&](auto& p) { kernels::OneShotAllReduce(p, c.Work()); }, times);
      ExpectSums(one, c);
      World two(Shape(c, c.count, c.count, place));
      RunStages(
          two, c, c.chunk, [&](auto& p) { kernels::TwoShotAllReduce(p, c.Work()); }, times);
      ExpectSums(two, c);
    }
  });
}

TEST(DirectTest, RootedCollectivesServeEveryRoot) {
  ForCases([](const Case& c) {
    for (const int root : RootsOf(c.n)) {
      World added(Shape(c, c.count, c.count));
      RunStages(added, c, c.chunk, [&](auto& p) { kernels::DirectReduce(p, c.Work(root)); });
      ExpectSumAtRoot(added, c, root);
      World moved(Shape(c, c.count, c.count));
      RunStages(moved, c, c.chunk, [&](auto& p) { kernels::DirectBroadcast(p, c.Work(root)); });
      ExpectCopies(moved, c, root);
    }
  });
}

TEST(DirectTest, CollectivesOfPartsServeEqualParts) {
  ForCases([](const Case& c) {
    const EqualParts parts{c.count};
    World gathered(Shape(c, c.count, c.all(), Place::kInputInOutput));
    RunStages(gathered, c, c.chunk, [&](auto& p) { kernels::DirectAllGather(p, parts, c.Work()); });
    ExpectGathered(gathered, c);
    World added(Shape(c, c.all(), c.count));
    RunStages(added, c, c.chunk * At(c.n),
              [&](auto& p) { kernels::DirectReduceScatter(p, parts, c.Work()); });
    ExpectOwnSums(added, c);
    World transposed(Shape(c, c.all(), c.all()));
    RunStages(transposed, c, c.chunk * At(c.n),
              [&](auto& p) { kernels::DirectAlltoAll(p, c.Work()); });
    ExpectTransposed(transposed, c);
  });
}

// Parts of different lengths, the first of them empty.
struct RisingParts {
  int n;
  size_t Size(int rank) const { return At(rank * 2); }
  size_t Offset(int rank) const { return At(rank * (rank - 1)); }
  size_t Longest() const { return Size(n - 1); }
  size_t Total() const { return Offset(n); }
};

TEST(DirectTest, CollectivesOfPartsServeDifferentLengths) {
  ForCases([](const Case& c) {
    if (c.count != 4) return;
    const RisingParts parts{c.n};
    World gathered({c.n, parts.Longest(), parts.Total()});
    RunStages(gathered, c, c.chunk, [&](auto& p) { kernels::DirectAllGather(p, parts, c.Work()); });
    World added({c.n, parts.Total(), parts.Longest()});
    RunStages(added, c, c.chunk * At(c.n),
              [&](auto& p) { kernels::DirectReduceScatter(p, parts, c.Work()); });
    for (int r = 0; r < c.n; ++r) {
      for (int from = 0; from < c.n; ++from)
        for (size_t i = 0; i < parts.Size(from); ++i)
          ASSERT_EQ(gathered.Differs(r, parts.Offset(from) + i, gathered.terms().Input(from, i)),
                    "");
      for (size_t i = 0; i < parts.Size(r); ++i)
        ASSERT_EQ(added.Differs(r, i, Sum(added, parts.Offset(r) + i)), "");
    }
  });
}

// A rank that has left the barrier finds the marks of all ranks from before.
TEST(DirectTest, NoRankLeavesABarrierBeforeAllHaveCome) {
  for (int n = 2; n <= 9; ++n)
    for (int order = 0; order < World::kOrders; ++order) {
      World world({n, 0, 0});
      SymbolicStages stages(world, 0);
      int come = 0;
      for (int r = 0; r < n; ++r) {
        uint64_t next_round = 0;
        SymbolicDirect p(stages, r, next_round);
        for (int i = 1; i <= 6; ++i) {
          world.Do(r, [&come] { return ++come > 0; });
          kernels::DirectBarrier(p);
          world.Do(r, [&, i] {
            if (come < i * n) world.Fail("a rank has left the barrier too early");
            return true;
          });
        }
      }
      EXPECT_EQ(world.Run(order), "");
    }
}

// The predictions for the cost model: one-shot reads n times the vector, two-shot twice.
TEST(DirectTest, CountsRoundsAndReads) {
  const WorkShape shape = {100, 30};
  for (int r = 0; r < 4; ++r) {
    kernels::StageCounting one(r, 4), two(r, 4);
    kernels::OneShotAllReduce(one, shape);
    kernels::TwoShotAllReduce(two, shape);
    EXPECT_EQ(one.rounds(), 4u);
    EXPECT_EQ(two.rounds(), 8u);
    EXPECT_EQ(one.staged(), 100u);
    EXPECT_EQ(one.read(), 300u);
    EXPECT_EQ(one.reduced(), 100u);
    EXPECT_EQ(two.staged(), 100u);  // All but the own part, and then the own part's sum.
  }
}

// ---- Pulled buffers

template <class Walk>
void RunPull(World& world, int order, const Walk& walk) {
  for (int r = 0; r < world.num_ranks(); ++r) {
    SymbolicPull p(world, r);
    walk(p);
  }
  ASSERT_EQ(world.Run(order), "");
}

TEST(PullTest, ReductionsAddInTheOrderOfTheRanks) {
  ForCases([](const Case& c) {
    for (const Place place : {Place::kApart, Place::kSame}) {
      World all(Shape(c, c.count, c.count, place));
      RunPull(all, c.order, [&](auto& p) { kernels::PullAllReduce(p, c.Work()); });
      ExpectSums(all, c);
    }
    World parts(Shape(c, c.all(), c.count));
    RunPull(parts, c.order, [&](auto& p) { kernels::PullReduceScatter(p, EqualParts{c.count}); });
    ExpectOwnSums(parts, c);
    const int root = static_cast<int>(c.count) % c.n;
    World one(Shape(c, c.count, c.count));
    RunPull(one, c.order, [&](auto& p) { kernels::PullReduce(p, c.Work(root)); });
    ExpectSumAtRoot(one, c, root);
  });
}

TEST(PullTest, MovesServeEveryRoot) {
  ForCases([](const Case& c) {
    World all(Shape(c, c.count, c.all(), Place::kInputInOutput));
    RunPull(all, c.order, [&](auto& p) { kernels::PullAllGather(p, EqualParts{c.count}); });
    ExpectGathered(all, c);
    World transposed(Shape(c, c.all(), c.all()));
    RunPull(transposed, c.order, [&](auto& p) { kernels::PullAlltoAll(p, c.Work()); });
    ExpectTransposed(transposed, c);
    for (const int root : RootsOf(c.n)) {
      World copied(Shape(c, c.count, c.count));
      RunPull(copied, c.order, [&](auto& p) { kernels::PullBroadcast(p, c.Work(root)); });
      ExpectCopies(copied, c, root);
      World gathered(Shape(c, c.count, c.all()));
      RunPull(gathered, c.order, [&](auto& p) { kernels::PullGather(p, c.Work(root)); });
      ExpectGathered(gathered, c, root);
      World scattered(Shape(c, c.all(), c.count));
      RunPull(scattered, c.order, [&](auto& p) { kernels::PullScatter(p, c.Work(root)); });
      ExpectScattered(scattered, c, root);
    }
  });
}

// ---- Registered buffers

TEST(SymmetricTest, ServesAllReduceReduceScatterAndAllGather) {
  ForCases([](const Case& c) {
    // Blocks of a kernel share the work: here the elements from `begin` on of each part.
    const size_t begin = c.count / 3, length = c.count - begin;
    const MeshShape shape = {.begin = begin, .count = length, .stride = c.count};
    const auto run = [&](World& world, const auto& walk) {
      for (int r = 0; r < c.n; ++r) {
        SymbolicRegistered p(world, r);
        walk(p);
      }
      ASSERT_EQ(world.Run(c.order), "");
    };
    World all(Shape(c, c.count, c.count));
    run(all, [&](auto& p) { kernels::SymmetricReduction(p, shape, true, c.chunk); });
    World parts(Shape(c, c.all(), c.count));
    run(parts, [&](auto& p) { kernels::SymmetricReduction(p, shape, false, c.chunk); });
    World gathered(Shape(c, c.count, c.all()));
    run(gathered, [&](auto& p) { kernels::SymmetricAllGather(p, shape); });
    if (::testing::Test::HasFailure()) return;
    for (int r = 0; r < c.n; ++r)
      for (size_t i = 0; i < c.count; ++i) {
        const bool is_in = i >= begin;
        ASSERT_EQ(all.Differs(r, i, is_in ? Sum(all, i) : kNothing), "");
        ASSERT_EQ(parts.Differs(r, i, is_in ? Sum(parts, At(r) * c.count + i) : kNothing), "");
        for (int from = 0; from < c.n; ++from)
          ASSERT_EQ(gathered.Differs(r, At(from) * c.count + i,
                                     is_in ? gathered.terms().Input(from, i) : kNothing),
                    "");
      }
  });
}

// ---- The mesh

// Runs walk(primitives) twice for each rank, since slots are used again without acknowledgement.
template <class Walk>
void RunMesh(World& world, const Case& c, size_t slot_elems, const Walk& walk) {
  SymbolicInboxes inboxes(world, slot_elems);
  for (int r = 0; r < c.n; ++r) {
    uint64_t next_round = 0;
    SymbolicMesh p(inboxes, r, next_round);
    for (int i = 0; i < 2; ++i) walk(p);
  }
  ASSERT_EQ(world.Run(c.order), "");
}

// Pieces of `chunk` elements, of which the first is shorter.
MeshShape MeshOf(const Case& c, int root = 0) {
  return {.count = c.count,
          .stride = c.count,
          .chunk_elems = c.chunk,
          .first_elems = (c.chunk + 1) / 2,
          .root = root};
}

TEST(MeshTest, OneShotReductionsAddInTheOrderOfTheRanks) {
  ForCases([](const Case& c) {
    using kernels::MeshReduction;
    const int root = static_cast<int>(c.count + c.chunk) % c.n;
    const auto run = [&](World& world, MeshReduction which) {
      RunMesh(world, c, c.chunk,
              [&](auto& p) { kernels::MeshOneShotReduction(p, MeshOf(c, root), which); });
    };
    World all(Shape(c, c.count, c.count));
    run(all, MeshReduction::kAll);
    ExpectSums(all, c);
    World parts(Shape(c, c.all(), c.count));
    run(parts, MeshReduction::kScatter);
    ExpectOwnSums(parts, c);
    World one(Shape(c, c.count, c.count));
    run(one, MeshReduction::kRoot);
    ExpectSumAtRoot(one, c, root);
  });
}

TEST(MeshTest, TwoShotReductionsAddInTheOrderOfTheRanks) {
  ForCases([](const Case& c) {
    for (const size_t unit : {1, 4}) {
      const size_t slot = DivUp(c.chunk, unit) * unit;
      World all(Shape(c, c.count, c.count));
      RunMesh(all, c, slot,
              [&](auto& p) { kernels::MeshTwoShotReduction(p, MeshOf(c), -1, unit); });
      ExpectSums(all, c);
      for (const int root : RootsOf(c.n)) {
        World one(Shape(c, c.count, c.count));
        RunMesh(one, c, slot,
                [&](auto& p) { kernels::MeshTwoShotReduction(p, MeshOf(c, root), root, unit); });
        ExpectSumAtRoot(one, c, root);
      }
    }
  });
}

TEST(MeshTest, TwoShotBroadcastServesEveryRoot) {
  ForCases([](const Case& c) {
    for (const int root : RootsOf(c.n)) {
      World world(Shape(c, c.count, c.count));
      RunMesh(world, c, DivUp(c.chunk, size_t{4}) * 4,
              [&](auto& p) { kernels::MeshTwoShotBroadcast(p, MeshOf(c, root), 4); });
      ExpectCopies(world, c, root);
    }
  });
}

TEST(MeshTest, ExchangesServeEveryMove) {
  ForCases([](const Case& c) {
    const auto run = [&](World& world, MeshMove move, int root = 0) {
      RunMesh(world, c, c.chunk, [&](auto& p) { kernels::MeshExchange(p, MeshOf(c, root), move); });
    };
    World all(Shape(c, c.count, c.all()));
    run(all, MeshMove::kAllGather);
    ExpectGathered(all, c);
    World transposed(Shape(c, c.all(), c.all()));
    run(transposed, MeshMove::kAlltoAll);
    ExpectTransposed(transposed, c);
    for (const int root : RootsOf(c.n)) {
      World copied(Shape(c, c.count, c.count));
      run(copied, MeshMove::kBroadcast, root);
      ExpectCopies(copied, c, root);
      World gathered(Shape(c, c.count, c.all()));
      run(gathered, MeshMove::kGather, root);
      ExpectGathered(gathered, c, root);
      World scattered(Shape(c, c.all(), c.count));
      run(scattered, MeshMove::kScatter, root);
      ExpectScattered(scattered, c, root);
    }
  });
}

TEST(MeshTest, BlocksTouchTheirShareAlone) {
  for (int n = 2; n <= 5; ++n)
    for (const MeshMove move : {MeshMove::kAllGather, MeshMove::kAlltoAll}) {
      const Case c = {n, 12, 3, 3};
      World world(Shape(c, c.all(), c.all()));
      MeshShape shape = MeshOf(c);
      shape.begin = 5, shape.count = 4;
      RunMesh(world, c, c.chunk, [&](auto& p) { kernels::MeshExchange(p, shape, move); });
      for (int r = 0; r < n; ++r)
        for (int from = 0; from < n; ++from)
          for (size_t i = 0; i < c.count; ++i) {
            const size_t part = move == MeshMove::kAlltoAll ? At(r) * c.count : 0;
            const bool is_in = i >= 5 && i < 9;
            EXPECT_EQ(world.Differs(r, At(from) * c.count + i,
                                    is_in ? world.terms().Input(from, part + i) : kNothing),
                      "");
          }
    }
}

TEST(MeshTest, ReduceScatterServesPartsOfDifferentLengths) {
  ForCases([](const Case& c) {
    if (c.count != 4) return;
    const RisingParts parts{c.n};
    MeshShape shape = MeshOf(c);
    shape.count = parts.Longest();
    World world({c.n, parts.Total(), parts.Longest()});
    RunMesh(world, c, c.chunk, [&](auto& p) { kernels::MeshReduceScatter(p, parts, shape); });
    for (int r = 0; r < c.n; ++r)
      for (size_t i = 0; i < parts.Size(r); ++i)
        ASSERT_EQ(world.Differs(r, i, Sum(world, parts.Offset(r) + i)), "");
  });
}

// Each rank expects from a peer just the chunks that the peer predicts to send.
TEST(MeshTest, CountsAgreeBetweenTheEndsOfEachConnection) {
  for (int n = 2; n <= 6; ++n)
    for (const size_t count : {1, 11, 23})
      for (const int root : {-1, 0, n - 1}) {
        std::vector<kernels::MeshCounting> counts;
        const MeshShape shape = MeshShapeOf({count, 3, root < 0 ? 0 : root});
        for (int r = 0; r < n; ++r)
          kernels::MeshTwoShotReduction(counts.emplace_back(r, n), shape, root, 1);
        size_t elems = 0;
        for (int from = 0; from < n; ++from)
          for (int to = 0; to < n; ++to) {
            const kernels::Traffic& sent = counts[At(from)].sent(to);
            const kernels::Traffic& received = counts[At(to)].received(from);
            EXPECT_EQ(sent.chunks, received.chunks) << from << " to " << to << " of " << n;
            EXPECT_EQ(sent.elems, received.elems) << from << " to " << to << " of " << n;
            elems += sent.elems;
          }
        // Parts go to their owners, and results to all ranks or to the root.
        const size_t others = At(n - 1);
        EXPECT_EQ(elems, root < 0 ? 2 * others * count : others * count + count);
      }
}

TEST(MeshTest, PartsLeaveOutTheRankWithoutAPart) {
  const MeshParts parts = {.at = 100, .stride = 10, .size = 10, .total = 25, .skip = 1};
  EXPECT_EQ(parts(0).at, 100u);
  EXPECT_EQ(parts(1).size, 0u);
  EXPECT_EQ(parts(2).at, 110u);
  EXPECT_EQ(parts(3).at, 120u);
  EXPECT_EQ(parts(3).size, 5u);
  EXPECT_EQ(parts(4).size, 0u);
  const MeshParts one = {.at = 7, .size = 3, .only = 2};
  EXPECT_EQ(one(2).size, 3u);
  EXPECT_EQ(one(1).size, 0u);
  EXPECT_FALSE(one.SameForAll());
  EXPECT_TRUE((MeshParts{.at = 7, .size = 3}.SameForAll()));
}

}  // namespace
}  // namespace tutti
