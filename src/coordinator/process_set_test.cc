// Process sets, joining, stalls, death and the timeline, end to end.

#include "coordinator/process_set.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "coordinator/coordinator.h"
#include "coordinator/testing/job.h"

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
      EXPECT_TRUE(Await(finished, 2));
      handle = AskSum(self, "all", late);
    }
    self.Wait(handle);
    EXPECT_THAT(late, Each(3.0f));
    self.Sum("end", late);  // a rank that leaves earlier would end the set for the others
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
      EXPECT_FLOAT_EQ(reduce(tuttiReduceAverage, 3), 2);  // All three ranks are counted.
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
    // Twice, because the second time comes from the cache.
    if (self.rank() != 1) {
      step();
      step();
    }
    // Done only when the others have joined.
    if (self.rank() == 2) {
      EXPECT_EQ(reduce(tuttiReduceSum, 7), 7);
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

bool Until(const std::function<bool()>& holds) {
  for (const auto deadline = std::chrono::steady_clock::now() + 40s; !holds();
       std::this_thread::sleep_for(1ms)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

// Waits until all these words have been written on standard error, which the test captures in a
// file. Returns false when a word does not come.
bool AwaitSaid(const std::vector<std::string>& words) {
  for (const auto deadline = std::chrono::steady_clock::now() + 40s;
       std::chrono::steady_clock::now() < deadline; std::this_thread::sleep_for(5ms)) {
    std::ifstream file("/proc/self/fd/2");
    const std::string said((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    const auto was_said = [&](const std::string& part) { return said.find(part) != said.npos; };
    if (std::all_of(words.begin(), words.end(), was_said)) return true;
  }
  return false;
}

TEST(StallTest, OneWindowNamesWhoIsMissingAndWhatItDoesInstead) {
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.2"}});
  const std::vector<std::string> all = {"\"late\" has waited for more than 0.2 s",
                                        "ranks 0 and 2 asked for it, missing rank 1",
                                        "rank 1 waits for \"other\""};
  for (const bool cached : {false, true}) {
    ::testing::internal::CaptureStderr();
    RunJob(3, [&](TestRank& self) {
      std::vector<float> values(4, 1), other(4, 1);
      if (cached) self.Sum("late", values);
      int64_t handle = -1;
      if (self.rank() != 1) handle = AskSum(self, "late", values);
      if (self.rank() == 1) {
        const int64_t elsewhere = AskSum(self, "other", other);
        EXPECT_TRUE(AwaitSaid(all)) << cached;
        handle = AskSum(self, "late", values);
        self.Wait(handle);
        self.Wait(elsewhere);
      } else {
        self.Wait(handle);
        self.Wait(AskSum(self, "other", other));
      }
    });
    ::testing::internal::GetCapturedStderr();
  }
}

// Negotiation waits as long as users' programs take, whatever the limit for collectives: the rank
// that waits calls the late rank into the round well before the limit, and waits outside rounds
// from then on.
TEST(StallTest, ALateRankIsNoCollectiveThatHangs) {
  const testing::Environment environment(testing::Environment::Settings{{"TUTTI_TIMEOUT_S", "1"}});
  RunJob(2, [](TestRank& self) {
    for (int step = 0; step < 2; ++step) {  // the second time by the cache
      std::vector<float> values(4, 1);
      const uint64_t before = self.Counter("rounds");
      if (self.rank() == step) {
        EXPECT_TRUE(Until([&] { return self.Counter("rounds") > before; }));
      }
      self.Sum("late", values);
      EXPECT_THAT(values, Each(2.0f));
    }
  });
}

TEST(StallTest, TheLimitShutsDown) {
  const testing::Environment environment({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.1"},
                                          {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0.3"}});
  std::atomic<int> told{0};
  RunJob(2, [&](TestRank& self) {
    std::vector<float> values(4, 1);
    if (self.rank() == 1) {
      EXPECT_TRUE(Await(told, 1));
      return;
    }
    const int64_t handle = AskSum(self, "late", values);
    EXPECT_THAT(self.TryWait(handle), HasSubstr("\"late\" was stalled for 0.3 s"));
    ++told;
  });
}

TEST(StallTest, TheLimitEndsTheJobInWhateverSet) {
  const testing::Environment environment({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.1"},
                                          {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0.3"}});
  std::atomic<int> told{0};
  RunJob(3, [&](TestRank& self) {
    const int pair = AddSet(self, {0, 1});
    std::vector<float> values(4, 1);
    if (self.rank() == 1) {
      EXPECT_TRUE(Await(told, 2));
      return;
    }
    const int64_t handle = AskSum(self, "late", values, self.rank() == 0 ? pair : 0);
    EXPECT_THAT(self.TryWait(handle), HasSubstr("\"late\" was stalled"));
    ++told;
  });
}

// Ranks look into their sets for mismatches four times a stall window.
const testing::Environment::Settings kOftenLooked = {{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.4"}};

// Waits without the calls that would show the rank to be stuck.
std::string PollFor(TestRank& self, int64_t handle, std::chrono::seconds limit = 20s) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  int done = 0;
  while (done == 0 && std::chrono::steady_clock::now() < deadline) {
    EXPECT_EQ(tuttiCoordinatorPoll(self.get(), handle, &done), ncclSuccess);
    std::this_thread::sleep_for(1ms);
  }
  return done == 0 ? "not done" : self.TryWait(handle);
}

// A name in the wrong set is an error on all ranks concerned, without a limit for stalls, and the
// job goes on.
void AskInDifferentSets(int num_ranks, bool cached) {
  const testing::Environment environment(kOftenLooked);
  std::vector<std::string> errors(static_cast<size_t>(num_ranks));
  RunJob(num_ranks, [&](TestRank& self) {
    const int pair = AddSet(self, {0, 1});
    std::vector<float> values(4, 1);
    if (cached) {
      self.Sum("x", values);
      if (self.rank() < 2) self.Sum("x", values, pair);
    }
    int64_t more = -1;
    if (self.rank() == 1) {
      errors[1] = self.TryWait(AskSum(self, "x", values, pair));
    } else {
      more = AskSum(self, "y", values);  // It has nothing to do with "x".
      errors[static_cast<size_t>(self.rank())] = self.TryWait(AskSum(self, "x", values));
    }
    if (more < 0) more = AskSum(self, "y", values);
    self.Wait(more);
    values.assign(4, 1);
    self.Sum("x", values);
    EXPECT_THAT(values, Each(static_cast<float>(num_ranks)));
    values.assign(4, 1);
    if (self.rank() < 2) self.Sum("x", values, pair);
    EXPECT_THAT(values, Each(self.rank() < 2 ? 2.0f : 1.0f));
    self.Sum("last", values);  // a shutdown ends all work under way in every set
  });
  const std::string others = num_ranks == 2 ? "rank 0" : "ranks 0 and 2";
  const std::string all = num_ranks == 2 ? "ranks 0 and 1" : "ranks 0-2";
  EXPECT_THAT(errors,
              Each(HasSubstr("Ranks disagree on the process set of \"x\": process set 0 of " + all +
                             " on " + others + ", process set 1 of ranks 0 and 1 on rank 1.")));
}

TEST(SetMismatchJobTest, TwoRanksAskInDifferentSets) {
  AskInDifferentSets(2, false);
  AskInDifferentSets(2, true);
}

TEST(SetMismatchJobTest, ThreeRanksAskInDifferentSets) {
  AskInDifferentSets(3, false);
  AskInDifferentSets(3, true);
}

TEST(SetMismatchJobTest, AllThatWasAskedForInTheWrongSetFails) {
  const testing::Environment environment(kOftenLooked);
  RunJob(2, [&](TestRank& self) {
    const int first = AddSet(self, {0, 1});
    const int second = AddSet(self, {0, 1});
    const int mine = self.rank() == 0 ? first : second;
    std::vector<std::vector<float>> values(5, std::vector<float>(4, 1));
    std::vector<int64_t> handles;
    for (size_t i = 0; i < values.size(); ++i) {
      handles.push_back(AskSum(self, ("g" + std::to_string(i)).c_str(), values[i], mine));
    }
    for (const int64_t handle : handles) {
      EXPECT_THAT(self.TryWait(handle), HasSubstr("Ranks disagree on the process set of \"g"));
    }
    self.Sum("g0", values[0], first);
    self.Sum("g0", values[0], second);
    EXPECT_THAT(values[0], Each(4.0f));
  });
}

TEST(SetMismatchJobTest, OneNameInTwoSetsMayBeLate) {
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.2"}});
  const std::vector<std::string> all = {
      "Ranks disagree on the process set of \"x\": process set 1 of ranks 0 and 1 on rank 0, "
      "process set 2 of ranks 0 and 1 on rank 1. They have",
      "rank 1 waits for \"x\" in process set 2 of ranks 0 and 1"};
  ::testing::internal::CaptureStderr();
  RunJob(2, [&](TestRank& self) {
    const int first = AddSet(self, {0, 1});
    const int second = AddSet(self, {0, 1});
    std::vector<float> here(4, 1), there(4, 1);
    const int64_t one = AskSum(self, "x", here, self.rank() == 0 ? first : second);
    // Rank 0 is blocked, and rank 1 comes when several checks have seen the wait.
    if (self.rank() == 0) self.Wait(one);
    if (self.rank() == 1) {
      EXPECT_TRUE(AwaitSaid(all));
      const uint64_t before = self.Counter("negotiated_rounds");
      EXPECT_TRUE(Until([&] { return self.Counter("negotiated_rounds") >= before + 2; }));
    }
    self.Wait(AskSum(self, "x", there, self.rank() == 0 ? second : first));
    if (self.rank() == 1) self.Wait(one);
    EXPECT_THAT(here, Each(2.0f));
    EXPECT_THAT(there, Each(2.0f));
  });
  ::testing::internal::GetCapturedStderr();
}

TEST(SetMismatchJobTest, WhatCannotBeProvenFailsAtTheLimitForStalls) {
  const testing::Environment environment({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.1"},
                                          {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0.8"}});
  RunJob(2, [&](TestRank& self) {
    const int pair = AddSet(self, {0, 1});
    std::vector<float> values(4, 1);
    EXPECT_THAT(PollFor(self, AskSum(self, "x", values, self.rank() == 0 ? 0 : pair)),
                HasSubstr("Ranks disagree on the process set of \"x\""));
    self.Sum("x", values);
    self.Sum("x", values, pair);
    EXPECT_THAT(values, Each(4.0f));
  });
}

// Ranks as processes, one of which is killed.
TEST(DeathTest, PendingOperationsEndWithTheNameOfTheDead) {
  testing::RankProcesses job(3, [](int rank, testing::Board& board) {
    Coordinator::Options options;
    options.rank = rank;
    options.num_ranks = 3;
    options.id = *UniqueId::Decode(ShareId(board, rank, 3).internal);
    options.settings = *ReadProcessSettings();
    const auto coordinator = Coordinator::Create(options);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status().message();
    const std::shared_ptr<ProcessSet> set = *(*coordinator)->FindSet(0);
    const auto enqueue = [&](const TicketHold& ticket) {
      TicketHold shared = ticket.Share();
      const tuttiTensor_t barrier = MakeTensor("barrier", OpKind::kBarrier);
      return set->Enqueue({&barrier, 1}, nullptr, {&shared, 1});
    };
    const TicketHold warm = TicketHold::Make(), pending = TicketHold::Make();
    EXPECT_TRUE(enqueue(warm).ok());
    set->Wait(*warm);
    if (rank == 2) {
      board.Add(0, 1);
      pause();
    }
    EXPECT_TRUE(enqueue(pending).ok());
    std::thread watcher([&] {
      EXPECT_TRUE(Until([&] { return set->MayBeStuck(); }));  // its wait has begun
      board.Add(0, 1);
    });
    set->Wait(*pending);
    watcher.join();
    EXPECT_THAT(pending->status.message(), HasSubstr("rank 2"));
    EXPECT_FALSE(enqueue(warm).ok());
  });
  ASSERT_TRUE(job.board().Await(0, 3));
  job.Signal(2, SIGKILL);
  job.Wait();
}

nlohmann::json ReadTimeline(const std::string& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);  // throws for a file without valid JSON
}

std::string TimelinePath(const std::string& name) {
  return fmt::format("{}coordinator_timeline_{}_{}.json", ::testing::TempDir(), name, getpid());
}

TEST(TimelineTest, AnyMomentOfAKilledProcessIsValidJson) {
  const std::string path = TimelinePath("killed");
  for (int attempt = 0; attempt < 5; ++attempt) {
    testing::RankProcesses job(2, [&](int rank, testing::Board& board) {
      setenv("HOROVOD_TIMELINE", path.c_str(), 1);
      TestRank self(rank, 2, ShareId(board, rank, 2));
      for (int i = 0;; ++i) {
        std::vector<float> values(1000, 1);
        self.Sum(("grad \"" + std::to_string(i % 50) + "\" \\").c_str(), values);
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

TEST(TimelineTest, ARankWithoutItsFolderWorksWithoutATimeline) {
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_TIMELINE", "/nowhere/at/all/timeline.json"}});
  ::testing::internal::CaptureStderr();
  RunJob(2, [&](TestRank& self) {
    std::vector<float> values(4, 1);
    self.Sum("a", values);
    EXPECT_THAT(values, Each(2.0f));
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("HOROVOD_TIMELINE has no effect here: "));
}

TEST(TimelineTest, CanBeStartedAndStopped) {
  const std::string path = TimelinePath("stopped");
  RunJob(2, [&](TestRank& self) {
    std::vector<float> values(4, 1);
    EXPECT_EQ(tuttiCoordinatorStopTimeline(self.get()), ncclInvalidUsage);
    ASSERT_EQ(tuttiCoordinatorStartTimeline(self.get(), path.c_str(), 1), ncclSuccess);
    self.Sum("a", values);
    ASSERT_EQ(tuttiCoordinatorStopTimeline(self.get()), ncclSuccess);
    self.Sum("b", values);
  });
  const std::string text = ReadTimeline(path).dump() + ReadTimeline(path + ".1").dump();
  EXPECT_THAT(text, AllOf(HasSubstr("\"a\""), HasSubstr("CYCLE_START"), HasSubstr("0 and 1"),
                          HasSubstr("\"rank 1\""), Not(HasSubstr("\"b\""))));
}

}  // namespace
}  // namespace tutti::coordinator
