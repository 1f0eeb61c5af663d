// Host streams and events, and what the library says about itself.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "conformance/suites.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

void Sleep(void* milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(*static_cast<int*>(milliseconds)));
}

TEST(StreamTest, RunsOperationsInOrderBesideTheCaller) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  std::array<cudaStream_t, kRanks> streams{};
  Array<int> values = {1, 2, 3};
  for (size_t r = 0; r < kRanks; ++r) {
    UseDevice(static_cast<int>(r));
    ASSERT_NCCL(StreamCreate(&streams[r]));
  }
  // One thread issues for all ranks without a group: with streams nothing waits at the call.
  for (int round = 0; round < 4; ++round) {
    for (size_t r = 0; r < kRanks; ++r)
      EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt32, ncclSum,
                                world.comm(static_cast<int>(r)), streams[r]));
  }
  for (cudaStream_t stream : streams) EXPECT_NCCL(StreamSynchronize(stream));
  for (const int value : values) EXPECT_EQ(value, 6 * 27);
  for (cudaStream_t stream : streams) {
    if (!OnGpus()) {
      EXPECT_NCCL(tuttiStreamQuery(stream));
    }
    EXPECT_NCCL(StreamDestroy(stream));
  }
  if (OnGpus()) return;  // not every driver knows which streams there are
  EXPECT_EQ(ncclAllReduce(&values[0], &values[0], 1, ncclInt32, ncclSum, world.comm(0), streams[0]),
            ncclInvalidArgument)
      << "a destroyed stream was taken";
}

TEST(StreamTest, CarriesEveryCollective) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    cudaStream_t stream;
    ASSERT_NCCL(StreamCreate(&stream));
    for (const Case& c : EveryCount(kRanks, {0, 5, 5001})) RunCase(world.comm(rank), c, stream);
    EXPECT_NCCL(StreamDestroy(stream));
  });
}

TEST(StreamTest, OneCommunicatorKeepsItsOrderOverTwoStreams) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    std::array<cudaStream_t, 2> streams{};
    for (cudaStream_t& stream : streams) ASSERT_NCCL(StreamCreate(&stream));
    // The ranks' streams are slowed down at different places.
    int delay_ms = 20;
    EXPECT_NCCL(StreamLaunchHostFunc(streams[static_cast<size_t>(rank)], Sleep, &delay_ms));
    Array<int> values(6);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = rank + static_cast<int>(i);
      EXPECT_NCCL(ncclAllReduce(&values[i], &values[i], 1, ncclInt32, ncclSum, world.comm(rank),
                                streams[i % 2]));
    }
    for (cudaStream_t stream : streams) EXPECT_NCCL(StreamSynchronize(stream));
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 1 + 2 * static_cast<int>(i));
    for (cudaStream_t stream : streams) EXPECT_NCCL(StreamDestroy(stream));
  });
}

TEST(StreamTest, IsNotDestroyedByAFunctionThatItRuns) {
  TUTTI_FOR_HOSTS("about host streams");
  struct {
    cudaStream_t stream = nullptr;
    ncclResult_t result = ncclSuccess;
  } self;
  ASSERT_NCCL(tuttiStreamCreate(&self.stream));
  EXPECT_NCCL(tuttiStreamLaunchHostFunc(
      self.stream,
      [](void* arg) {
        auto* const me = static_cast<decltype(self)*>(arg);
        me->result = tuttiStreamDestroy(me->stream);
      },
      &self));
  EXPECT_NCCL(tuttiStreamSynchronize(self.stream));
  EXPECT_EQ(self.result, ncclInvalidUsage);
  EXPECT_NCCL(tuttiStreamDestroy(self.stream));
}

TEST(EventTest, OrdersStreamsAndTellsTime) {
  TUTTI_FOR_HOSTS("about host streams");
  cudaStream_t first, second;
  tuttiEvent_t start, end;
  ASSERT_NCCL(tuttiStreamCreate(&first));
  ASSERT_NCCL(tuttiStreamCreate(&second));
  ASSERT_NCCL(tuttiEventCreate(&start));
  ASSERT_NCCL(tuttiEventCreate(&end));
  EXPECT_NCCL(tuttiEventQuery(start));  // never recorded: done
  double elapsed_ms = -1;
  EXPECT_EQ(tuttiEventElapsedTime(&elapsed_ms, start, end), ncclInvalidUsage);

  struct Gate {
    std::atomic<bool> reached = false, open = false;
  } gate;
  std::atomic<bool> follower_ran = false;
  EXPECT_NCCL(tuttiEventRecord(start, first));
  EXPECT_NCCL(tuttiStreamLaunchHostFunc(
      first,
      [](void* arg) {
        auto* const at = static_cast<Gate*>(arg);
        at->reached = true;
        at->reached.notify_all();
        at->open.wait(false);
      },
      &gate));
  EXPECT_NCCL(tuttiEventRecord(end, first));
  EXPECT_NCCL(tuttiStreamWaitEvent(second, end));
  EXPECT_NCCL(tuttiStreamLaunchHostFunc(
      second, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &follower_ran));
  EXPECT_EQ(tuttiStreamQuery(first), ncclInProgress);
  EXPECT_EQ(tuttiEventQuery(end), ncclInProgress);
  EXPECT_FALSE(follower_ran);
  gate.reached.wait(false);
  const auto reached = std::chrono::steady_clock::now();
  EXPECT_TRUE(AwaitAllAsleep("tutti-stream"));  // one thread at the gate, one for the event
  EXPECT_FALSE(follower_ran);
  const std::chrono::duration<double, std::milli> closed =
      std::chrono::steady_clock::now() - reached;
  gate.open = true;
  gate.open.notify_all();
  EXPECT_NCCL(tuttiEventSynchronize(end));
  EXPECT_NCCL(tuttiStreamSynchronize(second));
  EXPECT_TRUE(follower_ran);
  EXPECT_NCCL(tuttiEventElapsedTime(&elapsed_ms, start, end));
  EXPECT_GE(elapsed_ms, closed.count());
  EXPECT_NCCL(tuttiEventDestroy(start));
  EXPECT_NCCL(tuttiEventDestroy(end));
  EXPECT_NCCL(tuttiStreamDestroy(first));
  EXPECT_NCCL(tuttiStreamDestroy(second));
  EXPECT_EQ(tuttiStreamSynchronize(first), ncclInvalidArgument);
}

std::string DescribeComm(ncclComm_t comm) {
  size_t needed = 0;
  EXPECT_NCCL(tuttiCommDescribe(comm, nullptr, 0, &needed));
  std::string text(needed, '\0');
  EXPECT_NCCL(tuttiCommDescribe(comm, text.data(), text.size(), nullptr));
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return text;
}

TEST(DescribeTest, ACommunicatorIsJson) {
  TUTTI_NEEDS_RANKS(2);
  ThreadWorld world(2);
  ASSERT_TRUE(world.ok());
  const std::string text = DescribeComm(world.comm(1));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(json.is_object()) << text;
  EXPECT_EQ(json.value("rank", -1), 1) << text;
  EXPECT_TRUE(json.contains("hosts")) << text;
  // Cut where it does not fit, and ended by a zero byte.
  std::array<char, 8> cut;
  cut.fill('x');
  size_t needed = 0;
  EXPECT_NCCL(tuttiCommDescribe(world.comm(1), cut.data(), 5, &needed));
  EXPECT_EQ(needed, text.size() + 1);
  EXPECT_EQ(std::string(cut.data()), text.substr(0, 4));
  EXPECT_EQ(cut[5], 'x');
}

TEST(DescribeTest, APlanNamesItsCollectiveOnly) {
  TUTTI_NEEDS_RANKS(2);
  ThreadWorld world(2);
  ASSERT_TRUE(world.ok());
  for (const char* name : {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
                           "AlltoAll", "Gather", "Scatter"})
    EXPECT_THAT(world.Plan(name, 1 << 20, ncclFloat32), ::testing::HasSubstr(name));
  std::array<char, 100> text;
  EXPECT_EQ(tuttiPlanDescribe(world.comm(0), "AllReuse", 1, ncclFloat32, ncclSum, text.data(),
                              text.size(), nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(tuttiPlanDescribe(world.comm(0), "AlltoAllV", 1, ncclFloat32, ncclSum, text.data(),
                              text.size(), nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(tuttiPlanDescribe(world.comm(0), "AllReduce", SIZE_MAX, ncclFloat32, ncclSum,
                              text.data(), text.size(), nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(tuttiPlanDescribe(world.comm(0), "AllReduce", 1, ncclNumTypes, ncclSum, text.data(),
                              text.size(), nullptr),
            ncclInvalidArgument);
}

TEST(ParamTest, TellsTheSettingsInForce) {
  const Environment environment(
      Environment::Settings{{"NCCL_BUFFSIZE", "65536"}, {"NCCL_ALGO", "ring"}});
  ncclParamHandle_t handle = nullptr;
  ASSERT_NCCL(ncclParamBind(&handle, "NCCL_BUFFSIZE"));
  int64_t wide = 0;
  uint32_t narrow = 0;
  EXPECT_NCCL(ncclParamGetI64(handle, &wide));
  EXPECT_NCCL(ncclParamGetU32(handle, &narrow));
  EXPECT_EQ(wide, 65536);
  EXPECT_EQ(narrow, 65536u);
  int16_t too_narrow = 0;
  EXPECT_EQ(ncclParamGetI16(handle, &too_narrow), ncclInvalidArgument);
  const char* value = nullptr;
  int length = 0;
  EXPECT_NCCL(ncclParamGetParameter("NCCL_ALGO", &value, &length));
  EXPECT_STREQ(value, "ring");
  EXPECT_EQ(length, 4);
  EXPECT_EQ(ncclParamGetParameter("NCCL_NOT_THERE", &value, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamBind(&handle, "NCCL_NOT_THERE"), ncclInvalidArgument);
  const char** keys = nullptr;
  int num_keys = 0;
  EXPECT_NCCL(ncclParamGetAllParameterKeys(&keys, &num_keys));
  EXPECT_GT(num_keys, 10);
  for (int i = 0; i < num_keys; ++i) {
    EXPECT_NCCL(ncclParamBind(&handle, keys[i]));
    std::array<char, 4096> bytes;
    EXPECT_NCCL(ncclParamGet(handle, bytes.data(), static_cast<int>(bytes.size()), &length));
    EXPECT_NCCL(ncclParamGetStr(handle, &value));
    EXPECT_EQ(std::string(bytes.data(), static_cast<size_t>(length)), value);
  }
  ncclParamDumpAll();
}

TEST(VersionTest, IsThatOfTheHeader) {
  int version = 0;
  EXPECT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, NCCL_VERSION_CODE);
  const char* own = nullptr;
  EXPECT_NCCL(tuttiGetVersion(&own));
  EXPECT_THAT(own, ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  for (int i = -1; i <= ncclNumResults; ++i)
    EXPECT_STRNE(ncclGetErrorString(static_cast<ncclResult_t>(i)), "");
}

TEST(MemoryTest, FromTheLibraryCarriesCollectives) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    constexpr size_t kCount = 300001;
    void* memory = nullptr;
    ASSERT_NCCL(ncclMemAlloc(&memory, kCount * sizeof(float)));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % NCCL_WIN_REQUIRED_ALIGNMENT, 0u);
    void* handle = nullptr;
    EXPECT_NCCL(ncclCommRegister(world.comm(rank), memory, kCount * sizeof(float), &handle));
    auto* const values = static_cast<float*>(memory);
    Put(values, std::vector<float>(kCount, static_cast<float>(rank + 1)));
    EXPECT_NCCL(
        ncclAllReduce(values, values, kCount, ncclFloat32, ncclSum, world.comm(rank), nullptr));
    EXPECT_NCCL(Finish(world.comm(rank)));
    EXPECT_EQ(Get(values, kCount), std::vector<float>(kCount, 3.0f));
    EXPECT_NCCL(ncclCommDeregister(world.comm(rank), handle));
    EXPECT_EQ(ncclCommDeregister(world.comm(rank), handle), ncclInvalidArgument);
    EXPECT_NCCL(ncclMemFree(memory));
    EXPECT_NE(ncclMemFree(&memory), ncclSuccess) << "memory of somebody else was freed";
  });
}

}  // namespace
}  // namespace tutti::testing
