// The device API on real GPUs, name by name: teams, groups of threads, pointers, barriers,
// exchanges, sums and copies, and litmus tests of the memory of an LSA team and of GIN. gin_test.cu
// has the operations of GIN.
//
//   nvcc -std=c++17 -O3 -arch=native -I INCLUDE lsa_test.cu -L LIBRARY -ltutti -o lsa_test
//   LD_LIBRARY_PATH=LIBRARY ./lsa_test RANKS [processes | hosts [HOSTS]]
//
// kernel_cases.h explains the arguments. Settings: LSA_TEST_SECONDS, LSA_TEST_CASES. Over the
// emulated card, ranks of one LSA team reach one another's memory, and the card joins all ranks.

// First, because the header includes the number types that sums know.
#include "litmus_cases.h"
#include "network_cases.h"
#include "reduce_copy_cases.h"

namespace {

using namespace lsa_cases;

// How long the rounds of a litmus test may go on, and how many a launch has.
#ifdef __CUDACC__
constexpr double kLitmusSeconds = 4;
constexpr unsigned long long kRounds = 10000, kGinRounds = 2000;
constexpr int kLaunches = 100, kGinLaunches = 500;  // a million rounds
constexpr int kManyLaunches = 300;
#else
constexpr double kLitmusSeconds = 1;
constexpr unsigned long long kRounds = 500, kGinRounds = 100;
constexpr int kLaunches = 2000, kGinLaunches = 10000;
constexpr int kManyLaunches = 30;
#endif

void TellRounds(char* text, size_t size, const Case<Args>&, const Notes* ranks, int) {
  std::snprintf(text, size, "  %llu rounds", ranks[0].counted);
}
void TellCounted(char* text, size_t size, const Case<Args>&, const Notes* ranks, int count) {
  unsigned long long sum = 0;
  for (int r = 0; r < count; ++r) sum += ranks[r].counted;
  std::snprintf(text, size, "  seen %llu times", sum);
}

const char* NeedsPair(const Args& args) {
  return args.comm.lsaSize < 2 ? "no two ranks reach one another's memory" : nullptr;
}
const char* NeedsGin(const Args& args) {
  return args.comm.ginConnectionCount == 0 ? "there is no GIN" : nullptr;
}
const char* NeedsBoth(const Args& args) {
  return NeedsPair(args) != nullptr ? NeedsPair(args) : NeedsGin(args);
}

using Kernel = void (*)(Args);

constexpr Case<Args> Plain(const char* name, Kernel kernel, unsigned blocks = 1,
                           unsigned long long number = 10, int launches = 1) {
  return {name, kernel, blocks, kThreads, kHostThreads, number, launches};
}
// Needs fewer threads on hosts.
constexpr Case<Args> Slim(const char* name, Kernel kernel, unsigned blocks = 1,
                          unsigned long long number = 10, int launches = 1) {
  return {name, kernel, blocks, kThreads, 4, number, launches};
}
constexpr Case<Args> OverGin(const char* name, Kernel kernel, unsigned threads,
                             unsigned host_threads, unsigned long long number, int launches) {
  return {name, kernel, 1, threads, host_threads, number, launches, 1e9, nullptr, NeedsGin};
}
constexpr Case<Args> Litmus(const char* name, Kernel kernel, unsigned threads) {
  return {name,      kernel,         1,          threads,  threads < 2 ? threads : 2, kRounds,
          kLaunches, kLitmusSeconds, TellRounds, NeedsPair};
}
constexpr Case<Args> MayBeSeen(const char* name, Kernel kernel) {
  return {name, kernel, 1, 1, 1, kRounds, kLaunches, 1, TellCounted, NeedsPair};
}
constexpr Case<Args> GinLitmus(const char* name, Kernel kernel, unsigned threads) {
  return {name,         kernel,         1,          threads, threads < 2 ? threads : 2, kGinRounds,
          kGinLaunches, kLitmusSeconds, TellRounds, NeedsGin};
}

constexpr Case<Args> kCases[] = {
    Slim("teams", Teams),
    Plain("group_places", GroupPlaces),
    Plain("groups_meet", GroupsMeet),
    Plain("groups_broadcast", GroupsBroadcast),
    Plain("groups_coalesced", GroupsCoalesced),
    Slim("pointers", Pointers),
    Slim("barrier_orders", BarrierOrders, kBlocks, 60, 5),
    Slim("barrier_epochs", BarrierEpochs, kBlocks, 4, kManyLaunches),
    Plain("barrier_groups", BarrierGroups, 1, 10, 3),
    Slim("barrier_time_out", BarrierTimeOut, 1, 0, 6),
    Slim("barrier_wrap", BarrierWrap, 1, 0, 4),
    Slim("exchange_1B", Exchange<int8_t>, kBlocks, 5, 20),
    Slim("exchange_4B", Exchange<float>, kBlocks, 5, 20),
    Slim("exchange_8B", Exchange<double>, kBlocks, 5, 20),
    Slim("exchange_12B", Exchange<Odd>, kBlocks, 5, 20),
    Slim("exchange_16B", Exchange<Wide>, kBlocks, 5, 20),
    Slim("exchange_reduce", ExchangeReduce, 2, 20, 5),
    Slim("exchange_wrap", ExchangeWrap, kBlocks, 0, 9),
    {"reduce_copy_forms", ReduceCopyForms<float>, 1, kThreads, 32,
     0},  // A warp is a group of this case.
    Slim("reduce_copy_i8", ReduceCopyType<int8_t>),
    Slim("reduce_copy_u8", ReduceCopyType<uint8_t>),
    Slim("reduce_copy_i16", ReduceCopyType<int16_t>),
    Slim("reduce_copy_i32", ReduceCopyType<int32_t>),
    Slim("reduce_copy_u32", ReduceCopyType<uint32_t>),
    Slim("reduce_copy_i64", ReduceCopyType<int64_t>),
    Slim("reduce_copy_u64", ReduceCopyType<uint64_t>),
    Slim("reduce_copy_f64", ReduceCopyType<double>),
#ifdef __CUDACC__
    Slim("reduce_copy_f16", ReduceCopyType<__half>),
    Slim("reduce_copy_bf16", ReduceCopyType<__nv_bfloat16>),
    Slim("reduce_copy_e4m3", ReduceCopyType<__nv_fp8_e4m3>),
    Slim("reduce_copy_e5m2", ReduceCopyType<__nv_fp8_e5m2>),
    Slim("reduce_copy_forms16", ReduceCopyForms<__half>),
#endif
    OverGin("hybrid_world", HybridWorld, kThreads, 4, 10, 5),
    OverGin("hybrid_lsa", HybridLsa, kThreads, 4, 20, 5),
    OverGin("hybrid_rail", HybridRail, kThreads, 4, 10, 5),
    OverGin("hybrid_own", HybridOwn, kThreads, 4, 10, 5),
    OverGin("hybrid_time_out", HybridTimeOut, 1, 1, 0, 6),
    OverGin("signal_barriers", SignalBarriers, kThreads, 4, 5, 5),
    OverGin("signal_barriers_all", SignalBarriersOfAll, kThreads, 4, 5, 5),
    OverGin("signal_contexts", SignalBarrierContexts, kThreads, 4, 20, 5),
    OverGin("signal_time_out", SignalBarrierTimeOut, 1, 1, 0, 6),
    Litmus("message_release", PassMessages<ByRelease, At::kReader, At::kReader>, 1),
    Litmus("message_fences", PassMessages<ByFences, At::kReader, At::kReader>, 1),
    Litmus("message_crossed", PassMessages<ByRelease, At::kReader, At::kWriter>, 1),
    Litmus("message_block", PassMessages<ByFences, At::kReader, At::kWriter>, kThreads),
    Litmus("message_threadfence", PassMessages<ByThreadFence, At::kReader, At::kReader>, kThreads),
    Litmus("message_pulled", PassMessages<ByRelease, At::kWriter, At::kReader>, kThreads),
    Litmus("message_barrier", PassByBarrier, kThreads),
    Litmus("message_lines", PassByLines, kThreads),
    Litmus("store_buffering", BufferStores<true, At::kWriter>, 1),
    Litmus("store_buffering_far", BufferStores<true, At::kReader>, 1),
    MayBeSeen("may_store_buffering", BufferStores<false, At::kReader>),
    MayBeSeen("may_message", PassWithoutOrder),
    GinLitmus("gin_strong_signal", LitmusSignalBehindPuts, 32),
    GinLitmus("gin_message", LitmusPassMessages, 1),
    GinLitmus("gin_signal_in_window", LitmusSignalInWindowBehindItsPut, 1),
    GinLitmus("gin_get", LitmusGetBehindSignal, 1),
    GinLitmus("gin_barrier", LitmusBarrierBehindPuts, 32),
    {"may_flush", FlushWithoutArrival, 1, kThreads, 2, 20, 20, 1, TellCounted, NeedsBoth},
};
constexpr int kCaseCount = static_cast<int>(sizeof(kCases) / sizeof(kCases[0]));

// Holds the requirements of a device communicator, and the elements of their list.
struct Asked {
  ncclDevCommRequirements_t all = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevResourceRequirements_t elements[7] = {};
};

void Ask(ncclComm_t comm, Args* args, bool gin, Asked* asked) {
  asked->all.lsaBarrierCount = asked->all.barrierCount = kBarriers;
  auto* const e = asked->elements;
  const ncclTeam lsa = ncclTeamLsa(comm);
  const int slots = ncclLLA2ACalcSlots(lsa.nRanks * kExchangeElements, 16);
  int count = 0;
  CHECK(ncclLsaBarrierCreateRequirement(lsa, kBarriers, &args->own_lsa, &e[count++]));
  CHECK(ncclLLA2ACreateRequirement(kBlocks, slots, &args->exchange, &e[count++]));
  CHECK(ncclLLA2ACreateRequirement(kBlocks, slots, &args->wrapping, &e[count++]));
  CHECK(ncclLLA2ACreateRequirement(
      1, ncclLLA2ACalcSlots(lsa.nRanks * static_cast<int>(kThreads), 8), &args->wide, &e[count++]));
  e[count].bufferSize = 4096;
  e[count].bufferAlign = 256;
  e[count++].outBufferHandle = &args->buffer;
  if (gin) {
    asked->all.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    asked->all.ginContextCount = kContexts;
    asked->all.ginSignalCount = kSignals;
    asked->all.worldGinBarrierCount = asked->all.railGinBarrierCount = kBarriers;
    CHECK(ncclGinBarrierCreateRequirement(comm, ncclTeamRail(comm), kBarriers, &args->own_rail,
                                          &e[count++]));
    CHECK(ncclGinBarrierCreateRequirement(comm, ncclTeamWorld(comm), kBarriers, &args->own_world,
                                          &e[count++]));
  }
  for (int i = 0; i + 1 < count; ++i) e[i].next = &e[i + 1];
  asked->all.resourceRequirementsList = e;
}

// A window and its memory.
struct Window {
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  explicit Window(ncclComm_t comm) {
    CHECK(ncclMemAlloc(&memory, kWindowBytes));
    CHECK(ncclCommWindowRegister(comm, memory, kWindowBytes, &window,
                                 NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING));
  }
  void End(ncclComm_t comm) {
    CHECK(ncclCommWindowDeregister(comm, window));
    CHECK(ncclMemFree(memory));
  }
};

ncclComm_t MakeComm(int rank, int ranks) {
  if (rank == 0) CHECK(ncclGetUniqueId(&shared->id));
  MeetOnHost();
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, shared->id, rank));
  return comm;
}

// Asks the host where the window's probe lies.
void AskHost(ncclComm_t comm, Args* args) {
  args->world = ncclTeamWorld(comm);
  args->lsa = ncclTeamLsa(comm);
  args->rail = ncclTeamRail(comm);
  for (int peer = 0; peer < args->lsa.nRanks; ++peer)
    CHECK(ncclGetLsaDevicePointer(args->window, kProbe, peer, &args->of_lsa_rank[peer]));
  for (int peer = 0; peer < args->world.nRanks; ++peer)
    CHECK(ncclGetPeerDevicePointer(args->window, kProbe, peer, &args->of_rank[peer]));
}

void RunAllCases(int rank, int ranks, Stream stream, Notes* notes) {
  ncclComm_t comm = MakeComm(rank, ranks);
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  CHECK(ncclCommQueryProperties(comm, &properties));
  if (rank == 0 && shared->first == 0) {
    std::printf("%d ranks in %d LSA teams, rank 0 on device %d, GIN of type %d\n", ranks,
                properties.nLsaTeams, properties.cudaDev, static_cast<int>(properties.ginType));
    std::fflush(stdout);
  }
  Window first(comm), second(comm);
  Args args = {};
  args.window = first.window;
  args.second = second.window;
  args.base = first.memory;
  args.notes = notes;
  args.litmus =
      static_cast<tutti::testing::LitmusNotes*>(MakeShared(sizeof(tutti::testing::LitmusNotes)));
  Asked asked;
  Ask(comm, &args, properties.ginType != NCCL_GIN_TYPE_NONE, &asked);
  CHECK(ncclDevCommCreate(comm, &asked.all, &args.comm));
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
  if (rank == 0 && shared->first == 0) emulated_card::TellQueues(args.comm);
#endif
  AskHost(comm, &args);
  RunCases(kCases, 0, rank, comm, args, stream, [&] {
    Clear(first.memory, kWindowBytes, stream);
    Clear(second.memory, kWindowBytes, stream);
    *args.litmus = {};
  });
  BeginStep(rank, "the end");
  MeetOnHost();
  CHECK(ncclDevCommDestroy(comm, &args.comm));
  MeetOnHost();
  second.End(comm);
  first.End(comm);
  MeetOnHost();
  CHECK(ncclCommDestroy(comm));
}

// Runs a mistake with a separate communicator, which the mistake stops. Returns the fault, or an
// empty string.
std::string RunMistake(int mistake, int rank, int ranks, Stream stream, Notes* notes) {
  ncclComm_t comm = MakeComm(rank, ranks);
  Window window(comm);
  Args args = {};
  args.window = window.window;
  args.notes = notes;
  args.number = static_cast<unsigned long long>(mistake);
  ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  asked.ginContextCount = asked.ginSignalCount = asked.ginCounterCount = 1;
  CHECK(ncclDevCommCreate(comm, &asked, &args.comm));
  Run(FillWindow, 1, kThreads, args, stream);
  MeetOnHost();
  Run(MakeMistake, 1, 32, args, stream);
  ncclResult_t state = ncclSuccess;
  CHECK(ncclCommGetAsyncError(comm, &state));
  const std::string sentence = ncclGetLastError(comm);
  Run(ExpectUntouched, 1, kThreads, args, stream);
  MeetOnHost();
  CHECK(ncclCommAbort(comm));
#ifdef __CUDACC__
  const char* const who = "a kernel's operation on the network: ";
#else
  const char* const who = "block 0, thread 0: ";
#endif
  if (state == ncclSuccess) return "the communicator has not stopped";
  if (rank == 0 && state != ncclInvalidArgument) return "another error: " + sentence;
  if (rank == 0 && sentence.find(who) == std::string::npos) return "it says: " + sentence;
  return "";
}

void RunMistakes(int rank, int ranks, Stream stream, Notes* notes) {
  for (int i = 0; i < kMistakeCount; ++i) {
    const int number = kCaseCount + i;
    if (number < shared->first || !Wanted(kMistakes[i])) continue;
    MeetOnHost();
    if (rank == 0) {
      shared->current = number;
      shared->in_case = true;
    }
    BeginStep(rank, kMistakes[i]);
    std::memset(notes, 0, sizeof(Notes));
    const std::string wrong = RunMistake(i, rank, ranks, stream, notes);
    shared->notes[rank] = *notes;
    if (!wrong.empty()) {
      std::printf("%-22s FAILED rank %d: %s\n", kMistakes[i], rank, wrong.c_str());
      std::fflush(stdout);
      shared->failed = 1;
    }
    MeetOnHost();
    if (rank == 0) {
      ReportLine(kMistakes[i], ranks, "");
      shared->in_case = false;
    }
  }
}

void RunRank(int rank, int ranks) {
  ChooseDevice(rank);
  Stream stream = MakeStream();
  auto* const notes = static_cast<Notes*>(MakeShared(sizeof(Notes)));
  if (shared->first < kCaseCount) RunAllCases(rank, ranks, stream, notes);
#ifndef KERNEL_CASES_OVER_EMULATED_CARD
  // An emulated card reports mistakes in its own way: tests/fakecard.
  RunMistakes(rank, ranks, stream, notes);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  return kernel_cases::Main(argc, argv, "lsa_test", "LSA_TEST", RunRank);
}
