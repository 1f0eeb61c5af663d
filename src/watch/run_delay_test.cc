#include "watch/run_delay.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tutti {
namespace {

// A folder in the form of /proc/self/task.
class RunDelayTest : public ::testing::Test {
 protected:
  RunDelayTest() {
    std::string path = ::testing::TempDir() + "tasks.XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    tasks_ = path;
  }
  ~RunDelayTest() override { std::filesystem::remove_all(tasks_); }

  void Set(int thread, int64_t delay_ns) {
    const std::filesystem::path folder = tasks_ / std::to_string(thread);
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "schedstat") << 1000 << ' ' << delay_ns << ' ' << 7 << '\n';
  }
  void End(int thread) { std::filesystem::remove_all(tasks_ / std::to_string(thread)); }
  // Looks at a time that is due.
  int64_t Look(RunDelay& delay) { return delay.TotalNs(now_ns_ += RunDelay::kLookEveryNs); }

  std::filesystem::path tasks_;
  int64_t now_ns_ = 0;
};

TEST_F(RunDelayTest, NeverFallsWhenThreadsEnd) {
  RunDelay delay(tasks_);
  Set(1, 100);
  Set(2, 30);
  EXPECT_EQ(Look(delay), 130);
  End(2);
  Set(1, 110);
  EXPECT_EQ(Look(delay), 140);
  Set(2, 5);  // a new thread with the number of the ended thread
  EXPECT_EQ(Look(delay), 145);
  Set(1, 50);  // another, whose predecessor has ended since the last look
  EXPECT_EQ(Look(delay), 145);
}

TEST_F(RunDelayTest, LooksNoMoreOftenThanIsDue) {
  RunDelay delay(tasks_);
  Set(1, 100);
  EXPECT_EQ(Look(delay), 100);
  Set(1, 200);
  EXPECT_EQ(delay.TotalNs(now_ns_ + RunDelay::kLookEveryNs - 1), 100);
  EXPECT_EQ(delay.TotalNs(now_ns_ + RunDelay::kLookEveryNs), 200);
}

TEST_F(RunDelayTest, KnowsNothingWithoutTheFilesAndOfTooManyThreads) {
  RunDelay nowhere(tasks_ / "missing"), delay(tasks_);
  EXPECT_EQ(Look(nowhere), 0);
  EXPECT_EQ(Look(delay), 0);
  for (int thread = 1; thread <= static_cast<int>(RunDelay::kMostThreads); ++thread) Set(thread, 2);
  EXPECT_EQ(Look(delay), 2 * static_cast<int64_t>(RunDelay::kMostThreads));
  Set(0, 2);
  EXPECT_EQ(Look(delay), 0);
}

}  // namespace
}  // namespace tutti
