// Tests what is there for GPUs alone: every form in which data go between them and every way by
// which they reach one another, graphs, and buffers that all ranks have registered.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <tuple>
#include <vector>

#include "conformance/suites.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

struct Way {
  const char* name;
  Environment::Settings settings;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

const std::vector<Way>& Ways() {
  static const std::vector<Way> ways = {
      {"LL", {{"NCCL_PROTO", "LL"}}},
      {"LL128", {{"NCCL_PROTO", "LL128"}}},
      {"Simple", {{"NCCL_PROTO", "Simple"}}},
      // As if every size were large: rings, chains, and messages in place of meshes.
      {"Rings",
       {{"TUTTI_GPU_TUNE",
         "step_us=0,chain_us=0,chain_step_us=0,message_us=0,ring_bytes_per_us=1e9"}}},
      {"HostMemory", {{"NCCL_P2P_DISABLE", "1"}}},
      {"Network", {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}}},
      {"NetworkRings",
       {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}, {"NCCL_ALGO", "Ring"}}},
  };
  return ways;
}

class WayTest : public ::testing::TestWithParam<std::tuple<Way, int>> {
 protected:
  void SetUp() override {
    TUTTI_FOR_GPUS();
    TUTTI_NEEDS_RANKS(num_ranks());
    world_.emplace(num_ranks(), std::get<0>(GetParam()).settings);
    ASSERT_TRUE(world_->ok());
  }
  int num_ranks() const { return std::get<1>(GetParam()); }
  std::optional<ThreadWorld> world_;
};

// Only where the library chooses the way do tests look whether a second run gives the same bits.
std::vector<Case> Once(std::vector<Case> cases) {
  for (Case& c : cases) c.once = true;
  return cases;
}

TEST_P(WayTest, ReducesEveryTypeWithEveryOperator) {
  world_->Run(Once(EveryTypeAndOperatorOfAllReduce(33)));
}
TEST_P(WayTest, TakesEveryCountRootAndAddress) {
  world_->Run(Once(EveryCount(num_ranks(), {0, 1, 33, 20011})));
  world_->Run(Once(EveryRoot(num_ranks(), 300)));
  world_->Run(Once(EverySkew(num_ranks(), 515)));
}
TEST_P(WayTest, TakesLongBuffers) { world_->Run(Long(num_ranks(), 65537)); }

// Every collective, captured and replayed: what a graph keeps must be as good the second time.
TEST_P(WayTest, IsCaptured) {
  RunRanks(num_ranks(), [&](int rank) {
    cudaStream_t stream = nullptr;
    ASSERT_NCCL(StreamCreate(&stream));
    for (const Case& c : Once(EveryCount(num_ranks(), {1, 33, 20011})))
      RunCaptured(world_->comm(rank), c, stream);
    EXPECT_NCCL(StreamDestroy(stream));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Gpus, WayTest, ::testing::Combine(::testing::ValuesIn(Ways()), ::testing::Values(2, 3, 4, 8)),
    [](const auto& instance) {
      return fmt::format("{}_{}", std::get<0>(instance.param).name, std::get<1>(instance.param));
    });

// Buffers of one window, in which kernels work where they are.
class WindowsTest : public ::testing::TestWithParam<int> {};

TEST_P(WindowsTest, CarryWhatIsRegistered) {
  TUTTI_FOR_GPUS();
  const int n = GetParam();
  TUTTI_NEEDS_RANKS(n);
  ThreadWorld world(n, {{"TUTTI_GPU_TUNE", "symmetric_us=0,simple_us=10000,step_us=10000"},
                        {"NCCL_PROTO", "Simple"}});
  ASSERT_TRUE(world.ok());
  constexpr size_t kMost = 40000;
  RunRanks(n, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    const auto ranks = static_cast<size_t>(n);
    void* memory = nullptr;
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclMemAlloc(&memory, 2 * ranks * kMost * sizeof(int)));
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory, 2 * ranks * kMost * sizeof(int), &window,
                                       NCCL_WIN_COLL_SYMMETRIC));
    int* const in = static_cast<int*>(memory);
    int* const out = in + ranks * kMost;
    for (const size_t count : {size_t{1}, size_t{33}, size_t{5001}, kMost}) {
      const auto number = [&](size_t from, size_t i) {
        return static_cast<int>(from * 1000003 + i * 7 + count);
      };
      std::vector<int> mine(ranks * count), gathered, reduced(ranks * count);
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = number(static_cast<size_t>(rank), i);
      for (size_t from = 0; from < ranks; ++from) {
        for (size_t i = 0; i < count; ++i) gathered.push_back(number(from, i));
        for (size_t i = 0; i < reduced.size(); ++i) reduced[i] += number(from, i);
      }
      Put(in, mine);
      EXPECT_NCCL(ncclAllReduce(in, out, ranks * count, ncclInt32, ncclSum, comm, UsualStream()));
      EXPECT_NCCL(Finish(comm));
      EXPECT_EQ(Get(out, ranks * count), reduced) << "AllReduce of " << ranks * count;
      EXPECT_NCCL(ncclAllGather(in, out, count, ncclInt32, comm, UsualStream()));
      EXPECT_NCCL(Finish(comm));
      EXPECT_EQ(Get(out, ranks * count), gathered) << "AllGather of " << count;
      EXPECT_NCCL(ncclReduceScatter(in, out, count, ncclInt32, ncclSum, comm, UsualStream()));
      EXPECT_NCCL(Finish(comm));
      const auto part = reduced.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(rank) * count);
      EXPECT_EQ(Get(out, count), std::vector<int>(part, part + static_cast<ptrdiff_t>(count)))
          << "ReduceScatter of " << count;
    }
    EXPECT_NCCL(tuttiBarrier(comm, UsualStream()));
    EXPECT_NCCL(Finish(comm));
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_NCCL(tuttiBarrier(comm, UsualStream()));
    EXPECT_NCCL(Finish(comm));
    EXPECT_NCCL(ncclMemFree(memory));
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus, WindowsTest, ::testing::Values(2, 3, 4, 8),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

}  // namespace
}  // namespace tutti::testing
