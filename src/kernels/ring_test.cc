// Runs the algorithms over FIFOs (ring.h, rank_order.h, tree.h) in a world of symbolic memory, and
// compares the traffic with the predictions of counting.h.

#include "kernels/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rounding.h"
#include "kernels/counting.h"
#include "kernels/rank_order.h"
#include "kernels/testing/symbolic_primitives.h"
#include "kernels/testing/symbolic_world.h"
#include "kernels/tree.h"
#include "plan/tree.h"

namespace tutti {
namespace {

using kernels::CountingPrimitives;
using kernels::RingWork;
using testing::kNothing;
using testing::Place;
using testing::RanksTo;
using testing::SymbolicFifos;
using testing::Term;
using testing::World;

size_t At(int rank) { return static_cast<size_t>(rank); }

// A ring in an order that is neither ascending nor descending.
std::vector<int> RingOf(int n) {
  std::vector<int> ring = RanksTo(n);
  for (int i = 0; i < n; ++i) std::swap(ring[At(i)], ring[At((i * 5 + 3) % n)]);
  return ring;
}

struct Case {
  int n;
  size_t count, chunk;
  int order;  // The order of the steps.
};
std::string Text(const Case& c) {
  return std::to_string(c.n) + " ranks, " + std::to_string(c.count) + " elements, chunks of " +
         std::to_string(c.chunk) + ", order " + std::to_string(c.order);
}
// Each case has one order of the steps. Each number of ranks meets all orders.
template <class F>
void ForCases(F f) {
  int number = 0;
  for (int n = 2; n <= 9; ++n)
    for (const size_t count : {1, 2, 7, 19, 40})
      for (const size_t chunk : {1, 3, 8}) {
        const Case c = {n, count, chunk, number++ % World::kOrders};
        SCOPED_TRACE(Text(c));
        f(c);
        if (::testing::Test::HasFailure()) return;
      }
}

// The ring of a case, with each rank's view.
class Rings {
 public:
  explicit Rings(int n) : ring_(RingOf(n)) {}
  RingView Of(int rank) const {
    const auto place = std::find(ring_.begin(), ring_.end(), rank) - ring_.begin();
    return {static_cast<int>(place), static_cast<int>(ring_.size()), ring_.data()};
  }
  // Returns all ranks in the order of the ring, with `last` as the last.
  std::vector<int> EndingWith(int last) const {
    std::vector<int> ranks;
    const RingView view = Of(last);
    for (int i = 1; i <= view.num_ranks; ++i) ranks.push_back(view.At(view.index + i));
    return ranks;
  }
  Term SumEndingWith(World& world, int last, size_t index) const {
    return world.terms().Finished(world.terms().Fold(EndingWith(last), index));
  }

 private:
  const std::vector<int> ring_;
};

// Compares what has passed a rank's links with the traffic that counting the algorithm predicts,
// for slices of two elements.
void CompareTraffic(World& world, int from, int to, const kernels::Traffic& traffic) {
  const std::vector<size_t>& lengths = world.LinkOf(from, to).lengths;
  size_t elems = 0, slices = 0;
  for (const size_t n : lengths) elems += n, slices += DivUp(n, size_t{2});
  EXPECT_EQ(traffic.steps, lengths.size()) << from << " to " << to;
  EXPECT_EQ(traffic.elems, elems) << from << " to " << to;
  EXPECT_EQ(traffic.chunks, slices) << from << " to " << to;
}

// Runs walk(primitives, view) for every rank of a ring.
template <class Walk>
void RunRing(World& world, const Rings& rings, int order, const Walk& walk) {
  std::vector<CountingPrimitives> counts;
  for (int r = 0; r < world.num_ranks(); ++r) {
    const RingView ring = rings.Of(r);
    SymbolicFifos p(world, r, {ring.At(ring.index - 1)}, {ring.At(ring.index + 1)});
    walk(p, r, ring);
    walk(counts.emplace_back(2), r, ring);
  }
  ASSERT_EQ(world.Run(order), "");
  for (int r = 0; r < world.num_ranks(); ++r) {
    const RingView ring = rings.Of(r);
    CompareTraffic(world, r, ring.At(ring.index + 1), counts[At(r)].sent());
    CompareTraffic(world, ring.At(ring.index - 1), r, counts[At(r)].received());
  }
}

void ExpectUntouched(const World& world, int rank) {
  for (const Term term : world.output(rank)) ASSERT_EQ(term, kNothing) << rank;
}

// Every element is added round the ring from some rank on, and all ranks get the same bits.
TEST(RingTest, AllReduceAddsRoundTheRing) {
  ForCases([](const Case& c) {
    for (const Place place : {Place::kApart, Place::kSame}) {
      World world({c.n, c.count, c.count, place});
      const Rings rings(c.n);
      RunRing(world, rings, c.order, [&](auto& p, int, const RingView& ring) {
        kernels::RingReduction(p, Collective::kAllReduce, {ring, {c.count, c.chunk}});
      });
      size_t at_most = 0;
      for (size_t i = 0; i < c.count; ++i) {
        int last = -1;
        for (int r = 0; r < c.n; ++r)
          if (world.output(0)[i] == rings.SumEndingWith(world, r, i)) last = r;
        ASSERT_GE(last, 0) << world.terms().Text(world.output(0)[i]);
        for (int r = 1; r < c.n; ++r) ASSERT_EQ(world.Differs(r, i, world.output(0)[i]), "");
        at_most += last == 0 ? 1 : 0;
      }
      // Rank 0 completes its share of each loop, and no more.
      const size_t loop = At(c.n) * c.chunk;
      EXPECT_LE(at_most, c.count / loop * c.chunk + DivUp(c.count % loop, At(c.n)));
    }
  });
}

// Parts of different lengths, some empty, in an order of their own with gaps.
struct OddParts {
  explicit OddParts(int n) {
    size_t at = 1;
    for (int r = n - 1; r >= 0; --r) {
      sizes.insert(sizes.begin(), At(r * r % 5));
      offsets.insert(offsets.begin(), at);
      at += sizes.front() + 1;
    }
    total = at;
  }
  size_t Offset(int rank) const { return offsets[At(rank)]; }
  size_t Size(int rank) const { return sizes[At(rank)]; }
  size_t Longest() const { return *std::max_element(sizes.begin(), sizes.end()); }
  std::vector<size_t> offsets, sizes;
  size_t total = 0;
};

template <class Parts>
void CheckAllGather(const Case& c, const Parts& parts, size_t total, World::Shape shape) {
  shape.num_ranks = c.n;
  shape.input_elems = parts.Longest();
  shape.output_elems = total;
  for (int r = 0; r < c.n; ++r) shape.own.push_back(parts.Offset(r));
  World world(shape);
  const Rings rings(c.n);
  // The caller of the algorithm copies the own part.
  if (shape.place == Place::kApart)
    for (int r = 0; r < c.n; ++r)
      for (size_t i = 0; i < parts.Size(r); ++i)
        world.Do(r, [&world, &parts, r, i] {
          world.WriteOutput(r, parts.Offset(r) + i, world.ReadInput(r, i));
          return true;
        });
  RunRing(world, rings, c.order, [&](auto& p, int, const RingView& ring) {
    kernels::RingMove(p, Collective::kAllGather, RingWork{ring, {c.count, c.chunk}}, parts);
  });
  for (int r = 0; r < c.n; ++r)
    for (int from = 0; from < c.n; ++from)
      for (size_t i = 0; i < parts.Size(from); ++i)
        ASSERT_EQ(world.Differs(r, parts.Offset(from) + i, world.terms().Input(from, i)), "");
}

TEST(RingTest, AllGatherPutsEachPartInItsPlace) {
  ForCases([](const Case& c) {
    const kernels::StridedParts parts = {c.count, c.count + 2};
    const size_t total = At(c.n) * parts.stride;
    CheckAllGather(c, parts, total, {.place = Place::kApart});
    CheckAllGather(c, parts, total, {.place = Place::kInputInOutput});
  });
}

TEST(RingTest, AllGatherTakesPartsOfDifferentLengths) {
  ForCases([](const Case& c) {
    if (c.count != 7) return;
    const OddParts parts(c.n);
    CheckAllGather(c, parts, parts.total, {});
  });
}

template <class Parts>
void CheckReduceScatter(const Case& c, const Parts& parts, size_t total, Place place) {
  World::Shape shape = {c.n, total, parts.Longest(), place};
  for (int r = 0; r < c.n; ++r) shape.own.push_back(parts.Offset(r));
  World world(shape);
  const Rings rings(c.n);
  RunRing(world, rings, c.order, [&](auto& p, int, const RingView& ring) {
    kernels::RingReduction(p, Collective::kReduceScatter, RingWork{ring, {c.count, c.chunk}},
                           parts);
  });
  for (int r = 0; r < c.n; ++r)
    for (size_t i = 0; i < parts.Size(r); ++i)
      ASSERT_EQ(world.Differs(r, i, rings.SumEndingWith(world, r, parts.Offset(r) + i)), "");
}

TEST(RingTest, ReduceScatterEndsTheSumAtTheOwner) {
  ForCases([](const Case& c) {
    const kernels::StridedParts parts = {c.count, c.count + 1};
    const size_t total = At(c.n) * parts.stride;
    CheckReduceScatter(c, parts, total, Place::kApart);
    CheckReduceScatter(c, parts, total, Place::kOutputInInput);
    if (c.count != 7) return;
    const OddParts odd(c.n);
    CheckReduceScatter(c, odd, odd.total, Place::kApart);
  });
}

TEST(RingTest, ChainsRunFromAndToEveryRoot) {
  ForCases([](const Case& c) {
    const Rings rings(c.n);
    for (int root = 0; root < c.n; ++root) {
      for (const bool in_place : {false, true}) {
        World moved({c.n, c.count, c.count, in_place ? Place::kSame : Place::kApart});
        RunRing(moved, rings, c.order, [&](auto& p, int, const RingView& ring) {
          kernels::RingMove(p, Collective::kBroadcast,
                            {ring, {c.count, c.chunk, root}, c.count, in_place});
        });
        World added({c.n, c.count, c.count});
        RunRing(added, rings, c.order, [&](auto& p, int, const RingView& ring) {
          kernels::RingReduction(p, Collective::kReduce, {ring, {c.count, c.chunk, root}});
        });
        for (size_t i = 0; i < c.count; ++i) {
          for (int r = 0; r < c.n; ++r)
            ASSERT_EQ(moved.Differs(r, i, moved.terms().Input(root, i)), "");
          ASSERT_EQ(added.Differs(root, i, rings.SumEndingWith(added, root, i)), "");
        }
        for (int r = 0; r < c.n; ++r)
          if (r != root) ExpectUntouched(added, r);
      }
    }
  });
}

// ---- In the order of the ranks

class RankOrderTest : public ::testing::Test {
 protected:
  // Runs a collective with a lag, in FIFOs with no more room than the lag requires. Counts the
  // traffic as well.
  static void Run(World& world, const Case& c, Collective collective, int root, size_t lag) {
    const std::vector<int> ranks = RanksTo(c.n);
    std::vector<CountingPrimitives> counts;
    for (int r = 0; r < c.n; ++r) {
      const RingWork work = {{r, c.n, ranks.data()}, {c.count, c.chunk, root}, c.count + 1};
      const int next = (r + 1) % c.n, before = (r + c.n - 1) % c.n;
      SymbolicFifos p(world, r, {before}, {next});
      kernels::RankOrderReduction(p, collective, work, lag);
      kernels::RankOrderReduction(counts.emplace_back(2), collective, work, lag);
    }
    ASSERT_EQ(world.Run(c.order), "") << "lag " << lag << ", root " << root;
    for (int r = 0; r < c.n; ++r) CompareTraffic(world, r, (r + 1) % c.n, counts[At(r)].sent());
  }
  static Term Sum(World& world, size_t index) {
    return world.terms().Finished(world.terms().Fold(RanksTo(world.num_ranks()), index));
  }
  static World::Shape ShapeOf(const Case& c, size_t lag, size_t input_elems) {
    return {.num_ranks = c.n,
            .input_elems = input_elems,
            .output_elems = c.count,
            .capacity = std::max<size_t>(1, lag)};
  }
};

TEST_F(RankOrderTest, AllReduceGivesAllRanksTheSumInTheOrderOfTheRanks) {
  ForCases([](const Case& c) {
    for (const size_t lag : {0, 1, 4}) {
      World world(ShapeOf(c, lag, c.count));
      Run(world, c, Collective::kAllReduce, 0, lag);
      for (int r = 0; r < c.n; ++r)
        for (size_t i = 0; i < c.count; ++i) ASSERT_EQ(world.Differs(r, i, Sum(world, i)), "");
    }
  });
}

TEST_F(RankOrderTest, ReduceTakesTheSumToTheRootAlone) {
  ForCases([](const Case& c) {
    for (int root = 0; root < c.n; ++root) {
      const size_t lag = At(root) % 4;
      World world(ShapeOf(c, lag, c.count));
      Run(world, c, Collective::kReduce, root, lag);
      for (size_t i = 0; i < c.count; ++i) ASSERT_EQ(world.Differs(root, i, Sum(world, i)), "");
      for (int r = 0; r < c.n; ++r)
        if (r != root) ExpectUntouched(world, r);
      // Ranks behind the root do not pass sums on.
      for (int r = root; r < c.n - 1; ++r) {
        size_t passed = 0;
        for (const size_t n : world.LinkOf(r, r + 1).lengths) passed += n;
        ASSERT_EQ(passed, c.count) << r;
      }
    }
  });
}

TEST_F(RankOrderTest, ReduceScatterTakesEachSumToItsOwner) {
  ForCases([](const Case& c) {
    for (const size_t lag : {0, 1, 4}) {
      const size_t stride = c.count + 1;
      World world(ShapeOf(c, lag, At(c.n) * stride));
      Run(world, c, Collective::kReduceScatter, 0, lag);
      for (int r = 0; r < c.n; ++r)
        for (size_t i = 0; i < c.count; ++i)
          ASSERT_EQ(world.Differs(r, i, Sum(world, At(r) * stride + i)), "");
    }
  });
}

// ---- Trees

// The second tree uses the FIFOs after the first tree. A FIFO has a slot more than the lag.
TEST(TreeTest, AllReduceByBothTreesAddsEveryRankOnce) {
  ForCases([](const Case& c) {
    for (const Place place : {Place::kApart, Place::kSame}) {
      World world({c.n, c.count, c.count, place, {}, kernels::kTreeLag + 1});
      std::vector<std::vector<kernels::Traffic>> sent(At(c.n),
                                                      std::vector<kernels::Traffic>(At(c.n)));
      for (int r = 0; r < c.n; ++r) {
        const auto count = [&](int to, const kernels::Traffic& more) {
          kernels::Traffic& all = sent[At(r)][At(to)];
          all.steps += more.steps, all.elems += more.elems, all.chunks += more.chunks;
        };
        const size_t half = (c.count + 1) / 2;
        for (const bool second : {false, true}) {
          const TreeView tree = second ? MirroredTree(r, c.n) : BinaryTree(r, c.n);
          const size_t begin = second ? half : 0, length = second ? c.count - half : half;
          std::vector<int> children, parent;
          for (const int child : tree.children)
            if (child >= 0) children.push_back(child);
          if (tree.parent >= 0) parent.push_back(tree.parent);
          const bool is_root = parent.empty();
          SymbolicFifos up(world, r, children, is_root ? children : parent);
          SymbolicFifos down(world, r, parent, children);
          kernels::TreeAllReduce(up, down, tree, begin, length, c.chunk);
          CountingPrimitives counted_up(2), counted_down(2);
          kernels::TreeAllReduce(counted_up, counted_down, tree, begin, length, c.chunk);
          for (const int to : parent) count(to, counted_up.sent());
          for (const int to : children)
            count(to, is_root ? counted_up.sent() : counted_down.sent());
        }
      }
      ASSERT_EQ(world.Run(c.order), "");
      for (size_t i = 0; i < c.count; ++i)
        for (int r = 0; r < c.n; ++r) ASSERT_EQ(world.DiffersFromSum(r, i, i, true), "");
      for (int r = 0; r < c.n; ++r)
        for (int to = 0; to < c.n; ++to)
          if (to != r) CompareTraffic(world, r, to, sent[At(r)][At(to)]);
    }
  });
}

// ---- Pieces

// Pieces cover the whole without gap, the first piece and the last piece may be shorter, and their
// number is known beforehand.
TEST(PieceTest, CoversAllElementsInTheAnnouncedNumberOfPieces) {
  for (size_t count = 0; count <= 20; ++count)
    for (size_t piece = 1; piece <= 6; ++piece)
      for (size_t first = 1; first <= piece; ++first) {
        size_t covered = 0;
        uint64_t number = 0;
        for (Piece p(count, piece, first); p.More(); p.Next(), ++number) {
          ASSERT_EQ(p.offset(), covered);
          ASSERT_EQ(p.size(), std::min(number == 0 ? first : piece, count - covered));
          covered += p.size();
        }
        EXPECT_EQ(covered, count);
        EXPECT_EQ(Piece(count, piece, first).Number(), number) << count << "/" << piece;
      }
}

TEST(PieceTest, BeginsOnePieceAheadOfFinishing) {
  std::string log;
  uint64_t round = 7;
  OneAhead(
      Piece(5, 2),
      [&](const Piece& piece) {
        log += "b" + std::to_string(piece.offset());
        return round++;
      },
      [&](const Piece& piece, uint64_t of) {
        log += "f" + std::to_string(piece.offset()) + "@" + std::to_string(of);
      });
  EXPECT_EQ(log, "b0b2f0@7b4f2@8f4@9");
}

}  // namespace
}  // namespace tutti
