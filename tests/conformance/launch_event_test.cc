// launchCompletionEvent, and the other options of one call that only their own rank sees. An event
// happens when the call has begun, which other ranks need not have called for. tests/gpu/run and
// tests/fakegpu run this on GPUs.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "conformance/cases.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

constexpr int kRanks = 2;
constexpr auto kNap = std::chrono::milliseconds(1);

// An event of the calling thread's device.
class Event {
 public:
  explicit Event(bool keeps_time = false) { EXPECT_NCCL(EventCreate(&event_, keeps_time)); }
  ~Event() { EXPECT_NCCL(EventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  bool Happened() const { return EventQuery(event_) == ncclSuccess; }
  // Waits until it has happened; false when it has not after half a minute.
  bool Await() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!Happened()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(kNap);
    }
    return true;
  }
  ncclCollConfig_t Config() const {
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    config.launchCompletionEvent = event_;
    return config;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// A stream of a rank's device that stands still until it is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    EXPECT_NCCL(StreamLaunchHostFunc(
        stream,
        [](void* open) {
          while (!*static_cast<std::atomic<bool>*>(open)) std::this_thread::sleep_for(kNap);
        },
        &open_));
  }
  void Open() { open_ = true; }

 private:
  std::atomic<bool> open_ = false;
};

// Holds what a rank calls with: a stream, and buffers that hold `count` elements for each rank.
struct RankCall {
  explicit RankCall(int number, size_t elems) : rank(number), count(elems) {
    UseDevice(rank);
    EXPECT_NCCL(StreamCreate(&stream));
    in.assign(kRanks * count, static_cast<float>(rank + 1));
    out.assign(kRanks * count, 0.0f);
  }
  ~RankCall() {
    EXPECT_NCCL(StreamSynchronize(stream));
    EXPECT_NCCL(StreamDestroy(stream));
  }
  RankCall(const RankCall&) = delete;
  RankCall& operator=(const RankCall&) = delete;

  int rank;
  size_t count;
  cudaStream_t stream = nullptr;
  Array<float> in, out;
};

using Collective = std::function<ncclResult_t(RankCall&, ncclComm_t, const ncclCollConfig_t*)>;
struct NamedCollective {
  const char* name;
  Collective call;
};

const std::vector<NamedCollective>& AllCollectives() {
  static const std::vector<NamedCollective> all = {
      {"AllReduce",
       [](auto& c, auto comm, auto config) {
         return ncclAllReduceConfig(c.in.data(), c.out.data(), c.count, ncclFloat32, ncclSum, comm,
                                    c.stream, config);
       }},
      {"Broadcast",
       [](auto& c, auto comm, auto config) {
         return ncclBroadcastConfig(c.in.data(), c.out.data(), c.count, ncclFloat32, 1, comm,
                                    c.stream, config);
       }},
      {"Reduce",
       [](auto& c, auto comm, auto config) {
         return ncclReduceConfig(c.in.data(), c.out.data(), c.count, ncclFloat32, ncclSum, 0, comm,
                                 c.stream, config);
       }},
      {"AllGather",
       [](auto& c, auto comm, auto config) {
         return ncclAllGatherConfig(c.in.data(), c.out.data(), c.count, ncclFloat32, comm, c.stream,
                                    config);
       }},
      {"ReduceScatter",
       [](auto& c, auto comm, auto config) {
         return ncclReduceScatterConfig(c.in.data(), c.out.data(), c.count, ncclFloat32, ncclSum,
                                        comm, c.stream, config);
       }},
      {"AlltoAll",
       [](auto& c, auto comm, auto config) {
         return ncclAlltoAllConfig(c.in.data(), c.out.data(), c.count, ncclFloat32, comm, c.stream,
                                   config);
       }},
      {"Gather",
       [](auto& c, auto comm, auto config) {
         return ncclGatherConfig(c.in.data(), c.out.data(), c.count, ncclFloat32, 0, comm, c.stream,
                                 config);
       }},
      {"Scatter",
       [](auto& c, auto comm, auto config) {
         return ncclScatterConfig(c.in.data(), c.out.data(), c.count, ncclFloat32, 1, comm,
                                  c.stream, config);
       }},
  };
  return all;
}

std::vector<Environment::Settings> WaysBetweenRanks() {
  std::vector<Environment::Settings> ways = {{}, {{"NCCL_P2P_DISABLE", "1"}}};
  ways.push_back({{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}});
  return ways;
}

// Returns how many launches recorded such an event since it was last asked, as the stand-in for
// GPUs counts them; nothing with real GPUs and with none.
std::optional<int> RecordedByLaunches() {
  void* const driver = OnGpus() ? dlopen("libcuda.so.1", RTLD_NOW) : nullptr;
  if (driver == nullptr) return std::nullopt;
  const auto ask = reinterpret_cast<int (*)()>(dlsym(driver, "tuttiFakeBegunEvents"));
  return ask != nullptr ? std::optional(ask()) : std::nullopt;
}

// Every collective of rank 0, whose stream stands still at first, and whose peer comes last.
void CheckEveryCollective(const ThreadWorld& world, size_t count) {
  for (const NamedCollective& collective : AllCollectives()) {
    SCOPED_TRACE(collective.name);
    RankCall first(0, count), second(1, count);
    UseDevice(0);
    const Event begun;
    const ncclCollConfig_t config = begun.Config();
    Gate gate(first.stream);
    EXPECT_NCCL(collective.call(first, world.comm(0), &config));
    EXPECT_FALSE(begun.Happened()) << "before what the stream had to do earlier";
    gate.Open();
    EXPECT_TRUE(begun.Await()) << "it waits for the other rank";
    UseDevice(1);
    const Event other;
    const ncclCollConfig_t own = other.Config();
    RecordedByLaunches();
    EXPECT_NCCL(collective.call(second, world.comm(1), &own));
    EXPECT_NCCL(StreamSynchronize(first.stream));
    EXPECT_NCCL(StreamSynchronize(second.stream));
    EXPECT_TRUE(other.Happened());
    if (const std::optional<int> recorded = RecordedByLaunches()) {
      EXPECT_EQ(*recorded, count > 0 ? 1 : 0);
    }
    if (count > 0 && std::string_view(collective.name) == "AllReduce") {
      EXPECT_EQ(first.out[count - 1], 3.0f);
    }
  }
}

TEST(LaunchEventTest, HappensWhenTheCallHasBegun) {
  TUTTI_NEEDS_RANKS(kRanks);
  for (const Environment::Settings& way : WaysBetweenRanks()) {
    const ThreadWorld world(kRanks, way);
    ASSERT_TRUE(world.ok());
    for (const size_t count : {1, 30'000}) CheckEveryCollective(world, count);
  }
}

TEST(LaunchEventTest, HappensForCallsThatMoveNothing) {
  TUTTI_NEEDS_RANKS(kRanks);
  const ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  CheckEveryCollective(world, 0);
  // One rank alone copies.
  const ThreadWorld alone(1);
  ASSERT_TRUE(alone.ok());
  RankCall call(0, 100);
  const Event begun;
  const ncclCollConfig_t config = begun.Config();
  Gate gate(call.stream);
  EXPECT_NCCL(AllCollectives()[0].call(call, alone.comm(0), &config));
  EXPECT_FALSE(begun.Happened());
  gate.Open();
  EXPECT_TRUE(begun.Await());
  EXPECT_NCCL(StreamSynchronize(call.stream));
  EXPECT_EQ(call.out[99], 1.0f);
}

// The AllReduce has not ended then: an event behind it on the stream has not happened.
TEST(LaunchEventTest, HappensBeforeTheCallHasEnded) {
  TUTTI_NEEDS_RANKS(kRanks);
  const ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RankCall first(0, 5000), second(1, 5000);
  UseDevice(0);
  const Event begun, ended;
  const ncclCollConfig_t config = begun.Config();
  EXPECT_NCCL(AllCollectives()[0].call(first, world.comm(0), &config));
  EXPECT_NCCL(EventRecord(ended.get(), first.stream));
  EXPECT_TRUE(begun.Await());
  EXPECT_FALSE(ended.Happened());
  UseDevice(1);
  EXPECT_NCCL(AllCollectives()[0].call(second, world.comm(1), nullptr));
  EXPECT_TRUE(ended.Await());
  EXPECT_EQ(first.out[4999], 3.0f);
}

// Work of another stream that waits for the event begins while the AllReduce is under way.
TEST(LaunchEventTest, IsWaitedForByOtherStreams) {
  TUTTI_NEEDS_RANKS(kRanks);
  const ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RankCall first(0, 5000), second(1, 5000), beside(0, 1);
  UseDevice(0);
  const Event begun;
  const ncclCollConfig_t config = begun.Config();
  std::atomic<bool> ran = false;
  Gate gate(first.stream);
  EXPECT_NCCL(AllCollectives()[0].call(first, world.comm(0), &config));
  EXPECT_NCCL(StreamWaitEvent(beside.stream, begun.get()));
  EXPECT_NCCL(StreamLaunchHostFunc(
      beside.stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &ran));
  EXPECT_FALSE(ran);
  gate.Open();
  EXPECT_NCCL(StreamSynchronize(beside.stream));
  EXPECT_TRUE(ran);
  UseDevice(1);
  EXPECT_NCCL(AllCollectives()[0].call(second, world.comm(1), nullptr));
}

TEST(LaunchEventTest, BelongsToItsCallInAGroup) {
  TUTTI_NEEDS_RANKS(kRanks);
  const ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RankCall first(0, 1000), second(1, 1000);
  UseDevice(0);
  const Event reduced, gathered;
  const std::array configs = {reduced.Config(), gathered.Config()};
  Gate gate(first.stream);
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(AllCollectives()[0].call(first, world.comm(0), &configs[0]));
  EXPECT_NCCL(AllCollectives()[3].call(first, world.comm(0), &configs[1]));
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_FALSE(reduced.Happened());
  EXPECT_FALSE(gathered.Happened());
  gate.Open();
  EXPECT_TRUE(reduced.Await());
  UseDevice(1);
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(AllCollectives()[0].call(second, world.comm(1), nullptr));
  EXPECT_NCCL(AllCollectives()[3].call(second, world.comm(1), nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_TRUE(gathered.Await());
}

// A group that is refused leaves no event that never happens.
TEST(LaunchEventTest, OfARefusedGroupLetsEverybodyGoOn) {
  TUTTI_NEEDS_RANKS(kRanks);
  const ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RankCall call(0, 10);
  const Event begun;
  const ncclCollConfig_t config = begun.Config();
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(AllCollectives()[0].call(call, world.comm(0), &config));
  EXPECT_EQ(ncclBroadcast(call.in.data(), call.out.data(), 1, ncclFloat32, /*root=*/-1,
                          world.comm(0), call.stream),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_TRUE(begun.Happened());
}

// With CUDA's own graphs the event joins another stream to the capture.
TEST(LaunchEventTest, OrdersWhatIsCaptured) {
  TUTTI_FOR_GPUS();
  TUTTI_NEEDS_RANKS(kRanks);
  const ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    RankCall call(rank, 1000), beside(rank, 1);
    const Event begun, done;
    const ncclCollConfig_t config = begun.Config();
    std::atomic<int> runs = 0;
    CapturedGraph graph(call.stream, [&] {
      EXPECT_NCCL(AllCollectives()[0].call(call, world.comm(rank), &config));
      EXPECT_NCCL(StreamWaitEvent(beside.stream, begun.get()));
      EXPECT_NCCL(StreamLaunchHostFunc(
          beside.stream, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &runs));
      EXPECT_NCCL(EventRecord(done.get(), beside.stream));
      EXPECT_NCCL(StreamWaitEvent(call.stream, done.get()));
    });
    for (int round = 1; round <= 3; ++round) {
      call.in.assign(call.in.size(), static_cast<float>(rank + round));
      graph.Replay();
      EXPECT_EQ(call.out[999], static_cast<float>(2 * round + 1));
      EXPECT_EQ(runs, round);
    }
  });
}

// CUDA has no such events for launches. They happen earlier: when the call's turn has come.
TEST(LaunchEventTest, MayKeepTime) {
  TUTTI_NEEDS_RANKS(kRanks);
  const ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    RankCall call(rank, 1000);
    const Event begun(/*keeps_time=*/true);
    const ncclCollConfig_t config = begun.Config();
    EXPECT_NCCL(AllCollectives()[0].call(call, world.comm(rank), &config));
    EXPECT_NCCL(StreamSynchronize(call.stream));
    EXPECT_TRUE(begun.Happened());
    EXPECT_EQ(call.out[999], 3.0f);
  });
}

// On the null stream of a host the call has ended when it returns.
TEST(LaunchEventTest, HappensOnTheNullStream) {
  TUTTI_FOR_HOSTS("about host streams");
  const ThreadWorld world(1);
  ASSERT_TRUE(world.ok());
  const Event before, begun;
  EXPECT_NCCL(EventRecord(before.get(), nullptr));
  const ncclCollConfig_t config = begun.Config();
  float value = 1;
  EXPECT_NCCL(ncclAllReduceConfig(&value, &value, 1, ncclFloat32, ncclSum, world.comm(0), nullptr,
                                  &config));
  double elapsed_ms = -1;  // It is told of events that were recorded only.
  EXPECT_NCCL(tuttiEventElapsedTime(&elapsed_ms, reinterpret_cast<tuttiEvent_t>(before.get()),
                                    reinterpret_cast<tuttiEvent_t>(begun.get())));
  EXPECT_GE(elapsed_ms, 0);
}

// A GPU takes no event of host streams, and hosts take no other ones.
TEST(LaunchEventTest, IsOfTheRanksOwnKind) {
  const ThreadWorld world(1);
  ASSERT_TRUE(world.ok());
  RankCall call(0, 10);
  tuttiEvent_t of_hosts = nullptr;
  ASSERT_NCCL(tuttiEventCreate(&of_hosts));
  int nothing = 0;
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.launchCompletionEvent =
      OnGpus() ? reinterpret_cast<cudaEvent_t>(of_hosts) : reinterpret_cast<cudaEvent_t>(&nothing);
  EXPECT_EQ(AllCollectives()[0].call(call, world.comm(0), &config), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(world.comm(0)), ::testing::HasSubstr("event"));
  EXPECT_NCCL(tuttiEventDestroy(of_hosts));
  EXPECT_NCCL(AllCollectives()[0].call(call, world.comm(0), nullptr));
}

TEST(CallOptionTest, HaveValuesThatAreChecked) {
  const ThreadWorld world(1);
  ASSERT_TRUE(world.ok());
  RankCall call(0, 10);
  const auto wrong = [&](auto change) {
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    change(config);
    return AllCollectives()[0].call(call, world.comm(0), &config);
  };
  for (const int policy : {-1, 4, 1000}) {
    EXPECT_EQ(wrong([&](auto& c) { c.CTAPolicy = policy; }), ncclInvalidArgument) << policy;
    EXPECT_THAT(ncclGetLastError(world.comm(0)), ::testing::HasSubstr("CTAPolicy"));
  }
  for (const int force : {-1, 2, NCCL_CONFIG_UNDEF_INT}) {
    EXPECT_EQ(wrong([&](auto& c) { c.forceAlgSelection = force; }), ncclInvalidArgument) << force;
    EXPECT_THAT(ncclGetLastError(world.comm(0)), ::testing::HasSubstr("forceAlgSelection"));
  }
  for (const int policy : {NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY,
                           NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO}) {
    EXPECT_NCCL(wrong([&](auto& c) { c.CTAPolicy = policy; }));
  }
}

// NCCL 2.31's struct ends before the event, and that of a newer header behind it.
TEST(CallOptionTest, MayHaveTheSizeOfAnotherHeader) {
  const ThreadWorld world(1);
  ASSERT_TRUE(world.ok());
  RankCall call(0, 10);
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.size = 64;
  std::memset(&config.launchCompletionEvent, 0x5a, sizeof(config.launchCompletionEvent));
  EXPECT_NCCL(AllCollectives()[0].call(call, world.comm(0), &config));
  config.size = 63;
  EXPECT_EQ(AllCollectives()[0].call(call, world.comm(0), &config), ncclInvalidArgument);
  struct {
    ncclCollConfig_t known = NCCL_COLLCONFIG_INITIALIZER;
    int64_t newer = -1;
  } longer;
  longer.known.size = sizeof(longer);
  EXPECT_NCCL(AllCollectives()[0].call(call, world.comm(0), &longer.known));
}

TEST(CallOptionTest, TagsReachProfilers) {
  TUTTI_FOR_HOSTS("about profilers, which GPUs have not");
  void* const plugin = dlopen(PROFILER_EXAMPLE, RTLD_NOW);
  ASSERT_NE(plugin, nullptr) << dlerror();
  const auto log = reinterpret_cast<const char* (*)()>(dlsym(plugin, "exampleLog"));
  ASSERT_NE(log, nullptr);
  {
    const ThreadWorld world(kRanks, {{"NCCL_PROFILER_PLUGIN", PROFILER_EXAMPLE}});
    ASSERT_TRUE(world.ok());
    RunRanks(kRanks, [&](int rank) {
      RankCall call(rank, 10);
      ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
      config.userProfilerTag = 815;
      for (const NamedCollective& collective : AllCollectives())
        EXPECT_NCCL(collective.call(call, world.comm(rank), &config));
      EXPECT_NCCL(AllCollectives()[3].call(call, world.comm(rank), nullptr));
      EXPECT_NCCL(StreamSynchronize(call.stream));
    });
  }
  const std::string told = log();
  for (const NamedCollective& collective : AllCollectives())
    EXPECT_THAT(told, ::testing::ContainsRegex(std::string("start Coll in CollApi ") +
                                               collective.name + " [^\n]* tag 815\n"));
  EXPECT_THAT(told, ::testing::ContainsRegex("start Coll in CollApi AllGather [^\n]* number 1\n"))
      << "a call without a tag";
}

}  // namespace
}  // namespace tutti::testing
