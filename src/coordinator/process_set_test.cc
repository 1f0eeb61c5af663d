// Process sets, joining, stalls, death and the timeline, end to end.

#include "coordinator/process_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "coordinator/job_test.h"

namespace tutti::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

int64_t AskSum(TestRank& self, const char* name, std::vector<float>& values, int set = 0) {
  const std::vector<int64_t> shape = {static_cast<int64_t>(values.size())};
  return self.Enqueue(
      TestRank::Describe(name, tuttiOpAllreduce, tuttiFloat32, shape, values.data(), values.data()),
      set);
}

int AddSet(TestRank& self, const std::vector<int>& ranks) {
  int set = -1;
  EXPECT_EQ(
      tuttiCoordinatorAddProcessSet(self.get(), ranks.data(), static_cast<int>(ranks.size()), &set),
      ncclSuccess)
      << tuttiCoordinatorLastError();
  return set;
}

TEST(ProcessSetTest, SetsHaveOperationsOfTheirOwn) {
  RunJob(4, [](TestRank& self) {
    const int odd = AddSet(self, {3, 1});
    const int even = AddSet(self, {0, 2});
    EXPECT_EQ(odd, 1);
    EXPECT_EQ(even, 2);
    int ranks[4], count = 0;
    ASSERT_EQ(tuttiCoordinatorProcessSetRanks(self.get(), odd, ranks, 4, &count), ncclSuccess);
    ASSERT_EQ(count, 2);
    EXPECT_THAT(std::vector<int>(ranks, ranks + 2), ElementsAre(1, 3));
    const int mine = self.rank() % 2 == 1 ? odd : even;
    std::vector<float> values(8, static_cast<float>(self.rank()));
    self.Sum("t", values, mine);
    EXPECT_THAT(values, Each(self.rank() % 2 == 1 ? 4.0f : 2.0f));
    // Sentences name ranks of the job, not places in the set.
    std::vector<float> other(static_cast<size_t>(self.rank() + 1));
    const int64_t handle = AskSum(self, "u", other, mine);
    EXPECT_THAT(self.TryWait(handle),
                HasSubstr(self.rank() % 2 == 1 ? "(2) on rank 1, (4) on rank 3"
                                               : "(1) on rank 0, (3) on rank 2"));
    EXPECT_LT(
        self.TryEnqueue(TestRank::Describe("x", tuttiOpBarrier, tuttiUint8, {}, nullptr, nullptr),
                        self.rank() % 2 == 1 ? even : odd),
        0);
    EXPECT_THAT(tuttiCoordinatorLastError(), HasSubstr("is not in process set"));
    EXPECT_EQ(tuttiCoordinatorRemoveProcessSet(self.get(), odd), ncclSuccess)
        << tuttiCoordinatorLastError();
    std::vector<float> after(4, 1);
    self.Sum("v", after);
    EXPECT_THAT(after, Each(4.0f));
  });
}

TEST(ProcessSetTest, OneSetDoesNotWaitForAnother) {
  std::atomic<int> finished{0};
  RunJob(3, [&](TestRank& self) {
    const int pair = AddSet(self, {0, 1});
    std::vector<float> late(4, 1);
    int64_t handle = -1;
    // Ranks 0 and 1 wait for rank 2 in the set of all, and meanwhile get on in their own. Rank 2
    // comes when they have.
    if (self.rank() != 2) {
      handle = AskSum(self, "all", late);
      for (int i = 0; i < 20; ++i) {
        std::vector<float> values(4, 1);
        self.Sum("pair", values, pair);
        EXPECT_THAT(values, Each(2.0f));
      }
      ++finished;
    } else {
      const auto deadline = std::chrono::steady_clock::now() + 20s;
      while (finished < 2 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(1ms);
      }
      EXPECT_EQ(finished, 2);
      handle = AskSum(self, "all", late);
    }
    self.Wait(handle);
    EXPECT_THAT(late, Each(3.0f));
    self.Sum("end", late);  // whoever leaves earlier would end it for the others
  });
}

TEST(ProcessSetTest, DisagreementAboutASetIsToldToAll) {
  RunJob(3, [](TestRank& self) {
    const std::vector<int> ranks = {0, self.rank() == 1 ? 2 : 1};
    int set = -1;
    EXPECT_EQ(tuttiCoordinatorAddProcessSet(self.get(), ranks.data(), 2, &set), ncclInvalidUsage);
    EXPECT_THAT(tuttiCoordinatorLastError(),
                HasSubstr("Ranks disagree on the ranks of the process set of add_process_set"));
    EXPECT_EQ(AddSet(self, {0, 1, 2}), 1);
  });
}

TEST(JoinTest, JoinedRanksAddNeutralElements) {
  RunJob(3, [](TestRank& self) {
    const auto reduce = [&](tuttiReduceOp_t op, float value) {
      std::vector<float> values(4, value);
      const std::vector<int64_t> shape = {4};
      const std::string name = "op" + std::to_string(op);
      auto tensor = TestRank::Describe(name.c_str(), tuttiOpAllreduce, tuttiFloat32, shape,
                                       values.data(), values.data());
      tensor.op = op;
      const int64_t handle = self.Enqueue(tensor);
      self.Wait(handle);
      self.Release(handle);
      return values[0];
    };
    const auto step = [&] {
      EXPECT_EQ(reduce(tuttiReduceSum, 2), 4);
      EXPECT_FLOAT_EQ(reduce(tuttiReduceAverage, 3), 2);  // by all three ranks
      EXPECT_EQ(reduce(tuttiReduceMin, 5), 5);
      EXPECT_EQ(reduce(tuttiReduceMax, -5), -5);
      EXPECT_EQ(reduce(tuttiReduceProduct, 3), 9);
      EXPECT_EQ(reduce(tuttiReduceAdasum, 3), 3);
      std::vector<int32_t> row = {self.rank()};
      const std::vector<int64_t> shape = {1};
      EXPECT_THAT(self.Take<int32_t>(self.Enqueue(TestRank::Describe(
                      "gather", tuttiOpAllgather, tuttiInt32, shape, row.data(), nullptr))),
                  ElementsAre(0, 2));
    };
    if (self.rank() == 1) std::this_thread::sleep_for(20ms);
    // Twice, so that the second time comes from the cache.
    if (self.rank() != 1) {
      step();
      step();
    }
    if (self.rank() == 2) {
      std::this_thread::sleep_for(100ms);
    }
    int64_t handle = -1;
    ASSERT_EQ(tuttiCoordinatorJoin(self.get(), 0, &handle), ncclSuccess);
    self.Wait(handle);
    int last = -1;
    ASSERT_EQ(tuttiCoordinatorLastJoined(self.get(), handle, &last), ncclSuccess);
    EXPECT_EQ(last, 2);
    std::vector<float> values(4, 1);
    self.Sum("after", values);
    EXPECT_THAT(values, Each(3.0f));
  });
}

TEST(StallTest, OneWindowNamesWhoIsMissingAndWhatItDoesInstead) {
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.2"}});
  for (const bool cached : {false, true}) {
    ::testing::internal::CaptureStderr();
    RunJob(3, [&](TestRank& self) {
      std::vector<float> values(4, 1), other(4, 1);
      if (cached) self.Sum("late", values);
      int64_t handle = -1;
      if (self.rank() != 1) handle = AskSum(self, "late", values);
      if (self.rank() == 1) {
        const int64_t elsewhere = AskSum(self, "other", other);
        std::this_thread::sleep_for(450ms);
        handle = AskSum(self, "late", values);
        self.Wait(handle);
        self.Wait(elsewhere);
      } else {
        self.Wait(handle);
        self.Wait(AskSum(self, "other", other));
      }
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, AllOf(HasSubstr("\"late\" has waited for more than 0.2 s"),
                            HasSubstr("ranks 0 and 2 asked for it, missing rank 1"),
                            HasSubstr("rank 1 waits for \"other\"")))
        << cached;
  }
}

TEST(StallTest, TheLimitShutsDown) {
  const testing::Environment environment({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.1"},
                                          {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0.2"}});
  RunJob(2, [](TestRank& self) {
    std::vector<float> values(4, 1);
    if (self.rank() == 1) {
      std::this_thread::sleep_for(800ms);
      return;
    }
    const int64_t handle = AskSum(self, "late", values);
    EXPECT_THAT(self.TryWait(handle), HasSubstr("was stalled"));
  });
}

// Ranks as processes, one of which is killed.
TEST(DeathTest, PendingOperationsEndWithTheNameOfTheDead) {
  testing::RankProcesses job(3, [](int rank, testing::Board& board) {
    ncclUniqueId id;
    if (rank == 0) {
      ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
      std::memcpy(board.bytes(0).data(), &id, sizeof(id));
    }
    board.Meet(0, 3);
    std::memcpy(&id, board.bytes(0).data(), sizeof(id));
    TestRank self(rank, 3, id);
    std::vector<float> values(4, 1);
    self.Sum("warm", values);
    if (rank == 2) {
      board.Set(0, 1);
      std::this_thread::sleep_for(60s);
    }
    const int64_t handle = AskSum(self, "pending", values);
    EXPECT_THAT(self.TryWait(handle), HasSubstr("rank 2"));
    EXPECT_LT(
        self.TryEnqueue(TestRank::Describe("x", tuttiOpBarrier, tuttiUint8, {}, nullptr, nullptr)),
        0);
  });
  ASSERT_TRUE(job.board().Await(0, 1));
  std::this_thread::sleep_for(100ms);
  job.Signal(2, SIGKILL);
  job.Wait(20);
}

nlohmann::json ReadTimeline(const std::string& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);  // throws where it is no JSON
}

TEST(TimelineTest, AnyMomentOfAKilledProcessIsValidJson) {
  const std::string path = ::testing::TempDir() + "coordinator_timeline.json";
  for (int attempt = 0; attempt < 5; ++attempt) {
    testing::RankProcesses job(2, [&](int rank, testing::Board& board) {
      setenv("HOROVOD_TIMELINE", path.c_str(), 1);
      ncclUniqueId id;
      if (rank == 0) {
        ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
        std::memcpy(board.bytes(0).data(), &id, sizeof(id));
      }
      board.Meet(0, 2);
      std::memcpy(&id, board.bytes(0).data(), sizeof(id));
      TestRank self(rank, 2, id);
      for (int i = 0;; ++i) {
        std::vector<float> values(1000, 1);
        self.Sum(("grad \"" + std::to_string(i % 50) + "\"\n").c_str(), values);
        board.Set(rank, i);
      }
    });
    ASSERT_TRUE(job.board().Await(0, 200 + attempt * 37));
    job.Signal(0, SIGKILL);
    job.Signal(1, SIGKILL);
    job.Wait(20);
    for (const std::string& file : {path, path + ".1"}) {
      const nlohmann::json events = ReadTimeline(file);
      ASSERT_TRUE(events.is_array());
      std::map<std::string, int> seen;
      for (const auto& event : events) ++seen[event.at("name")];
      EXPECT_GT(seen["NEGOTIATE_ALLREDUCE"], 100);
      EXPECT_GT(seen["ALLREDUCE"], 100);
    }
  }
}

TEST(TimelineTest, CanBeStartedAndStopped) {
  const std::string path = ::testing::TempDir() + "coordinator_timeline_2.json";
  RunJob(2, [&](TestRank& self) {
    std::vector<float> values(4, 1);
    EXPECT_EQ(tuttiCoordinatorStopTimeline(self.get()), ncclInvalidUsage);
    ASSERT_EQ(tuttiCoordinatorStartTimeline(self.get(), path.c_str(), 1), ncclSuccess);
    self.Sum("a", values);
    ASSERT_EQ(tuttiCoordinatorStopTimeline(self.get()), ncclSuccess);
    self.Sum("b", values);
  });
  const std::string text = ReadTimeline(path).dump() + ReadTimeline(path + ".1").dump();
  EXPECT_THAT(text, AllOf(HasSubstr("\"a\""), HasSubstr("ROUND"), HasSubstr("0 and 1"),
                          HasSubstr("\"rank 1\""), Not(HasSubstr("\"b\""))));
}

}  // namespace
}  // namespace tutti::coordinator
