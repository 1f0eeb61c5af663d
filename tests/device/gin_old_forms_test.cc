// Device-initiated networking of programs that were compiled for NCCL 2.28 and 2.29, on GPUs of the
// stand-in. What such programs pass and read is declared here once more, apart from the library,
// and a function of the host posts what their kernels post.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gin_cases.h"
#include "gin_world.h"

namespace tutti::testing {
namespace {

// The requirements of 2.28.7 to 2.28.9, which have neither a size nor a magic.
struct Asked228 {
  void* resource_list = nullptr;
  void* team_list = nullptr;
  bool lsa_multimem = false;
  int barriers = 0, lsa_barriers = 0, rail_gin_barriers = 0, ll_a2a_blocks = 0, ll_a2a_slots = 0;
  bool gin_force_enable = false;
  int gin_contexts = 0, gin_signals = 0, gin_counters = 0;
};
static_assert(sizeof(Asked228) == 56);
// Those of 2.29.2 and 2.29.3, and with the members behind them those of 2.29.7.
struct Asked229 {
  size_t size = 72;
  unsigned magic = 0xcafebeef;
  unsigned version = 22902;
  Asked228 rest = {};
  int gin_connection_type = 0;
  bool gin_exclusive_contexts = false;
  int gin_queue_depth = 0;
};
static_assert(offsetof(Asked229, gin_connection_type) == 72);

// The device communicator of these releases; 2.28.7 to 2.29.3 end before the last four members.
struct DevComm {
  int rank, num_ranks;
  uint32_t num_ranks_rcp32;
  int lsa_rank, lsa_size;
  uint32_t lsa_size_rcp32;
  void* window_table;
  void* resource_window;
  char resource_record[72];
  void* lsa_multimem;
  uint32_t lsa_barrier[2];
  uint32_t rail_gin_barrier[2];
  uint8_t gin_connections;
  uint8_t gin_types[4];
  void* gin_handles[4];
  uint32_t gin_signal_base;
  int gin_signals;
  uint32_t gin_counter_base;
  int gin_counters;
  uint64_t* gin_signal_shadows;
  uint32_t gin_contexts;
  uint32_t gin_context_base;
  bool gin_is_railed;
  uint32_t* abort_flag;
};
static_assert(offsetof(DevComm, gin_contexts) == 200 && sizeof(DevComm) == 224);

struct WindowRecord {
  void* host;
  char* lsa_flat_base;
  int lsa_rank, world_rank;
  uint32_t stride4g, mc_offset4k, gin_offset4k;
  uint64_t gin_windows[4];
};
static_assert(offsetof(WindowRecord, gin_windows) == 40);

struct Context {
  int num_ranks;
  uint32_t queue_size;
  uint64_t (*queues)[8];
  uint32_t* producers;
  uint32_t* consumers;
  uint64_t* counters;
  uint64_t* signals;
};
static_assert(sizeof(Context) == 48);

enum class Release { k2287, k2292, k2297 };

// Stands for a kernel: posts to one context and waits.
class OldKernel {
 public:
  OldKernel(const DevComm& comm, Release release, uint32_t context)
      : comm_(comm), release_(release) {
    const bool by_connection = release != Release::k2297;
    connection_ = by_connection ? context : 0;
    context_ = static_cast<Context*>(comm.gin_handles[connection_]) + (by_connection ? 0 : context);
    shadows_ = comm.gin_signal_shadows + context * static_cast<uint32_t>(comm.gin_signals);
  }

  static constexpr unsigned kPut = 1, kValue = 2, kCounter = 4, kInc = 8, kAdd = 16, kVaSignal = 32;
  struct Place {
    ncclWindow_t window = nullptr;
    uint64_t offset = 0;
  };
  struct Operation {
    unsigned op = kPut;
    Place to = {}, from = {};  // The latter is also the place of a VA signal.
    uint64_t bytes = 0, value = 0;
    uint32_t counter = 0, signal = 0;
    uint64_t added = 1;
  };

  void Post(int peer, const Operation& o) const {
    const uint32_t index = std::atomic_ref<uint32_t>(context_->producers[peer]).fetch_add(1);
    while (index - Load32(&context_->consumers[peer]) >= context_->queue_size && !Aborted())
      std::this_thread::yield();
    // Bits without a meaning have any value.
    uint64_t words[8];
    std::memset(words, 0xaa, sizeof(words));
    words[0] = uint64_t{o.op} << 1 | o.bytes << 7;
    if ((o.op & kValue) != 0) {
      words[1] = (o.value & 0xffffffffffff) << 8;
      words[2] = (o.value >> 48) << 8 | uint64_t{0xab} << 48;
    } else {
      words[1] = Offset(o.from) << 1;
      words[2] = Window(o.from) << 1;
    }
    words[3] = Offset(o.to) << 1;
    words[4] = Window(o.to) << 1;
    if (release_ == Release::k2297)
      words[5] = uint64_t{o.counter} << 1 | uint64_t{o.signal} << 24 | o.added << 48;
    else
      words[5] = uint64_t{0x2a} << 1 | uint64_t{o.counter} << 8 | uint64_t{o.signal} << 24 |
                 (o.added & 0xffff) << 40 | uint64_t{0xcd} << 56;
    words[6] = uint64_t{0x15} << 1 | (o.added >> 16 & 0xffff) << 8 | o.added >> 32 << 24;
    uint64_t* const slot = context_->queues[static_cast<uint32_t>(peer) * context_->queue_size +
                                            (index & (context_->queue_size - 1))];
    for (int i = 0; i < 8; ++i) std::atomic_ref<uint64_t>(slot[i]).store(words[i] | 1);
  }
  void Flush() const {
    for (int peer = 0; peer < comm_.num_ranks; ++peer) {
      const uint32_t posted = Load32(&context_->producers[peer]);
      while (static_cast<int32_t>(posted - Load32(&context_->consumers[peer])) > 0 && !Aborted())
        std::this_thread::yield();
    }
  }
  uint64_t Signal(uint32_t number) const {
    return Load(&context_->signals[comm_.gin_signal_base + number]);
  }
  void AwaitSignal(uint32_t number, uint64_t least) const {
    while (Signal(number) < least && !Aborted()) std::this_thread::yield();
  }
  void AwaitCounter(uint32_t number, uint64_t least) const {
    while (Load(&context_->counters[comm_.gin_counter_base + number]) < least && !Aborted())
      std::this_thread::yield();
  }
  void ResetSignal(uint32_t number) const {
    std::atomic_ref<uint64_t>(context_->signals[comm_.gin_signal_base + number]).store(0);
    shadows_[number] = 0;
  }
  // Meets the other ranks by their rail barrier, with a signal for each rank of the world.
  void Meet(uint64_t epoch) const {
    const bool one_signal = release_ != Release::k2297;
    const uint32_t first = comm_.rail_gin_barrier[0];
    for (int i = 1; i < comm_.num_ranks; ++i)
      Post((comm_.rank + i) % comm_.num_ranks,
           {.op = kPut | kInc,
            .signal = first + (one_signal ? 0 : static_cast<uint32_t>(comm_.rank))});
    const auto others = static_cast<uint64_t>(comm_.num_ranks - 1);
    if (one_signal) return AwaitSignal(first, epoch * others);
    for (int i = 0; i < comm_.num_ranks; ++i)
      if (i != comm_.rank) AwaitSignal(first + static_cast<uint32_t>(i), epoch);
  }

 private:
  static uint64_t Load(uint64_t* word) { return std::atomic_ref<uint64_t>(*word).load(); }
  static uint32_t Load32(uint32_t* word) { return std::atomic_ref<uint32_t>(*word).load(); }
  bool Aborted() const {
    return release_ == Release::k2297 && comm_.abort_flag != nullptr &&
           Load32(comm_.abort_flag) != 0;
  }
  uint64_t Window(const Place& place) const {
    if (place.window == nullptr) return 0;
    return reinterpret_cast<const WindowRecord*>(place.window)->gin_windows[connection_];
  }
  static uint64_t Offset(const Place& place) {
    if (place.window == nullptr) return 0;
    return reinterpret_cast<const WindowRecord*>(place.window)->gin_offset4k * uint64_t{4096} +
           place.offset;
  }

  const DevComm& comm_;
  const Release release_;
  uint32_t connection_;
  Context* context_;
  uint64_t* shadows_;
};

// Makes and ends a device communicator as a program of that release does.
class OldDevComm {
 public:
  OldDevComm(ncclComm_t comm, Release release, const Asked228& asked) : comm_(comm) {
    std::memset(static_cast<void*>(&made_), 0x77, sizeof(made_));
    Asked229 of229;
    of229.rest = asked;
    const void* passed = &of229;
    if (release == Release::k2287) {
      passed = &of229.rest;
    } else if (release == Release::k2297) {
      of229.size = sizeof(of229);
      of229.version = 22907;
      of229.gin_connection_type = NCCL_GIN_CONNECTION_FULL;
    }
    const ncclResult_t result =
        ncclDevCommCreate(comm, static_cast<const ncclDevCommRequirements_t*>(passed),
                          reinterpret_cast<ncclDevComm_t*>(&made_));
    ok_ = result == ncclSuccess;
    EXPECT_TRUE(ok_) << ncclGetLastError(comm);
    // Nothing was written behind what the program has.
    if (release != Release::k2297) {
      EXPECT_EQ(made_.gin_contexts, 0x77777777u);
    }
  }
  ~OldDevComm() {
    if (!ok_) return;
    EXPECT_EQ(ncclDevCommDestroy(comm_, reinterpret_cast<ncclDevComm_t*>(&made_)), ncclSuccess);
  }
  OldDevComm(const OldDevComm&) = delete;
  OldDevComm& operator=(const OldDevComm&) = delete;
  bool ok() const { return ok_; }
  const DevComm& get() const { return made_; }

 private:
  ncclComm_t comm_;
  DevComm made_;
  bool ok_ = false;
};

using Case = std::tuple<Way, Release>;
class OldGinTest : public ::testing::TestWithParam<Case> {
 protected:
  const Release release_ = std::get<1>(GetParam());

 private:
  const WayInEnvironment way_{std::get<0>(GetParam())};
};
constexpr const char* kNames[] = {"2_28_7", "2_29_2", "2_29_7"};
std::string NameOfCase(const ::testing::TestParamInfo<Case>& instance) {
  return std::string(NameOf(std::get<0>(instance.param))) + "_" +
         kNames[static_cast<int>(std::get<1>(instance.param))];
}
INSTANTIATE_TEST_SUITE_P(Of, OldGinTest,
                         ::testing::Combine(::testing::Values(Way::kMemory, Way::kNetwork),
                                            ::testing::Values(Release::k2287, Release::k2292,
                                                              Release::k2297)),
                         NameOfCase);

constexpr int kRanks = 3;

// More operations than a queue has slots, toward every rank, on every context.
TEST_P(OldGinTest, PutsValuesCountersAndSignals) {
  RunRanks(kRanks, [&](int rank, ncclComm_t comm) {
    constexpr size_t kWords = 64;
    constexpr uint64_t kRounds = 200, kContexts = 2;
    const auto from = [](int r) { return static_cast<uint64_t>(r) * 8; };
    GinWindow<uint64_t> window(comm, 4096, NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING);
    const OldDevComm made(
        comm, release_,
        {.rail_gin_barriers = 1, .gin_contexts = 2, .gin_signals = 3, .gin_counters = 1});
    ASSERT_TRUE(made.ok());
    const DevComm& devcomm = made.get();
    ASSERT_EQ(devcomm.gin_connections, release_ == Release::k2297 ? 1 : 2);
    ASSERT_EQ(devcomm.gin_types[0], 2);
    // Words 0 … are put, those from 1024 on are put to, 64 for each rank; those from 2048 on take
    // values, and signals in windows lie from 3072 on.
    uint64_t* const data = window.data();
    uint64_t epoch = 0;
    for (uint32_t context = 0; context < kContexts; ++context) {
      const OldKernel kernel(devcomm, release_, context);
      for (size_t i = 0; i < kWords; ++i)
        data[i] = static_cast<uint64_t>(rank) * 1000 + context * 100 + i;
      if (context == 0) GinMeet(comm);
      for (int peer = 0; peer < kRanks; ++peer) {
        for (uint64_t round = 0; round < kRounds; ++round)
          kernel.Post(peer,
                      {.op = OldKernel::kPut | OldKernel::kCounter | OldKernel::kInc,
                       .to = {window.get(), (1024 + static_cast<uint64_t>(rank) * kWords) * 8},
                       .from = {window.get(), 0},
                       .bytes = kWords * 8,
                       .counter = devcomm.gin_counter_base,
                       .signal = devcomm.gin_signal_base});
        kernel.Post(peer, {.op = OldKernel::kPut | OldKernel::kValue | OldKernel::kAdd,
                           .to = {window.get(), 2048 * 8 + from(rank)},
                           .bytes = 8,
                           .value = 0xfedcba9876543210 + static_cast<uint64_t>(rank),
                           .signal = devcomm.gin_signal_base + 1,
                           .added = uint64_t{0x123456789abc} + static_cast<uint64_t>(rank)});
        if (release_ == Release::k2297)
          kernel.Post(peer, {.op = OldKernel::kVaSignal | OldKernel::kAdd,
                             .from = {window.get(), 3072 * 8 + from(rank)},
                             .added = 5});
      }
      kernel.AwaitSignal(0, kRounds * kRanks);
      kernel.AwaitSignal(1, uint64_t{0x123456789abc} * kRanks + 3);
      EXPECT_EQ(kernel.Signal(0), kRounds * kRanks);
      EXPECT_EQ(kernel.Signal(1), uint64_t{0x123456789abc} * kRanks + 3);
      kernel.AwaitCounter(0, kRounds * kRanks);
      kernel.Flush();
      for (int peer = 0; peer < kRanks; ++peer) {
        EXPECT_EQ(data[2048 + static_cast<size_t>(peer)],
                  0xfedcba9876543210 + static_cast<uint64_t>(peer));
        for (size_t i = 0; i < kWords; ++i)
          ASSERT_EQ(data[1024 + static_cast<size_t>(peer) * kWords + i],
                    static_cast<uint64_t>(peer) * 1000 + context * 100 + i)
              << peer << ", " << i;
      }
      kernel.ResetSignal(0);
      EXPECT_EQ(kernel.Signal(0), 0u);
      // By the signals of barriers on context 0.
      OldKernel(devcomm, release_, 0).Meet(++epoch);
      if (release_ != Release::k2297) continue;
      for (size_t peer = 0; peer < kRanks; ++peer) EXPECT_EQ(data[3072 + peer], 5u * (context + 1));
      // Nobody goes on to add to them while others still look.
      OldKernel(devcomm, release_, 0).Meet(++epoch);
    }
    GinMeet(comm);
  });
}

// A signal without GIN has had it made since there are signals; barriers alone ask for none.
TEST_P(OldGinTest, BarriersAskForNoNetwork) {
  if (release_ == Release::k2297) GTEST_SKIP() << "they do";
  if (std::get<0>(GetParam()) == Way::kNetwork) GTEST_SKIP() << "GPUs of several teams have GIN";
  RunRanks(2, [&](int, ncclComm_t comm) {
    const OldDevComm made(comm, release_, {.barriers = 2, .rail_gin_barriers = 1});
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made.get().gin_connections, 0);
    EXPECT_EQ(made.get().lsa_barrier[1], 2u);
  });
}

TEST_P(OldGinTest, AMistakeStopsTheCommunicator) {
  RunRanks(
      2,
      [&](int rank, ncclComm_t comm) {
        GinWindow<uint64_t> window(comm, 64);
        const OldDevComm made(comm, release_, {.gin_contexts = 1, .gin_signals = 1});
        ASSERT_TRUE(made.ok());
        const OldKernel kernel(made.get(), release_, 0);
        if (rank == 0)
          kernel.Post(1, {.op = OldKernel::kPut,
                          .to = {window.get(), 64 * 8},
                          .from = {window.get(), 0},
                          .bytes = 8});
        ncclResult_t error = ncclSuccess;
        while (error == ncclSuccess) ASSERT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
        EXPECT_NE(std::string(ncclGetLastError(comm)).find("the target of a put: 8 bytes at 512"),
                  std::string::npos)
            << ncclGetLastError(comm);
      },
      ncclCommAbort);
}

}  // namespace
}  // namespace tutti::testing
