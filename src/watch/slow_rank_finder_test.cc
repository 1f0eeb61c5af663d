// Ranks of one process, on one event loop, that ask and answer over few links.

#include "watch/slow_rank_finder.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "watch/testing/watch_network.h"

namespace tutti {
namespace {

using Network = testing::WatchNetwork;

class SlowRankFinderTest : public ::testing::TestWithParam<int> {
 protected:
  SlowRankFinderTest() : network_(num_ranks()) {
    network_.SetLinked([this](int a, int b) {
      const int apart = a < b ? b - a : a - b;
      return std::has_single_bit(static_cast<unsigned>(apart)) ||
             std::has_single_bit(static_cast<unsigned>(num_ranks() - apart));
    });
    for (int r = 0; r < num_ranks(); ++r)
      finders_.push_back(std::make_unique<SlowRankFinder>(
          *loop_, network_.watch(r), SlowRankFinder::Options{.rank = r, .num_ranks = num_ranks()}));
  }
  ~SlowRankFinderTest() override { finders_.clear(); }

  static int num_ranks() { return GetParam(); }
  // Makes a collective of two milliseconds, in which all ranks wait for the slow rank, if any.
  void Step(std::optional<int> slow) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (int r = 0; r < num_ranks(); ++r) {
      testing::Launch(network_.watch(r), testing::AllReduceOf(1));
      if (slow && r != *slow) network_.watch(r).NoteWaited(Collective::kAllReduce, 1'900'000);
    }
  }
  std::optional<observe::SlowRecord> Shown(int rank) {
    return network_.watch(rank).record().slow.Load();
  }
  // Makes collectives until all ranks show this rank, or none; at most for half a minute.
  bool StepUntilAllShow(std::optional<int> slow, std::optional<int> shown) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < until) {
      Step(slow);
      int right = 0;
      for (int r = 0; r < num_ranks(); ++r) {
        const std::optional<observe::SlowRecord> one = Shown(r);
        right += shown ? one && one->num_ranks == 1 && one->ranks[0] == *shown : !one;
      }
      if (right == num_ranks()) return true;
    }
    return false;
  }

  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("test").value();
  Network network_;
  std::vector<std::unique_ptr<SlowRankFinder>> finders_;
};

// Rank 0 waits and asks. The last rank is many links away from rank 0.
TEST_P(SlowRankFinderTest, ShowsASlowRankOnAllRanksUntilTheRankRecovers) {
  const int slow = num_ranks() - 1;
  ASSERT_TRUE(StepUntilAllShow(slow, slow));
  EXPECT_GT(Shown(0)->cost_ppm, 500'000);
  EXPECT_GT(Shown(slow)->per_collective_ns, 1'000'000);
  ASSERT_TRUE(StepUntilAllShow(std::nullopt, std::nullopt));
}

INSTANTIATE_TEST_SUITE_P(Ranks, SlowRankFinderTest, ::testing::Values(2, 3, 8, 11));

// Bytes of any content change nothing.
TEST(SlowRankFinderMessagesTest, DropsMessagesThatMakeNoSense) {
  const std::unique_ptr<EventLoop> loop = EventLoop::Create("test").value();
  Network network(2);
  SlowRankFinder first(*loop, network.watch(0), {.rank = 0, .num_ranks = 2});
  SlowRankFinder second(*loop, network.watch(1), {.rank = 1, .num_ranks = 2});
  loop->RunSync([&] {
    for (int kind = 0; kind < 256; ++kind)
      for (const size_t size : {1u, 2u, 9u, 40u, 41u, 53u, 57u, 200u}) {
        std::vector<std::byte> message(size, std::byte{0xff});
        message[0] = static_cast<std::byte>(kind);
        first.OnPace(1, message);
        second.OnPace(0, message);
      }
  });
  EXPECT_FALSE(network.watch(0).record().slow.Load());
  EXPECT_FALSE(network.watch(1).record().slow.Load());
}

}  // namespace
}  // namespace tutti
