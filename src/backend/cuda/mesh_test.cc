// The kernels' source, run on the host: every block of every rank is a thread, and windows are
// plain memory. tests/gpu tests the additional properties of a GPU (many threads a block, its
// memory system). Under the thread sanitizer these tests also show that slots are reused in order.

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/mesh_kernel.h"
#include "backend/cuda/message_kernel.h"

namespace tutti::cuda {
namespace {

constexpr int kBlocks = 2;

struct FreeDeleter {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// The windows of a communicator, and operations on it.
class MeshRun {
 public:
  MeshRun(int num_ranks, size_t slot_bytes) : layout_{num_ranks, slot_bytes} {
    for (int r = 0; r < num_ranks; ++r) {
      const size_t bytes = (layout_.TotalBytes() + 127) / 128 * 128;
      windows_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(128, bytes)));
      std::memset(windows_.back().get(), 0, bytes);
    }
  }
  int num_ranks() const { return layout_.num_ranks; }
  const WindowLayout& layout() const { return layout_; }

  MeshArgs Args(int rank) const {
    MeshArgs args;
    for (size_t r = 0; r < windows_.size(); ++r) args.windows[r] = windows_[r].get();
    args.abort_word = &abort_words_[static_cast<size_t>(rank)];
    args.layout = layout_;
    args.rank = rank;
    args.num_ranks = num_ranks();
    args.ring_index = (rank + 1) % num_ranks();  // a ring in another order than the ranks
    for (int i = 0; i < num_ranks(); ++i) args.ring[(i + 1) % num_ranks()] = i;
    return args;
  }

  // Runs several operations one after another on every rank; all[rank] are the rank's arguments.
  template <class Args, class Kernel>
  void Run(const std::vector<std::vector<Args>>& all, Kernel kernel) {
    std::vector<std::thread> ranks;
    for (const auto& operations : all) {
      ranks.emplace_back([&operations, kernel] {
        for (const Args& args : operations) {
          std::vector<std::thread> blocks;
          for (uint32_t b = 0; b < kBlocks; ++b)
            blocks.emplace_back([&args, b, kernel] { kernel(args, b); });
          for (std::thread& block : blocks) block.join();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  // Aborts the communicator of a rank. Its kernels read the abort word only while they wait in
  // vain.
  void Abort(int rank) {
    std::atomic_ref<uint32_t>(abort_words_[static_cast<size_t>(rank)]).store(1);
  }
  // Returns whether Abort ended a wait of the given rank's block. REQUIRES: no kernel runs.
  bool HasGivenUp(int rank, uint32_t block) const {
    uint64_t view = 0;
    std::memcpy(
        &view,
        windows_[static_cast<size_t>(rank)].get() + WindowLayout::kViewsAt + block * sizeof(view),
        sizeof(view));
    return view == static_cast<uint64_t>(WindowView::kGivenUp);
  }

 private:
  std::array<uint32_t, kMaxMeshRanks> abort_words_ = {};
  const WindowLayout layout_;
  std::vector<std::unique_ptr<std::byte, FreeDeleter>> windows_;
};

struct Geometry {
  size_t count, block_elems, chunk;
};

// Divides work as plan/mesh.cc does, for tests: `count` over kBlocks, in chunks that fit the slot.
Geometry Cut(size_t count, size_t elem, const WindowLayout& layout, Protocol protocol) {
  const size_t slot = protocol == Protocol::kLL      ? kLLLines * kLLData
                      : protocol == Protocol::kLL128 ? layout.LL128Data()
                                                     : layout.slot_bytes;
  const size_t unit = 16 / elem;
  const size_t block = DivUp(DivUp(count, kBlocks), unit) * unit;
  return {count, block, slot / elem};
}

// Small values, whose sums are exact in every type.
template <class T>
std::vector<T> Values(size_t count, int rank) {
  std::minstd_rand random(static_cast<unsigned>(rank * 7919 + 1));
  std::vector<T> values(count);
  for (T& value : values)
    value = Element<T>::Narrow(static_cast<typename Element<T>::Wide>(random() % 3 + 1));
  return values;
}

template <class T>
void SetBuffers(MeshArgs& args, const std::vector<T>& in, std::vector<T>& out) {
  args.input = reinterpret_cast<const std::byte*>(in.data());
  args.output = reinterpret_cast<std::byte*>(out.data());
}

template <class T>
void ExpectSum(const std::vector<std::vector<T>>& in, const std::vector<T>& out, size_t from,
               size_t count, const char* what) {
  for (size_t i = 0; i < count; ++i) {
    auto sum = Element<T>::Widen(in[0][from + i]);
    for (size_t r = 1; r < in.size(); ++r) sum = Add(sum, Element<T>::Widen(in[r][from + i]));
    const T expected = Element<T>::Narrow(sum);
    ASSERT_EQ(std::memcmp(&expected, &out[i], sizeof(T)), 0)
        << what << ", element " << from + i << ", is "
        << static_cast<double>(Element<T>::Widen(out[i])) << ", expected "
        << static_cast<double>(sum);
  }
}

struct Case {
  int num_ranks;
  size_t count;
  Protocol protocol;
};
std::string Show(const Case& c) {
  return std::to_string(c.num_ranks) + " ranks, " + std::to_string(c.count) + " elements" +
         (c.protocol == Protocol::kLL      ? ", LL"
          : c.protocol == Protocol::kLL128 ? ", LL128"
                                           : ", Simple");
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int n : {2, 3, 4}) {
    for (const size_t count : {1, 7, 64, 333})
      for (const Protocol protocol : {Protocol::kLL, Protocol::kLL128, Protocol::kSimple})
        cases.push_back({n, count, protocol});
  }
  cases.push_back({2, 5000, Protocol::kSimple});
  cases.push_back({3, 1501, Protocol::kLL128});
  // More peers than are polled together.
  for (const Protocol protocol : {Protocol::kLL, Protocol::kLL128, Protocol::kSimple})
    cases.push_back({9, 40, protocol});
  return cases;
}

constexpr size_t kSlotBytes = 128;  // small, to divide a few hundred elements into several pieces

template <class T>
void RunReduction(const MeshArgs& args, uint32_t block) {
  if (IsRing(args.algorithm))
    cuda::RunRingReduction<T>(args, block);
  else if (args.protocol == Protocol::kLL)
    cuda::RunReduction<T, LLPrimitives>(args, block);
  else if (args.protocol == Protocol::kLL128)
    cuda::RunReduction<T, LL128Primitives>(args, block);
  else
    cuda::RunReduction<T, SimplePrimitives>(args, block);
}
void RunMove(const MeshArgs& args, uint32_t block) {
  if (IsRing(args.algorithm))
    cuda::RunRingMove(args, block);
  else if (args.protocol == Protocol::kLL)
    cuda::RunMove<LLPrimitives>(args, block);
  else if (args.protocol == Protocol::kLL128)
    cuda::RunMove<LL128Primitives>(args, block);
  else
    cuda::RunMove<SimplePrimitives>(args, block);
}

template <class T>
class MeshReductionTest : public testing::Test {};
using Types = testing::Types<float, double, int8_t, uint64_t, Half, Bfloat, E4m3>;
TYPED_TEST_SUITE(MeshReductionTest, Types);

// All reductions one after another on one communicator, twice, in and out of place.
TYPED_TEST(MeshReductionTest, Sum) {
  using T = TypeParam;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Show(c));
    const auto n = static_cast<size_t>(c.num_ranks);
    MeshRun run(c.num_ranks, kSlotBytes);
    const int root = c.num_ranks - 1;
    const Geometry g = Cut(c.count, sizeof(T), run.layout(), c.protocol);
    std::vector<std::vector<T>> in(n), scattered(n), all(n), again(n), at_root(n), at_root2(n),
        at_root3(n), ring(n), ring_again(n), ring_part(n);
    std::vector<std::vector<MeshArgs>> operations(n);
    for (size_t r = 0; r < n; ++r) {
      in[r] = Values<T>(n * c.count, static_cast<int>(r));
      scattered[r].resize(c.count);
      all[r].resize(c.count);
      again[r] = in[r];
      at_root[r].resize(c.count);
      at_root2[r].resize(c.count);
      at_root3[r].resize(c.count);
      ring[r].resize(c.count);
      ring_again[r] = in[r];
      ring_part[r].resize(c.count);
      MeshArgs args = run.Args(static_cast<int>(r));
      args.protocol = c.protocol;
      args.count = g.count;
      args.block_elems = g.block_elems;
      args.stride = c.count;
      args.root = root;
      const auto add = [&](MeshAlgorithm algorithm, const std::vector<T>& from,
                           std::vector<T>& to) {
        args.algorithm = algorithm;
        args.chunk_elems = IsRing(algorithm) ? kSlotBytes / sizeof(T) : g.chunk;
        SetBuffers(args, from, to);
        operations[r].push_back(args);
      };
      add(MeshAlgorithm::kAllReduceOneShot, in[r], all[r]);
      add(MeshAlgorithm::kReduceScatter, in[r], scattered[r]);
      add(MeshAlgorithm::kAllReduceTwoShot, again[r], again[r]);
      add(MeshAlgorithm::kReduceOneShot, in[r], at_root[r]);
      // Rings and meshes in turn, which use the same slots in different ways.
      add(MeshAlgorithm::kAllReduceRing, in[r], ring[r]);
      add(MeshAlgorithm::kReduceTwoShot, in[r], at_root2[r]);
      add(MeshAlgorithm::kReduceScatterRing, in[r], ring_part[r]);
      add(MeshAlgorithm::kReduceChain, in[r], at_root3[r]);
      add(MeshAlgorithm::kAllReduceRing, ring_again[r], ring_again[r]);
      add(MeshAlgorithm::kAllReduceTwoShot, in[r], all[r]);
      add(MeshAlgorithm::kReduceScatter, in[r], scattered[r]);
    }
    run.Run(operations, RunReduction<T>);
    for (size_t r = 0; r < n; ++r) {
      ExpectSum(in, all[r], 0, c.count, "AllReduce");
      ExpectSum(in, again[r], 0, c.count, "AllReduce in place");
      ExpectSum(in, scattered[r], r * c.count, c.count, "ReduceScatter");
      // A ring rounds at each rank: nine small numbers are too many for three bits.
      if (std::is_same_v<T, E4m3> && n > 5) continue;
      ExpectSum(in, ring[r], 0, c.count, "ring AllReduce");
      ExpectSum(in, ring_again[r], 0, c.count, "ring AllReduce in place");
      ExpectSum(in, ring_part[r], r * c.count, c.count, "ring ReduceScatter");
    }
    if (!std::is_same_v<T, E4m3> || n <= 5)
      ExpectSum(in, at_root3[static_cast<size_t>(root)], 0, c.count, "chain Reduce");
    ExpectSum(in, at_root[static_cast<size_t>(root)], 0, c.count, "Reduce");
    ExpectSum(in, at_root2[static_cast<size_t>(root)], 0, c.count, "two-shot Reduce");
  }
}

// Every root, in and out of place, with more pieces than the ring has slots. The sum of floats
// depends on the order.
TEST(RankChainTest, AddsInTheOrderOfTheRanks) {
  for (const auto& [n, count] :
       {std::pair<size_t, size_t>{2, 1}, {3, 20000}, {4, 777}, {5, 33000}}) {
    MeshRun run(static_cast<int>(n), kSlotBytes);
    std::vector<std::vector<float>> in(n);
    for (size_t r = 0; r < n; ++r) {
      in[r].resize(count);
      for (size_t i = 0; i < count; ++i)
        in[r][i] = std::ldexp(1 + static_cast<float>((i * 7 + r * 5) % 11),
                              static_cast<int>((i * 3 + r * 17) % 30));
    }
    std::vector<float> expected = in[0];
    for (size_t r = 1; r < n; ++r)
      for (size_t i = 0; i < count; ++i) expected[i] += in[r][i];
    std::vector<std::vector<float>> sums(n), in_place(n);
    std::vector<std::vector<MeshArgs>> operations(n);
    for (size_t r = 0; r < n; ++r) {
      sums[r].resize(count);
      in_place[r] = in[r];
      for (size_t root = 0; root < n; ++root) {
        MeshArgs args = run.Args(static_cast<int>(r));
        args.algorithm = MeshAlgorithm::kReduceRankChain;
        args.protocol = Protocol::kSimple;
        args.count = args.stride = count;
        args.block_elems = (count + 1) / 2;
        args.chunk_elems = kSlotBytes / sizeof(float);
        args.root = static_cast<int>(root);
        SetBuffers(args, in[r], sums[r]);
        operations[r].push_back(args);
        SetBuffers(args, in_place[r], in_place[r]);
        if (root == n / 2) operations[r].push_back(args);
      }
    }
    run.Run(operations, RunReduction<float>);
    for (size_t r = 0; r < n; ++r) EXPECT_EQ(sums[r], expected) << "root " << r << " of " << n;
    EXPECT_EQ(in_place[n / 2], expected) << n << " ranks, in place";
  }
}

// Several operations one after another, in which ranks read and write one another's buffers. Under
// the thread sanitizer the test shows that the ranks meet at the right times.
TEST(SymmetricTest, ReadsAndWritesAllBuffers) {
  using A = MeshAlgorithm;
  for (const auto& [n, count] : {std::pair<size_t, size_t>{2, 333}, {3, 1000}, {5, 40}}) {
    MeshRun run(static_cast<int>(n), kSlotBytes);
    const Geometry g = Cut(count, sizeof(int32_t), run.layout(), Protocol::kSimple);
    std::vector<std::vector<int32_t>> in(n), sum(n), part(n), all(n);
    for (size_t r = 0; r < n; ++r) {
      in[r] = Values<int32_t>(n * count, static_cast<int>(r));
      sum[r].resize(count);
      part[r].resize(count);
      all[r].resize(n * count);
    }
    const auto operation = [&](size_t rank, A algorithm, const auto& from, auto& to) {
      SymmetricArgs args;
      static_cast<MeshArgs&>(args) = run.Args(static_cast<int>(rank));
      const size_t elem = Reduces(algorithm) ? 1 : sizeof(int32_t);
      args.algorithm = algorithm;
      args.count = args.stride = count * elem;
      args.block_elems = args.chunk_elems = g.block_elems * elem;
      SetBuffers(args, from[rank], to[rank]);
      for (size_t r = 0; r < n; ++r) {
        args.inputs[r] = reinterpret_cast<const std::byte*>(from[r].data());
        args.outputs[r] = reinterpret_cast<std::byte*>(to[r].data());
      }
      return args;
    };
    std::vector<std::vector<SymmetricArgs>> operations(n);
    for (int again = 0; again < 2; ++again) {
      for (size_t r = 0; r < n; ++r) {
        operations[r].push_back(operation(r, A::kAllReduceSymmetric, in, sum));
        operations[r].push_back(operation(r, A::kReduceScatterSymmetric, in, part));
        operations[r].push_back(operation(r, A::kAllGatherSymmetric, part, all));
      }
    }
    run.Run(operations, [](const SymmetricArgs& args, uint32_t block) {
      if (Reduces(args.algorithm))
        RunSymmetricReduction<int32_t>(args, block);
      else
        RunSymmetricMove(args, block);
    });
    for (size_t r = 0; r < n; ++r) {
      ExpectSum(in, sum[r], 0, count, "AllReduce");
      ExpectSum(in, part[r], r * count, count, "ReduceScatter");
      for (size_t s = 0; s < n; ++s)
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(all[r][s * count + i], part[s][i]);
    }
  }
}

TEST(MeshReduceTest, OperatorsScalesAndDivides) {
  const int n = 3;
  const size_t count = 50;
  using A = MeshAlgorithm;
  for (const auto& [protocol, algorithm] : {std::pair{Protocol::kLL, A::kAllReduceTwoShot},
                                            std::pair{Protocol::kLL128, A::kAllReduceTwoShot},
                                            std::pair{Protocol::kSimple, A::kAllReduceTwoShot},
                                            std::pair{Protocol::kSimple, A::kAllReduceRing}}) {
    MeshRun run(n, kSlotBytes);
    const Geometry g = Cut(count, sizeof(int32_t), run.layout(), protocol);
    std::vector<std::vector<int32_t>> in(n);
    std::vector<std::vector<std::vector<int32_t>>> out(n);
    std::vector<std::vector<MeshArgs>> operations(n);
    for (size_t r = 0; r < n; ++r) {
      in[r] = Values<int32_t>(count, static_cast<int>(r));
      for (int32_t& value : in[r]) value = value * 3 - 7;
      out[r].assign(6, std::vector<int32_t>(count));
      for (size_t op = 0; op < 6; ++op) {
        MeshArgs args = run.Args(static_cast<int>(r));
        args.protocol = protocol;
        args.algorithm = algorithm;
        args.count = g.count;
        args.block_elems = g.block_elems;
        args.chunk_elems = g.chunk;
        args.reduce.kind = static_cast<ReduceKind>(op < 4 ? op : 0);
        if (op == 4) args.reduce.divisor = n;
        args.reduce.scale = op == 5;
        args.reduce.scalar = r + 2;
        SetBuffers(args, in[r], out[r][op]);
        operations[r].push_back(args);
      }
    }
    run.Run(operations, RunReduction<int32_t>);
    for (size_t i = 0; i < count; ++i) {
      const int32_t a = in[0][i], b = in[1][i], c = in[2][i];
      for (size_t r = 0; r < n; ++r) {
        ASSERT_EQ(out[r][0][i], a + b + c);
        ASSERT_EQ(out[r][1][i], a * b * c);
        ASSERT_EQ(out[r][2][i], std::max({a, b, c}));
        ASSERT_EQ(out[r][3][i], std::min({a, b, c}));
        ASSERT_EQ(out[r][4][i], (a + b + c) / 3);
        ASSERT_EQ(out[r][5][i], 2 * a + 3 * b + 4 * c);
      }
    }
  }
}

// Buffers at odd addresses, of every operation that moves bytes.
TEST(MeshMoveTest, AllOperations) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Show(c));
    const auto n = static_cast<size_t>(c.num_ranks);
    const size_t root = n - 1, count = c.count;
    MeshRun run(c.num_ranks, kSlotBytes);
    const Geometry g = Cut(count, 1, run.layout(), c.protocol);
    using Bytes = std::vector<uint8_t>;
    const std::vector<MeshAlgorithm> algorithms = {
        MeshAlgorithm::kAllGather,     MeshAlgorithm::kBroadcastTwoShot, MeshAlgorithm::kAlltoAll,
        MeshAlgorithm::kScatter,       MeshAlgorithm::kBroadcastOneShot, MeshAlgorithm::kGather,
        MeshAlgorithm::kAllGatherRing, MeshAlgorithm::kBroadcastChain};
    std::vector<Bytes> in(n);
    std::vector<std::vector<Bytes>> out(n);
    std::vector<std::vector<MeshArgs>> operations(n);
    for (size_t r = 0; r < n; ++r) {
      in[r].resize(n * count + 3);
      for (size_t i = 0; i < in[r].size(); ++i) in[r][i] = static_cast<uint8_t>(i * 5 + r * 31);
      out[r].assign(algorithms.size(), Bytes(n * count + 1));
      for (size_t a = 0; a < algorithms.size(); ++a) {
        MeshArgs args = run.Args(static_cast<int>(r));
        args.protocol = c.protocol;
        args.algorithm = algorithms[a];
        args.chunk_elems = IsRing(algorithms[a]) ? kSlotBytes : g.chunk;
        args.count = g.count;
        args.block_elems = g.block_elems;
        args.stride = count;
        args.root = static_cast<int>(root);
        args.input = reinterpret_cast<const std::byte*>(in[r].data() + 3);
        args.output = reinterpret_cast<std::byte*>(out[r][a].data() + 1);
        operations[r].push_back(args);
      }
    }
    run.Run(operations, RunMove);
    const auto input = [&](size_t r, size_t i) { return in[r][i + 3]; };
    for (size_t r = 0; r < n; ++r) {
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[r][1][1 + i], input(root, i)) << "two-shot Broadcast, rank " << r;
        ASSERT_EQ(out[r][3][1 + i], input(root, r * count + i)) << "Scatter, rank " << r;
        ASSERT_EQ(out[r][4][1 + i], input(root, i)) << "Broadcast, rank " << r;
        ASSERT_EQ(out[r][7][1 + i], input(root, i)) << "chain Broadcast, rank " << r;
        for (size_t s = 0; s < n; ++s) {
          ASSERT_EQ(out[r][0][1 + s * count + i], input(s, i)) << "AllGather, rank " << r;
          ASSERT_EQ(out[r][2][1 + s * count + i], input(s, r * count + i)) << "AlltoAll " << r;
          ASSERT_EQ(out[r][6][1 + s * count + i], input(s, i)) << "ring AllGather, rank " << r;
          if (r == root) {
            ASSERT_EQ(out[r][5][1 + s * count + i], input(s, i)) << "Gather";
          }
        }
      }
    }
  }
}

// Every rank sends several messages of its own lengths to every peer; both directions run at once.
void ExpectAllPairsInOrder(size_t ll128_from, size_t ll128_message, uint32_t most_blocks) {
  const int n = 3;
  const size_t lengths[] = {1, 100, 40000, 16, 300000, 16384, 5003};
  const MessageLayout layout = {0, n};
  std::vector<std::unique_ptr<std::byte, FreeDeleter>> windows;
  for (int r = 0; r < n; ++r) {
    windows.emplace_back(static_cast<std::byte*>(std::aligned_alloc(128, layout.EndsAt())));
    std::memset(windows.back().get(), 0, layout.SlotsAt());
  }
  uint32_t abort_word = 0;
  const auto value = [](int from, int to, size_t message, size_t i) {
    return static_cast<uint8_t>(i * 7 + static_cast<size_t>(from * 50 + to * 10) + message);
  };
  std::vector<MessageArgs> args(n);
  std::vector<std::vector<uint8_t>> in, out;
  in.reserve(64);
  out.reserve(64);
  for (int r = 0; r < n; ++r) {
    MessageArgs& mine = args[static_cast<size_t>(r)];
    for (size_t w = 0; w < n; ++w) mine.windows[w] = windows[w].get();
    mine.abort_word = &abort_word;
    mine.layout = layout;
    mine.rank = r;
    mine.num_ranks = n;
    mine.ll128_from = ll128_from;
    mine.ll128_message = ll128_message;
    mine.most_blocks = most_blocks;
    for (size_t m = 0; m < std::size(lengths); ++m) {
      for (int peer = 0; peer < n; ++peer) {
        if (peer == r) continue;
        auto& sent = in.emplace_back(lengths[m]);
        for (size_t i = 0; i < sent.size(); ++i) sent[i] = value(r, peer, m, i);
        auto& received = out.emplace_back(lengths[m]);
        const auto at = [](std::vector<uint8_t>& v) {
          return reinterpret_cast<std::byte*>(v.data());
        };
        mine.messages[mine.num_messages++] = {at(sent), lengths[m], static_cast<int16_t>(peer),
                                              MessageKind::kSend};
        mine.messages[mine.num_messages++] = {at(received), lengths[m], static_cast<int16_t>(peer),
                                              MessageKind::kReceive};
      }
    }
  }
  std::vector<std::thread> blocks;
  for (MessageArgs& mine : args) Arrange(mine);
  for (const MessageArgs& mine : args)
    for (uint32_t b = 0; b < mine.blocks; ++b)
      blocks.emplace_back([&mine, b] { RunMessages(mine, b); });
  for (std::thread& block : blocks) block.join();
  for (const MessageArgs& mine : args) {
    for (uint32_t k = 1; k < mine.num_messages; k += 2) {
      const Message& got = mine.messages[k];
      const size_t m = k / 2 / (n - 1);
      for (size_t i = 0; i < got.bytes; ++i)
        ASSERT_EQ(static_cast<uint8_t>(got.buffer[i]), value(got.peer, mine.rank, m, i))
            << "message " << m << " from " << got.peer << " to " << mine.rank << ", byte " << i;
    }
  }
}

TEST(MessageTest, AllPairsInOrder) { ExpectAllPairsInOrder(1, 0, ~0u); }
TEST(MessageTest, ByLL128) {
  ExpectAllPairsInOrder(1, 1 << 20, ~0u);
  ExpectAllPairsInOrder(kLLMessage + 1, 100000, ~0u);
}
// Four flows of up to 18 channels each.
TEST(MessageTest, BlocksTakeTurns) {
  ExpectAllPairsInOrder(1, 0, 1);
  ExpectAllPairsInOrder(kLLMessage + 1, 100000, 7);
}

// The parts of an AlltoAll: copies of a rank's own part, and swaps where one rank works in place
// and its peers do not.
TEST(MessageTest, CopiesAndSwaps) {
  const int n = 3;
  const size_t bytes = 150001;
  const MessageLayout layout = {0, n};
  std::vector<std::unique_ptr<std::byte, FreeDeleter>> windows;
  for (int r = 0; r < n; ++r) {
    windows.emplace_back(static_cast<std::byte*>(std::aligned_alloc(128, layout.EndsAt())));
    std::memset(windows.back().get(), 0, layout.SlotsAt());
  }
  uint32_t abort_word = 0;
  const auto value = [](int from, int to, size_t i) {
    return static_cast<std::byte>(i * 7 + static_cast<size_t>(from * 50 + to * 10));
  };
  std::vector<MessageArgs> args(n);
  std::vector<std::vector<std::byte>> in(n), out(n);
  for (int r = 0; r < n; ++r) {
    const auto me = static_cast<size_t>(r);
    MessageArgs& mine = args[me];
    for (size_t w = 0; w < n; ++w) mine.windows[w] = windows[w].get();
    mine.abort_word = &abort_word;
    mine.layout = layout;
    mine.rank = r;
    mine.num_ranks = n;
    mine.most_channels = 3;
    in[me].resize(n * bytes);
    for (size_t i = 0; i < n * bytes; ++i)
      in[me][i] = value(r, static_cast<int>(i / bytes), i % bytes);
    const bool in_place = r == 1;
    if (!in_place) out[me].resize(n * bytes);
    for (int16_t peer = 0; peer < n; ++peer) {
      std::byte* const from = in[me].data() + static_cast<size_t>(peer) * bytes;
      std::byte* const to = out[me].data() + static_cast<size_t>(peer) * bytes;
      const auto add = [&](const Message& message) {
        mine.messages[mine.num_messages++] = message;
      };
      if (peer == r && !in_place) add({to, bytes, peer, MessageKind::kCopy, from});
      if (peer != r && in_place) add({from, bytes, peer, MessageKind::kSwap, nullptr});
      if (peer != r && !in_place) {
        add({from, bytes, peer, MessageKind::kSend, nullptr});
        add({to, bytes, peer, MessageKind::kReceive, nullptr});
      }
    }
    Arrange(mine);
  }
  std::vector<std::thread> blocks;
  for (const MessageArgs& mine : args)
    for (uint32_t b = 0; b < mine.blocks; ++b)
      blocks.emplace_back([&mine, b] { RunMessages(mine, b); });
  for (std::thread& block : blocks) block.join();
  for (int r = 0; r < n; ++r) {
    const auto& got = r == 1 ? in[static_cast<size_t>(r)] : out[static_cast<size_t>(r)];
    for (size_t i = 0; i < n * bytes; ++i)
      ASSERT_EQ(got[i], value(static_cast<int>(i / bytes), r, i % bytes))
          << "rank " << r << ", byte " << i;
  }
}

// Pieces without a slice, with several, and with a part of one; more blocks than slices, and fewer.
TEST(CopiesTest, AllPiecesWhole) {
  const size_t lengths[] = {1, 0, 3 * kCopySlice, 100, 2 * kCopySlice + 7, 33};
  for (const uint32_t blocks : {1u, 3u, 20u}) {
    std::vector<std::vector<std::byte>> in, out;
    CopyArgs args;
    args.blocks = blocks;
    for (const size_t length : lengths) {
      in.emplace_back(length);
      for (size_t i = 0; i < length; ++i) in.back()[i] = static_cast<std::byte>(i * 31 + length);
      out.emplace_back(length + 1, std::byte{77});
    }
    for (size_t p = 0; p < in.size(); ++p)
      args.pieces[args.num_pieces++] = {out[p].data(), in[p].data(), in[p].size()};
    for (uint32_t b = 0; b < blocks; ++b) RunCopies(args, b);
    for (size_t p = 0; p < in.size(); ++p) {
      EXPECT_EQ(out[p].back(), std::byte{77});
      out[p].pop_back();
      EXPECT_EQ(out[p], in[p]) << "piece " << p;
    }
  }
}

TEST(MeshAbortTest, EndsAllWaits) {
  using A = MeshAlgorithm;
  for (const auto& [protocol, algorithm] : {std::pair{Protocol::kLL, A::kAllReduceTwoShot},
                                            std::pair{Protocol::kLL128, A::kAllReduceTwoShot},
                                            std::pair{Protocol::kSimple, A::kAllReduceTwoShot},
                                            std::pair{Protocol::kSimple, A::kAllReduceRing}}) {
    MeshRun run(2, kSlotBytes);
    std::vector<float> in(100), out(100);
    MeshArgs args = run.Args(0);  // rank 1 never comes
    args.protocol = protocol;
    args.algorithm = algorithm;
    args.count = args.block_elems = 100;
    args.chunk_elems = kSlotBytes / sizeof(float);
    SetBuffers(args, in, out);
    std::thread rank([&] { RunReduction<float>(args, 0); });
    run.Abort(0);
    rank.join();
    EXPECT_TRUE(run.HasGivenUp(0, 0));
  }
}

// Rank 0 gives up waiting in each of two operations, then rank 1 comes. Rank 1 must not take for
// data what rank 0 had not received, or wrote where rank 1 had not read.
TEST(MeshAbortTest, WhoGaveUpWritesNothingMore) {
  using A = MeshAlgorithm;
  struct Form {
    Protocol protocol;
    A algorithm;
  };
  for (const auto& [protocol, algorithm] :
       {Form{Protocol::kLL, A::kAllReduceTwoShot}, Form{Protocol::kLL128, A::kAllReduceTwoShot},
        Form{Protocol::kSimple, A::kAllReduceTwoShot}, Form{Protocol::kSimple, A::kAllGather},
        Form{Protocol::kSimple, A::kAllReduceOneShot}}) {
    SCOPED_TRACE(static_cast<int>(protocol) * 100 + static_cast<int>(algorithm));
    MeshRun run(2, kSlotBytes);
    // Eight pieces by Simple: more than there are slots.
    const size_t chunk = kSlotBytes / sizeof(float);
    const size_t count = protocol == Protocol::kSimple ? 8 * chunk : 40;
    const auto start = [&](int rank, const std::vector<float>& in, std::vector<float>& out) {
      MeshArgs args = run.Args(rank);
      args.protocol = protocol;
      args.algorithm = algorithm;
      args.count = args.block_elems = args.stride = count;
      args.chunk_elems = chunk;
      SetBuffers(args, in, out);
      if (algorithm != A::kAllGather) return std::thread([args] { RunReduction<float>(args, 0); });
      for (size_t* const n : {&args.count, &args.block_elems, &args.stride, &args.chunk_elems})
        *n *= sizeof(float);
      return std::thread([args] { RunMove(args, 0); });
    };
    std::vector<float> in(count);
    std::iota(in.begin(), in.end(), 0.f);
    std::vector<float> out0(2 * count), out1(2 * count, -1.f);
    std::thread first = start(0, in, out0);
    run.Abort(0);
    first.join();
    ASSERT_TRUE(run.HasGivenUp(0, 0));
    start(0, in, out0).join();  // queued behind it
    std::thread other = start(1, in, out1);
    run.Abort(1);
    other.join();
    ASSERT_TRUE(run.HasGivenUp(1, 0));
    // Rank 0's data at rank 1 are right or were never written.
    for (size_t i = 0; i < count; ++i) {
      const float got = out1[i];
      const float right = (algorithm == A::kAllGather ? 1 : 2) * in[i];
      ASSERT_TRUE(got == right || got == -1.f) << "element " << i << " is " << got;
    }
  }
}

}  // namespace
}  // namespace tutti::cuda
