// One-sided calls between ranks of one team, whose windows are memory of the test.

#include "window/host_one_sided.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "operations/testing/local_bootstrap.h"
#include "testing/threads.h"

namespace tutti {
namespace {

using testing::LocalBootstrap;
using testing::LocalJob;

constexpr int kRanks = 3;
constexpr uint64_t kPart = 4096;

size_t At(int rank) { return static_cast<size_t>(rank); }

class HostOneSidedTest : public ::testing::Test {
 protected:
  HostOneSidedTest() {
    for (int r = 0; r < kRanks; ++r) {
      bootstraps_.push_back(std::make_unique<LocalBootstrap>(job_, r));
      watches_.push_back(std::make_unique<Watch>(
          *bootstraps_.back(),
          Watch::Options{.rank_names = std::vector<std::string>(kRanks, "a rank")}));
      one_sided_.push_back(std::make_unique<HostOneSided>(
          HostOneSided::Parts{.rank = r,
                              .signals = MakeWindow(signal_memory_, r),
                              .watch = watches_.back().get(),
                              .wait_policy = {.spin_ns = 0, .yield_ns = 0}}));
      data_.push_back(MakeWindow(data_memory_, r));
    }
  }
  // The parts of all ranks lie side by side, for every rank at the same addresses.
  using Memory = std::array<std::byte, kRanks * kPart>;
  static std::shared_ptr<const Window> MakeWindow(Memory& memory, int rank) {
    auto window = std::make_shared<Window>();
    window->own = std::span(memory).subspan(At(rank) * kPart, kPart);
    window->bytes.assign(kRanks, kPart);
    window->team = LsaTeamOf(rank, kRanks);
    window->flat_base = memory.data();
    window->stride = kPart;
    return window;
  }
  Status Put(int from, int to, uint64_t offset, std::span<const std::byte> bytes) {
    Result<std::shared_ptr<const OneSidedCall>> call =
        one_sided_[At(from)]->MakePut({.peer = to,
                                       .window = bytes.empty() ? nullptr : data_[At(from)],
                                       .offset = offset,
                                       .data = bytes});
    EXPECT_TRUE(call.ok());
    EXPECT_FALSE((*call)->waits());
    return (*call)->Run(nullptr);
  }
  Status Wait(int rank, std::vector<OneSided::Awaited> awaited) {
    const auto call = one_sided_[At(rank)]->MakeWait(std::move(awaited));
    EXPECT_TRUE(call->waits());
    return call->Run(nullptr);
  }

  LocalJob job_{kRanks};
  alignas(64) Memory signal_memory_ = {}, data_memory_ = {};
  std::vector<std::unique_ptr<LocalBootstrap>> bootstraps_;
  std::vector<std::unique_ptr<Watch>> watches_;
  std::vector<std::unique_ptr<HostOneSided>> one_sided_;
  std::vector<std::shared_ptr<const Window>> data_;
};

TEST_F(HostOneSidedTest, CountersOfAllRanksFitTheWindowOfSignals) {
  EXPECT_GE(HostOneSided::SignalBytes(kRanks), kRanks * sizeof(uint64_t));
  EXPECT_EQ(HostOneSided::SignalBytes(2 * kRanks), 2 * HostOneSided::SignalBytes(kRanks));
}

TEST_F(HostOneSidedTest, APutIsThereWhenItsSignalHasCome) {
  const std::vector<std::byte> bytes(100, std::byte{7});
  for (const int to : {2, 0}) {
    ASSERT_TRUE(Put(0, to, 50, bytes).ok());
    ASSERT_TRUE(Wait(to, {{0, 1}}).ok());
    EXPECT_EQ(std::memcmp(data_[At(to)]->own.data() + 50, bytes.data(), bytes.size()), 0);
    EXPECT_EQ(data_[At(to)]->own[49], std::byte{0});
    EXPECT_EQ(data_[At(to)]->own[150], std::byte{0});
  }
}

// Signals are counted by their sender. A wait takes the signals that it names.
TEST_F(HostOneSidedTest, AWaitTakesTheSignalsOfEachRankOnce) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Put(0, 2, 0, {}).ok());
  ASSERT_TRUE(Put(1, 2, 0, {}).ok());
  ASSERT_TRUE(Wait(2, {{0, 2}, {1, 1}}).ok());
  ASSERT_TRUE(Wait(2, {{0, 1}, {1, 0}}).ok());
  ASSERT_TRUE(Wait(2, {}).ok());
  std::atomic<bool> over = false;
  std::atomic<pid_t> id = 0;
  std::thread waiter([&] {
    id = testing::ThisThread();
    EXPECT_TRUE(Wait(2, {{1, 1}}).ok());
    over = true;
  });
  while (id == 0) std::this_thread::yield();
  EXPECT_TRUE(testing::AwaitAsleep(id));
  ASSERT_TRUE(Put(0, 2, 0, {}).ok());
  ASSERT_TRUE(Put(1, 0, 0, {}).ok());
  EXPECT_FALSE(over) << "a signal of another rank, and a signal to another rank";
  ASSERT_TRUE(Put(1, 2, 0, {}).ok());
  waiter.join();
  EXPECT_TRUE(over);
}

TEST_F(HostOneSidedTest, AStoppedCommunicatorEndsWaitsAndRefusesPuts) {
  std::atomic<pid_t> id = 0;
  Status ended;
  std::thread waiter([&] {
    id = testing::ThisThread();
    ended = Wait(1, {{0, 1}});
  });
  while (id == 0) std::this_thread::yield();
  EXPECT_TRUE(testing::AwaitAsleep(id));
  watches_[1]->Stop(InvalidUsage("aborted"), /*tell=*/false);
  waiter.join();
  EXPECT_EQ(ended.message(), "aborted");
  EXPECT_EQ(Put(1, 0, 0, {}).message(), "aborted");
  EXPECT_TRUE(Put(0, 1, 0, {}).ok()) << "another rank's communicator goes on";
}

}  // namespace
}  // namespace tutti
