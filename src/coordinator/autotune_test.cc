#include "coordinator/autotune.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

namespace tutti::coordinator {
namespace {

TEST(GaussianProcessTest, GoesThroughItsPointsAndKnowsWhatItDoesNotKnow) {
  const std::vector<GaussianProcess::Point> points = {{0.1, 0.1}, {0.5, 0.5}, {0.9, 0.2}};
  const GaussianProcess process(points, {1, 3, 2}, 1e-6);
  EXPECT_NEAR(process.Predict({0.5, 0.5}).mean, 3, 1e-3);
  EXPECT_NEAR(process.Predict({0.1, 0.1}).mean, 1, 1e-3);
  EXPECT_LT(process.Predict({0.5, 0.5}).deviation, 0.01);
  EXPECT_GT(process.Predict({0.1, 0.9}).deviation, 0.5);
  EXPECT_GT(process.ExpectedImprovement({0.6, 0.6}), process.ExpectedImprovement({0.1, 0.1}));
}

TEST(AutotuneTest, TheDefaultsLieInTheBox) {
  const Tuning defaults;
  const Tuning back = Autotune::FromPoint(Autotune::ToPoint(defaults), defaults);
  EXPECT_NEAR(static_cast<double>(back.fusion_threshold),
              static_cast<double>(defaults.fusion_threshold), 10);
  EXPECT_NEAR(static_cast<double>(back.window_ns), static_cast<double>(defaults.window_ns), 10);
}

// A modelled link: each operation costs a start-up time, buffers beyond the cache are slower, and a
// long window is time lost. The best is 8 MiB and a short window.
double StepNs(const Tuning& tuning, double total_bytes) {
  const double threshold = static_cast<double>(tuning.fusion_threshold);
  const double operations = std::ceil(total_bytes / threshold);
  const double spill = std::max(0.0, std::log2(threshold / (8 << 20)));
  const double bandwidth = 10 / (1 + 0.4 * spill);  // bytes per ns
  return operations * 200'000 + total_bytes / bandwidth + static_cast<double>(tuning.window_ns) +
         (tuning.cache ? 0 : 500'000);
}

TEST(AutotuneTest, FindsABetterSettingOnAModelledLink) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(1, 0.03);
    const Tuning initial;
    Autotune::Options options;
    options.noise = 0.1;
    Autotune autotune(options, initial);
    Tuning current = initial;
    constexpr double kBytes = 64 << 20;
    double now_ns = 1;
    int changes = 0;
    for (int step = 0; step < 100'000 && !autotune.done(); ++step) {
      now_ns += StepNs(current, kBytes) * noise(random);
      autotune.Moved("t", static_cast<int64_t>(kBytes), static_cast<int64_t>(now_ns));
      if (const auto next = autotune.TakeNext(current)) {
        current = *next;
        ++changes;
      }
    }
    ASSERT_TRUE(autotune.done()) << "seed " << seed;
    EXPECT_GT(changes, 10);
    EXPECT_EQ(current, autotune.best()) << "seed " << seed;
    EXPECT_LT(StepNs(current, kBytes), 0.7 * StepNs(initial, kBytes)) << "seed " << seed;
    EXPECT_TRUE(current.cache) << "seed " << seed;
  }
}

// The best numbers are the first; then each switch is tried once, and kept where it is better.
TEST(AutotuneTest, TriesEverySwitchThatItMay) {
  for (const bool allreduce : {false, true}) {
    for (const bool allgather : {false, true}) {
      const Tuning initial;
      Autotune::Options options;
      options.warmup_samples = 0;
      options.steps_per_sample = 1;
      options.max_samples = 1;
      options.try_hierarchical_allreduce = allreduce;
      options.try_hierarchical_allgather = allgather;
      Autotune autotune(options, initial);
      Tuning current = initial;
      int64_t now_ns = 1;
      int changes = 0;
      for (int step = 0; step < 1000 && !autotune.done(); ++step) {
        // Hierarchical allgathers help, and nothing else does.
        now_ns += current.hierarchical_allgather ? 1000 : 2000;
        autotune.Moved("t", 4096, now_ns);
        if (const auto next = autotune.TakeNext(current)) {
          current = *next;
          ++changes;
        }
      }
      ASSERT_TRUE(autotune.done());
      EXPECT_EQ(current.hierarchical_allgather, allgather);
      EXPECT_FALSE(current.hierarchical_allreduce);
      EXPECT_TRUE(current.cache);
      // Each switch is tried, and then what comes next goes back or keeps it.
      EXPECT_GE(changes, 2 + (allreduce ? 1 : 0) + (allgather ? 1 : 0));
    }
  }
}

TEST(AutotuneTest, EndsWhereNoNameComesAgain) {
  const Tuning initial;
  Autotune::Options options;
  options.steps_per_sample = 1;
  options.max_samples = 3;
  Autotune autotune(options, initial);
  Tuning current = initial;
  int moved = 0;
  for (; moved < 100'000 && !autotune.done(); ++moved) {
    autotune.Moved("allreduce.noname." + std::to_string(moved), 1024, 1 + moved * 1000);
    if (const auto next = autotune.TakeNext(current)) current = *next;
  }
  EXPECT_TRUE(autotune.done()) << moved;
}

}  // namespace
}  // namespace tutti::coordinator
