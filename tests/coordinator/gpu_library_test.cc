// Tensors on GPUs that go through another's NCCL (other_nccl.cc), on GPUs that are none
// (tests/fakegpu): every operation, what is chosen and why, and how things end.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/nccl_library.h"
#include "gpu_job.h"

namespace tutti::coordinator {

const char* const kOtherNccl = OTHER_NCCL;

namespace {

using ::testing::AllOf;
using testing::Board;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

int CallsOf(const char* function) {
  static void* const library = dlopen(OTHER_NCCL, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  return reinterpret_cast<int (*)(const char*)>(dlsym(library, "otherNcclCalls"))(function);
}

// Waits until this rank has called the function.
bool AwaitCall(const char* function) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (CallsOf(function) == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return CallsOf(function) > 0;
}

template <typename T>
std::vector<T> Repeated(size_t count, T value) {
  return std::vector<T>(count, value);
}

void CheckReductions(GpuRank& self) {
  const auto n = static_cast<float>(self.num_ranks());
  const float value = static_cast<float>(self.rank()) + 1;
  const float total = n * (n + 1) / 2;
  for (const size_t count : {1u, 1000u, 100'000u}) {
    std::vector<float> values(count, value);
    EXPECT_EQ(self.Reduce("sum", values), "");
    EXPECT_THAT(values, Each(total));
    values.assign(count, value);
    EXPECT_EQ(self.Reduce("average", values, tuttiReduceAverage), "");
    EXPECT_THAT(values, Each(::testing::FloatNear(total / n, 1e-5f)));
    values.assign(count, value);
    EXPECT_EQ(self.Reduce("min", values, tuttiReduceMin), "");
    EXPECT_THAT(values, Each(1.0f));
    values.assign(count, value);
    EXPECT_EQ(self.Reduce("scaled", values, tuttiReduceSum, 0, 0.5), "");
    EXPECT_THAT(values, Each(0.5f * total));
    values.assign(count, value);
    EXPECT_EQ(self.Reduce("scaled max", values, tuttiReduceMax, 0, 2), "");  // through the host
    EXPECT_THAT(values, Each(2 * n));
  }
}

void CheckMovements(GpuRank& self) {
  const int n = self.num_ranks();
  const int rank = self.rank();
  for (const bool even : {true, false}) {
    const std::vector<int64_t> shape = {even ? 3 : rank + 1, 2};
    const std::vector<int32_t> rows(static_cast<size_t>(shape[0] * 2), rank);
    std::vector<int32_t> wanted;
    for (int r = 0; r < n; ++r) {
      wanted.insert(wanted.end(), static_cast<size_t>(2 * (even ? 3 : r + 1)), r);
    }
    EXPECT_EQ(self.Result<int32_t>(self.Ask(TestRank::Describe(
                  "gather", tuttiOpAllgather, tuttiInt32, shape, rows.data(), nullptr))),
              wanted);
  }
  std::vector<double> word(5, rank);
  const std::vector<int64_t> five = {5};
  tuttiTensor_t broadcast =
      TestRank::Describe("word", tuttiOpBroadcast, tuttiFloat64, five, word.data(), word.data());
  broadcast.root = n - 1;
  const int64_t handle = self.Ask(broadcast);
  EXPECT_EQ(self.Finish(handle), "");
  self.Release(handle);
  EXPECT_THAT(word, Each(n - 1));
  // Rank r sends r + i rows to rank i.
  std::vector<int64_t> splits;
  for (int i = 0; i < n; ++i) splits.push_back(rank + i);
  const std::vector<int64_t> sent = {std::accumulate(splits.begin(), splits.end(), int64_t{0})};
  const std::vector<int32_t> numbers(static_cast<size_t>(sent[0]), rank);
  tuttiTensor_t alltoall =
      TestRank::Describe("alltoall", tuttiOpAlltoall, tuttiInt32, sent, numbers.data(), nullptr);
  alltoall.splits = splits.data();
  alltoall.nsplits = n;
  std::vector<int32_t> wanted;
  for (int r = 0; r < n; ++r) wanted.insert(wanted.end(), static_cast<size_t>(r + rank), r);
  EXPECT_EQ(self.Result<int32_t>(self.Ask(alltoall)), wanted);
  for (const int64_t rows : {2 * n, 2 * n + 1}) {
    const std::vector<float> whole(static_cast<size_t>(rows), 1);
    const std::vector<int64_t> shape = {rows};
    const size_t mine = rows > 2 * n && rank == 0 ? 3 : 2;
    EXPECT_EQ(self.Result<float>(self.Ask(TestRank::Describe(
                  "scatter", tuttiOpReducescatter, tuttiFloat32, shape, whole.data(), nullptr))),
              Repeated(mine, static_cast<float>(n)));
  }
}

// Many at once, so that they are fused.
void CheckFused(GpuRank& self) {
  for (int step = 0; step < 3; ++step) {
    std::vector<std::vector<float>> tensors;
    std::vector<int64_t> handles;
    for (size_t i = 0; i < 40; ++i) tensors.emplace_back(10 + i, static_cast<float>(i));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<int64_t> shape = {static_cast<int64_t>(tensors[i].size())};
      const std::string name = "fused." + std::to_string(i);
      tuttiTensor_t tensor = TestRank::Describe(name.c_str(), tuttiOpAllreduce, tuttiFloat32, shape,
                                                tensors[i].data(), tensors[i].data());
      tensor.op = i % 2 == 0 ? tuttiReduceAverage : tuttiReduceSum;
      handles.push_back(self.Ask(tensor));
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(self.Finish(handles[i]), "");
      self.Release(handles[i]);
      const auto wanted =
          static_cast<float>(i) * (i % 2 == 0 ? 1.0f : static_cast<float>(self.num_ranks()));
      EXPECT_THAT(tensors[i], Each(::testing::FloatNear(wanted, 1e-4f)));
    }
  }
}

class GpuLibraryTest : public ::testing::TestWithParam<int> {};

TEST_P(GpuLibraryTest, EveryOperation) {
  ::testing::internal::CaptureStderr();
  {
    const Job job(GetParam(), {{"NCCL_DEBUG", "INFO"}}, [](GpuRank& self, Board&) {
      CheckReductions(self);
      CheckMovements(self);
      EXPECT_GE(CallsOf("ncclAllReduce"), 12);
      for (const char* const name :
           {"ncclAllGather", "ncclBroadcast", "ncclSend", "ncclRecv", "ncclReduceScatter",
            "ncclReduce", "ncclRedOpCreatePreMulSum"}) {
        EXPECT_GE(CallsOf(name), 1) << name;
      }
      const int before = CallsOf("ncclAllReduce");
      CheckFused(self);
      EXPECT_LT(CallsOf("ncclAllReduce") - before, 3 * 40);
      EXPECT_EQ(CallsOf("ncclCommInitRankConfig"), 1);
    });
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("tensors on GPUs go through NCCL 2.99.1 (" OTHER_NCCL ")"),
                    Not(HasSubstr("cannot be had"))));
}

TEST_P(GpuLibraryTest, SomeOperationsOnly) {
  const Settings settings = {{"HOROVOD_GPU_OPERATIONS", "tutti"},
                             {"HOROVOD_GPU_ALLGATHER", "NCCL"},
                             {"HOROVOD_GPU_BROADCAST", "nonsense,nccl"}};
  const Job job(GetParam(), settings, [](GpuRank& self, Board&) {
    CheckReductions(self);
    CheckMovements(self);
    for (const char* const name :
         {"ncclAllReduce", "ncclReduceScatter", "ncclReduce", "ncclSend"}) {
      EXPECT_EQ(CallsOf(name), 0) << name;
    }
    EXPECT_EQ(CallsOf("ncclAllGather"), 1);
    EXPECT_EQ(CallsOf("ncclBroadcast"), self.num_ranks() + 1);
  });
}

TEST_P(GpuLibraryTest, ProcessSetsAndJoin) {
  const Job job(GetParam(), {}, [](GpuRank& self, Board&) {
    std::vector<float> values(5000, 1);
    EXPECT_EQ(self.Reduce("all", values), "");
    const int last = self.num_ranks() - 1;
    const std::vector<int> ranks = {0, last};
    int set = -1;
    ASSERT_EQ(tuttiCoordinatorAddProcessSet(self.get(), ranks.data(), 2, &set), ncclSuccess);
    const bool member = self.rank() == 0 || self.rank() == last;
    if (member) {
      values.assign(5000, 2);
      EXPECT_EQ(self.Reduce("two", values, tuttiReduceSum, set), "");
      EXPECT_THAT(values, Each(4.0f));
    }
    ASSERT_EQ(tuttiCoordinatorRemoveProcessSet(self.get(), set), ncclSuccess);
    EXPECT_EQ(CallsOf("ncclCommInitRankConfig"), member ? 2 : 1);
    EXPECT_EQ(CallsOf("ncclCommDestroy"), member ? 1 : 0);
    if (self.rank() > 0) {
      values.assign(5000, 3);
      EXPECT_EQ(self.Reduce("least", values, tuttiReduceMin), "");
      EXPECT_THAT(values, Each(3.0f));
    }
    int64_t joined = 0;
    ASSERT_EQ(tuttiCoordinatorJoin(self.get(), 0, &joined), ncclSuccess);
    self.Wait(joined);
    EXPECT_EQ(CallsOf("ncclCommAbort"), 0);
  });
}

// What was queued waits for a rank that dies, and the library does not notice.
TEST_P(GpuLibraryTest, DeathOfARank) {
  const int last = GetParam() - 1;
  Job job(GetParam(), {{"OTHER_NCCL_DEAF", "3"}}, [&](GpuRank& self, Board& board) {
    std::vector<float> values(5000, 1), lost(5000, 1);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(self.Reduce("good", values), "");
    const std::vector<int64_t> shape = {5000};
    const int64_t handle = self.Ask(TestRank::Describe("lost", tuttiOpAllreduce, tuttiFloat32,
                                                       shape, lost.data(), lost.data()));
    EXPECT_EQ(self.TryWait(handle), "");  // it is queued
    EXPECT_EQ(tuttiCoordinatorStreamWait(self.get(), handle, self.stream()), ncclSuccess);
    board.Add(1, 1);
    if (self.rank() == last) pause();
    self.Synchronize();  // the coordinator has it aborted
    EXPECT_EQ(CallsOf("ncclCommAbort"), 1);
    const std::string error = self.Reduce("after", values);
    EXPECT_THAT(error, HasSubstr("rank " + std::to_string(last)));
  });
  ASSERT_TRUE(job.processes().board().Await(1, GetParam()));
  job.processes().Signal(last, SIGKILL);
}

// A rank dies while the others wait in the library itself.
TEST_P(GpuLibraryTest, DeathWhileACallIsInProgress) {
  const int last = GetParam() - 1;
  Job job(GetParam(), {{"OTHER_NCCL_STUCK", "ncclAllReduce"}}, [&](GpuRank& self, Board& board) {
    std::vector<float> values(5000, 1);
    const std::vector<int64_t> shape = {5000};
    const int64_t handle = self.Ask(TestRank::Describe("stuck", tuttiOpAllreduce, tuttiFloat32,
                                                       shape, values.data(), values.data()));
    EXPECT_TRUE(AwaitCall("ncclAllReduce"));
    board.Add(1, 1);
    if (self.rank() == last) pause();
    EXPECT_NE(self.TryWait(handle), "");
    EXPECT_THAT(self.Reduce("after", values), HasSubstr("rank " + std::to_string(last)));
  });
  ASSERT_TRUE(job.processes().board().Await(1, GetParam()));
  job.processes().Signal(last, SIGKILL);
}

TEST_P(GpuLibraryTest, AFailedCallEndsTheJobWithTheLibrarysWords) {
  const Settings settings = {{"OTHER_NCCL_FAIL", "ncclBroadcast"}, {"OTHER_NCCL_FAIL_RANK", "1"}};
  const Job job(GetParam(), settings, [](GpuRank& self, Board&) {
    std::vector<float> values(5000, 1);
    EXPECT_EQ(self.Reduce("good", values), "");
    const std::vector<int64_t> shape = {5000};
    tuttiTensor_t tensor = TestRank::Describe("bad", tuttiOpBroadcast, tuttiFloat32, shape,
                                              values.data(), values.data());
    const int64_t handle = self.Ask(tensor);
    // It fails on rank 1, which ends the job for all.
    std::string error = self.TryWait(handle);
    if (self.rank() == 1) {
      EXPECT_THAT(error, AllOf(HasSubstr("NCCL 2.99.1 says"),
                               HasSubstr("the other NCCL was told to fail")));
    }
    self.Synchronize();
    EXPECT_NE(self.Reduce("after", values), "");
    EXPECT_EQ(tuttiCoordinatorShutdown(self.get()), ncclSuccess);
  });
}

TEST_P(GpuLibraryTest, AnErrorOfItsThreadsIsFoundWithTheNextOperation) {
  const Job job(GetParam(), {{"OTHER_NCCL_LATE_ERROR", "2"}}, [](GpuRank& self, Board&) {
    std::vector<float> values(5000, 1);
    EXPECT_EQ(self.Reduce("good", values), "");
    std::string error;
    for (int i = 0; i < 2 && error.empty(); ++i) error = self.Reduce("bad", values);
    EXPECT_NE(error, "");
    EXPECT_NE(self.Reduce("after", values), "");
    // What was queued may still write into the tensor.
    EXPECT_EQ(tuttiCoordinatorShutdown(self.get()), ncclSuccess);
  });
}

// One rank cannot make its communicator: all do without.
TEST_P(GpuLibraryTest, TuttiStandsInWhereTheGpusCannotBeJoined) {
  ::testing::internal::CaptureStderr();
  {
    const Settings settings = {{"OTHER_NCCL_FAIL", "ncclCommInitRankConfig"},
                               {"OTHER_NCCL_FAIL_RANK", "1"}};
    const Job job(GetParam(), settings, [](GpuRank& self, Board&) {
      CheckReductions(self);
      EXPECT_EQ(CallsOf("ncclAllReduce"), 0);
    });
  }
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("NCCL 2.99.1 cannot join the GPUs of the ranks, so that Tutti does; "),
            HasSubstr("the other NCCL was told to fail")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuLibraryTest, ::testing::Values(2, 3),
                         [](const auto& instance) { return std::to_string(instance.param); });

// Four ranks on two hosts, as far as NCCL_HOSTID says: the same results as by one communicator of
// all.
class GpuHierarchyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuHierarchyTest, GivesWhatOneCommunicatorGives) {
  const std::string timeline = ::testing::TempDir() + "gpu_hierarchy." + std::to_string(getpid());
  const bool library = std::string(GetParam()) == "nccl";
  {
    const Settings settings = {{"HOROVOD_GPU_OPERATIONS", GetParam()},
                               {"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"},
                               {"HOROVOD_HIERARCHICAL_ALLGATHER", "1"},
                               {"HOROVOD_TIMELINE", timeline},
                               {"NCCL_HOSTID", kTwoHosts}};
    const Job job(4, settings, [&](GpuRank& self, Board&) {
      CheckReductions(self);
      CheckMovements(self);
      CheckFused(self);
      for (const size_t count : {2u, 3u, 1001u}) {
        // Averages of integers go by one communicator.
        std::vector<int32_t> numbers(count, self.rank() % 2 == 0 ? self.rank() + 1 : 0);
        const std::vector<int64_t> shape = {static_cast<int64_t>(count)};
        tuttiTensor_t tensor = TestRank::Describe("integers", tuttiOpAllreduce, tuttiInt32, shape,
                                                  numbers.data(), nullptr);
        tensor.op = tuttiReduceAverage;
        EXPECT_THAT(self.Result<int32_t>(self.Ask(tensor)), Each(1));
        tensor.op = tuttiReduceSum;
        EXPECT_THAT(self.Result<int32_t>(self.Ask(tensor)), Each(4));
      }
      EXPECT_EQ(CallsOf("ncclCommInitRankConfig"), library ? 3 : 0);
      // Those that CheckMovements asks for, without a hierarchy.
      if (library) {
        EXPECT_GT(CallsOf("ncclReduceScatter"), 1);
      }
    });
  }
  for (const std::string& file : {timeline, timeline + ".3"}) {
    std::ifstream in(file);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    EXPECT_THAT(text, HasSubstr("\"hierarchical\"")) << file;
  }
  for (int rank = 0; rank < 4; ++rank) {
    unlink((rank == 0 ? timeline : timeline + "." + std::to_string(rank)).c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(By, GpuHierarchyTest, ::testing::Values("tutti", "nccl"),
                         [](const auto& instance) { return instance.param; });

// What cannot be had: a sentence, and Tutti's own instead.
struct Missing {
  const char* name;
  const char* library;
  const char* sentence;
};
class MissingGpuLibraryTest : public ::testing::TestWithParam<Missing> {};

TEST_P(MissingGpuLibraryTest, ASentenceSaysWhatWasLookedFor) {
  ::testing::internal::CaptureStderr();
  {
    const Job job(2, {{"TUTTI_NCCL_LIBRARY", GetParam().library}}, [](GpuRank& self, Board&) {
      std::vector<float> values(5000, 1);
      EXPECT_EQ(self.Reduce("t", values), "");
      EXPECT_THAT(values, Each(2.0f));
      EXPECT_EQ(CallsOf("ncclAllReduce"), 0);
    });
  }
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("HOROVOD_GPU_OPERATIONS asks for nccl, which cannot be had: rank 0: "),
            HasSubstr(GetParam().sentence)));
}

INSTANTIATE_TEST_SUITE_P(
    Libraries, MissingGpuLibraryTest,
    ::testing::Values(
        Missing{"nowhere", "/nowhere/libnccl.so.2", "/nowhere/libnccl.so.2 cannot be loaded"},
        Missing{"foreign", "libm.so.6", "libm.so.6 is no NCCL, or one that is too old"},
        Missing{"old", OTHER_NCCL_OLD,
                "has no ncclCommInitRankConfig: NCCL 2.14 or later is needed"},
        Missing{"tutti", TUTTI_NCCL_LIBRARY, "is Tutti's own library under NCCL's name"}),
    [](const auto& instance) { return instance.param.name; });

TEST(NcclSearchTest, TheFirstThatIsNotTuttisOwn) {
  auto found = FindNcclForGpus("", {"/nowhere/libnccl.so.2", TUTTI_NCCL_LIBRARY, OTHER_NCCL});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ((*found)->Name(), "NCCL 2.99.1");
  EXPECT_EQ((*found)->path(), OTHER_NCCL);
  found = FindNcclForGpus("", {TUTTI_NCCL_LIBRARY});
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()),
              AllOf(HasSubstr("no libnccl.so.2 but Tutti's was found"), HasSubstr("is Tutti's own"),
                    HasSubstr("TUTTI_NCCL_LIBRARY=PATH names one")));
}

}  // namespace
}  // namespace tutti::coordinator
