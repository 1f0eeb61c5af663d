// The coordinator from end to end: ranks as threads, communicators of the library, the C interface.

#include "coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>

#include "coordinator/testing/job.h"
#include "testing/threads.h"

namespace tutti::coordinator {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CoordinatorTest, OneAllreduceOfTwoRanks) {
  RunJob(2, [](TestRank& self) {
    std::vector<float> values(100, static_cast<float>(self.rank() + 1));
    self.Sum("grad", values);
    EXPECT_THAT(values, Each(3.0f));
  });
}

TEST(CoordinatorTest, ManyTensorsInAnotherOrderOnEachRank) {
  RunJob(3, [](TestRank& self) {
    constexpr int kTensors = 40;
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> values(kTensors);
      std::vector<int64_t> handles(kTensors);
      std::vector<int64_t> shape = {1000};
      for (int i = 0; i < kTensors; ++i) {
        const int k = (i * 7 + self.rank() * 13) % kTensors;
        values[static_cast<size_t>(k)].assign(1000, static_cast<float>(k + step));
        auto& v = values[static_cast<size_t>(k)];
        handles[static_cast<size_t>(k)] =
            self.Enqueue(TestRank::Describe(("t" + std::to_string(k)).c_str(), tuttiOpAllreduce,
                                            tuttiFloat32, shape, v.data(), v.data()));
      }
      for (int k = 0; k < kTensors; ++k) {
        self.Wait(handles[static_cast<size_t>(k)]);
        self.Release(handles[static_cast<size_t>(k)]);
        EXPECT_THAT(values[static_cast<size_t>(k)], Each(static_cast<float>(3 * (k + step))));
      }
    }
    EXPECT_LT(self.Counter("batches"), self.Counter("tensors"));
    EXPECT_GE(self.Counter("cached"), 4u * kTensors);
  });
}

TEST(CoordinatorTest, ASingleRankIsAJobToo) {
  RunJob(1, [](TestRank& self) {
    std::vector<float> values(10, 5);
    self.Sum("a", values);
    EXPECT_THAT(values, Each(5.0f));
  });
}

TEST(CoordinatorTest, NamesThatNeverComeAgainDoNotPileUp) {
  RunJob(1, [](TestRank& self) {
    float value = 1;
    uint64_t names = 0;
    uint64_t most = 0;
    for (int i = 0; i < 20'000; ++i) {
      const std::string name = "noname." + std::to_string(i);
      self.Wait(self.Enqueue(
          TestRank::Describe(name.c_str(), tuttiOpAllreduce, tuttiFloat32, {1}, &value, &value)));
      ASSERT_EQ(tuttiCoordinatorCounter(self.get(), 0, "names", &names), ncclSuccess);
      most = std::max(most, names);
    }
    EXPECT_LE(most, 16'385u);
    EXPECT_LT(names, 5'000u);
  });
}

TEST(CoordinatorTest, IdleRanksExchangeNothing) {
  std::atomic<int> idle{0}, looked{0};
  RunJob(2, [&](TestRank& self) {
    std::vector<float> values(10, 1);
    self.Sum("a", values);
    // A later request of one rank is a round of the other rank as well.
    ++idle;
    EXPECT_TRUE(Await(idle, 2));
    const uint64_t rounds = self.Counter("rounds");
    for (const pid_t loop : testing::ThreadsCalled("tutti-coord"))
      EXPECT_TRUE(testing::StaysAsleep(loop, 50));
    EXPECT_EQ(self.Counter("rounds"), rounds);
    ++looked;
    EXPECT_TRUE(Await(looked, 2));
    self.Sum("a", values);
    EXPECT_THAT(values, Each(4.0f));
  });
}

// The order in which ranks ask must never matter, however they cross.
TEST(CoordinatorTest, RanksThatWaitForDifferentTensorsFirst) {
  RunJob(2, [](TestRank& self) {
    for (int step = 0; step < 20; ++step) {
      std::vector<float> a(4, 1), b(4, 2);
      const std::vector<int64_t> shape = {4};
      const auto ask = [&](const char* name, std::vector<float>& v) {
        return self.Enqueue(
            TestRank::Describe(name, tuttiOpAllreduce, tuttiFloat32, shape, v.data(), v.data()));
      };
      const bool first = self.rank() == 0;
      const int64_t x = first ? ask("a", a) : ask("b", b);
      std::this_thread::sleep_for(std::chrono::milliseconds(step % 3));
      const int64_t y = first ? ask("b", b) : ask("a", a);
      self.Wait(x);
      self.Wait(y);
      self.Release(x);
      self.Release(y);
      EXPECT_THAT(a, Each(2.0f));
      EXPECT_THAT(b, Each(4.0f));
    }
  });
}

TEST(CoordinatorTest, AMismatchIsToldToAllAndTheJobLivesOn) {
  RunJob(3, [](TestRank& self) {
    std::vector<float> values(12, 1);
    const std::vector<int64_t> shape = {self.rank() == 1 ? 6 : 12};
    const int64_t handle = self.Enqueue(TestRank::Describe("t", tuttiOpAllreduce, tuttiFloat32,
                                                           shape, values.data(), values.data()));
    EXPECT_THAT(self.TryWait(handle),
                HasSubstr("Ranks disagree on the shape of allreduce \"t\": (12) on ranks 0 and 2, "
                          "(6) on rank 1."));
    self.Release(handle);
    self.Sum("t", values);
    EXPECT_THAT(values, Each(3.0f));
  });
}

TEST(CoordinatorTest, WhatIsWrongByItselfIsRefusedAtOnce) {
  RunJob(1, [](TestRank& self) {
    std::vector<float> values(4, 1);
    const std::vector<int64_t> shape = {4};
    auto tensor = TestRank::Describe("t", tuttiOpBroadcast, tuttiFloat32, shape, values.data(),
                                     values.data());
    tensor.root = 1;
    EXPECT_LT(self.TryEnqueue(tensor), 0);
    EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("the root is rank 1"));
    for (const char* name : {"t\n", "\x1b[2J", "t\x7f", "\xc2\x9b"}) {
      tensor.name = name;
      EXPECT_LT(self.TryEnqueue(tensor), 0);
      EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("control character"));
    }
    tensor.name = "größe";
    EXPECT_LT(self.TryEnqueue(tensor), 0);
    EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("the root is rank 1"));
    tensor.kind = tuttiOpAlltoall;
    const int64_t splits[] = {5};
    tensor.splits = splits;
    tensor.nsplits = 1;
    EXPECT_LT(self.TryEnqueue(tensor), 0);
    EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("add up to 5 rows, but the tensor has 4"));
    tensor.kind = tuttiOpAllreduce;
    tensor.device = 99;
    EXPECT_LT(self.TryEnqueue(tensor), 0);
    EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("GPU 99"));
    int done = 0;
    EXPECT_EQ(tuttiCoordinatorPoll(self.get(), 77, &done), ncclInvalidArgument);
    EXPECT_LT(self.TryEnqueue(tensor, 5), 0);
    EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("there is no process set 5"));
  });
}

TEST(CoordinatorTest, ANameThatIsPendingIsRefusedAtOnce) {
  std::atomic<int> refused{0};
  RunJob(2, [&](TestRank& self) {
    std::vector<float> a(4, 1), b(4, 1);
    const std::vector<int64_t> shape = {4};
    if (self.rank() == 1) {
      EXPECT_TRUE(Await(refused, 1));
    }
    const int64_t handle = self.Enqueue(
        TestRank::Describe("t", tuttiOpAllreduce, tuttiFloat32, shape, a.data(), a.data()));
    if (self.rank() == 0) {
      EXPECT_LT(self.TryEnqueue(TestRank::Describe("t", tuttiOpAllreduce, tuttiFloat32, shape,
                                                   b.data(), b.data())),
                0);
      EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("a tensor named \"t\" is still pending"));
      ++refused;
    }
    self.Wait(handle);
  });
}

TEST(CoordinatorTest, ShutdownOnOneRankEndsPendingWorkOnAll) {
  std::atomic<int> asked{0};
  RunJob(3, [&](TestRank& self) {
    std::vector<float> values(4, 1);
    if (self.rank() == 1) {
      EXPECT_TRUE(Await(asked, 2));
      EXPECT_EQ(tuttiCoordinatorShutdown(self.get()), ncclSuccess);
      return;
    }
    const std::vector<int64_t> shape = {4};
    const int64_t handle = self.Enqueue(TestRank::Describe("t", tuttiOpAllreduce, tuttiFloat32,
                                                           shape, values.data(), values.data()));
    ++asked;
    EXPECT_THAT(self.TryWait(handle), HasSubstr("rank 1 has shut down"));
    EXPECT_LT(self.TryEnqueue(TestRank::Describe("u", tuttiOpAllreduce, tuttiFloat32, shape,
                                                 values.data(), values.data())),
              0);
    EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("rank 1 has shut down"));
  });
}

// Hosts with different numbers of ranks, and ranks numbered round robin: no hierarchy, as all ranks
// know.
TEST(HierarchyTest, UnevenHostsWorkWithoutOne) {
  const testing::Environment environment({{"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"},
                                          {"HOROVOD_HIERARCHICAL_ALLGATHER", "1"},
                                          {"HOROVOD_AUTOTUNE", "1"}});
  struct Place {
    int local_rank, local_size, cross_rank, cross_size;
  };
  const std::vector<std::vector<Place>> jobs = {
      {{0, 2, 0, 2}, {1, 2, 0, 1}, {0, 1, 1, 2}},                 // 2 + 1
      {{0, 2, 0, 2}, {0, 2, 1, 2}, {1, 2, 0, 2}, {1, 2, 1, 2}}};  // round robin
  for (const auto& places : jobs) {
    const int n = static_cast<int>(places.size());
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    testing::RunRankThreads(
        n,
        [&](int rank) {
          tuttiCoordinatorOptions_t options = TestRank::OptionsOf(rank, n);
          const Place& place = places[static_cast<size_t>(rank)];
          options.local_rank = place.local_rank;
          options.local_size = place.local_size;
          options.cross_rank = place.cross_rank;
          options.cross_size = place.cross_size;
          TestRank self(options, id);
          ASSERT_NE(self.get(), nullptr);
          std::vector<float> values(100, 1);
          self.Sum("t", values);
          EXPECT_THAT(values, Each(static_cast<float>(n)));
        },
        60);
  }
}

// The search turns hierarchical operations on and off while large batches are under way on a thread
// of their own: all ranks must move each batch alike.
TEST(AutotuneTest, ChangesNothingThatIsUnderWay) {
  const testing::Environment environment({{"HOROVOD_AUTOTUNE", "1"},
                                          {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "0"},
                                          {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "2"},
                                          {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "4"}});
  RunJob(4, [](TestRank& self) {
    constexpr size_t kTensors = 6, kCount = 60000;  // too much for the driver to move by itself
    std::vector<std::vector<float>> values(kTensors);
    const std::vector<int64_t> shape = {kCount};
    for (int step = 0; step < 60; ++step) {
      std::vector<int64_t> handles;
      for (size_t t = 0; t < kTensors; ++t) {
        values[t].assign(kCount, static_cast<float>(step + self.rank()));
        handles.push_back(self.Enqueue(TestRank::Describe(("t" + std::to_string(t)).c_str(),
                                                          tuttiOpAllreduce, tuttiFloat32, shape,
                                                          values[t].data(), values[t].data())));
      }
      for (const int64_t handle : handles) {
        self.Wait(handle);
        self.Release(handle);
      }
      for (size_t t = 0; t < kTensors; ++t) {
        const auto wrong = std::count_if(values[t].begin(), values[t].end(), [&](float value) {
          return value != static_cast<float>(4 * step + 6);
        });
        ASSERT_EQ(wrong, 0) << "step " << step;
      }
    }
  });
}

// A child has no threads to wait for.
TEST(CoordinatorTest, ItIsTheParentsInAChild) {
  RunJob(2, [](TestRank& self) {
    std::vector<float> values(4, 1);
    self.Sum("before", values);
    const pid_t child = fork();
    if (child == 0) {
      const auto tensor = TestRank::Describe("x", tuttiOpBarrier, tuttiUint8, {}, nullptr, nullptr);
      const bool refused = self.TryEnqueue(tensor) < 0 &&
                           tuttiCoordinatorShutdown(self.get()) == ncclInvalidUsage &&
                           tuttiCoordinatorDestroy(self.get()) == ncclInvalidUsage &&
                           std::strstr(tuttiCoordinatorLastError(), "its parent's") != nullptr;
      _exit(refused ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    self.Sum("after", values);
    EXPECT_EQ(values[0], 4.0f);
  });
}

}  // namespace
}  // namespace tutti::coordinator
