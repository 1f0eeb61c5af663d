#pragma once

// Runs kernels of the device API case by case on real GPUs, for the programs of this folder. Has
// ranks as threads, as processes, or as processes of several hosts; the memory in which kernels
// note faults; and a program around all cases that goes on with the next case after a hang.
//
//   PROGRAM RANKS [processes | hosts [HOSTS]]
//
// With `hosts` the processes act as if they were on HOSTS hosts (default: a host for each rank) and
// reach ranks of other hosts only by the network. Rank r has GPU r modulo the number of GPUs. Where
// ranks outnumber GPUs, ranks share GPUs (NCCL_MULTI_RANK_GPU_ENABLE). All kernels of a case run at
// once, and therefore grids are small.
//
// A program prints a line for each case: its name, "ok" or "FAILED" with the fault, and figures.
// The program ends with 1 if a case failed. PREFIX_SECONDS sets the seconds after which a case
// counts as hung, and PREFIX_CASES names the cases to run, with commas (PREFIX is the program's).
//
// Compiled with KERNEL_CASES_OVER_EMULATED_CARD, a program has threads as ranks, and kernels put by
// driving an emulated mlx5 card (emulated_card.h).
//
// A plain C++17 compiler takes the programs as well (-x c++). Kernels then run on the host. The
// ranks are host ranks too, unless the stand-in for GPUs is present.

#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#include <nccl_device.h>
#else
#include <dlfcn.h>
#include <tutti/host_kernel.h>
#endif

#include "check.h"

namespace kernel_cases {

constexpr int kMostRanks = 16;

// -------------------------------------------------------------------------------------------------
// What kernels say
// -------------------------------------------------------------------------------------------------

// Holds the notes of one rank's kernels about a case.
struct Notes {
  unsigned long long wrong;      // how often something was not as it should be
  unsigned long long line;       // of the check that failed first
  unsigned long long got, want;  // the compared values
  unsigned long long nanoseconds;
  unsigned long long counted;  // a number that the case counts, if any
};

#ifdef __CUDACC__
__device__ inline unsigned long long Nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ inline unsigned long long Count(unsigned long long* word, unsigned long long n) {
  return atomicAdd(word, n);
}
#else
inline unsigned long long Nanoseconds() {
  return static_cast<unsigned long long>(
      std::chrono::steady_clock::now().time_since_epoch().count());
}
inline unsigned long long Count(unsigned long long* word, unsigned long long n) {
  return __atomic_fetch_add(word, n, __ATOMIC_RELAXED);
}
#endif

// Counts a failed check. The first failed check of a rank notes its line and the compared values.
NCCL_DEVICE_INLINE void NoteWrong(Notes* notes, unsigned long long line, unsigned long long got,
                                  unsigned long long want) {
  if (Count(&notes->wrong, 1) != 0) return;
  notes->line = line;
  notes->got = got;
  notes->want = want;
}

// Checks values in kernels. Every thread checks for itself.
#define EXPECT_EQUAL(notes, got, want)                                                  \
  do {                                                                                  \
    const auto got_ = (got);                                                            \
    const decltype(got_) want_ = (want);                                                \
    if (!(got_ == want_))                                                               \
      ::kernel_cases::NoteWrong(notes, __LINE__, static_cast<unsigned long long>(got_), \
                                static_cast<unsigned long long>(want_));                \
  } while (0)
#define EXPECT(notes, condition)                                        \
  do {                                                                  \
    if (!(condition)) ::kernel_cases::NoteWrong(notes, __LINE__, 0, 1); \
  } while (0)

// -------------------------------------------------------------------------------------------------
// Memory and streams of the rank's device
// -------------------------------------------------------------------------------------------------

#ifdef __CUDACC__
using Stream = cudaStream_t;
inline int ChooseDevice(int rank) {
  int devices = 0;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  CHECK_CUDA(cudaSetDevice(rank % devices));
  return rank % devices;
}
inline Stream MakeStream() {
  Stream stream;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}
// Memory that the host and kernels read and write.
inline void* MakeShared(size_t bytes) {
  void* memory = nullptr;
  CHECK_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  std::memset(memory, 0, bytes);
  return memory;
}
template <typename Args>
unsigned BlocksThatFill(void (*kernel)(Args), unsigned threads, int ranks) {
  int devices = 0, device = 0, processors = 0, blocks = 0;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  CHECK_CUDA(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(threads), 0));
  // The kernels of ranks on the same GPU run at the same time.
  return ranks > devices ? 1 : static_cast<unsigned>(processors * blocks);
}
template <typename Args>
void Run(void (*kernel)(Args), unsigned blocks, unsigned threads, const Args& args, Stream stream) {
  kernel<<<blocks, threads, 0, stream>>>(args);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaStreamSynchronize(stream));
}
inline void Clear(void* memory, size_t bytes, Stream stream) {
  CHECK_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
}
#else
using Stream = int;
// Where the stand-in for GPUs (tests/fakegpu) is, ranks are its GPUs, whose memory the host's
// kernels reach.
inline int ChooseDevice(int rank) {
  if (std::getenv("TUTTI_FAKE_GPUS") == nullptr) return -1;
  const int device = rank % std::atoi(std::getenv("TUTTI_FAKE_GPUS"));
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto retain =
      reinterpret_cast<int (*)(void**, int)>(dlsym(driver, "cuDevicePrimaryCtxRetain"));
  const auto choose = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxSetCurrent"));
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  void* context = nullptr;
  if (init(0) != 0 || retain(&context, device) != 0 || choose(context) != 0) std::_Exit(1);
  return device;
}
inline Stream MakeStream() { return 0; }
inline void* MakeShared(size_t bytes) { return std::calloc(1, bytes); }
template <typename Args>
unsigned BlocksThatFill(void (*)(Args), unsigned, int) {
  return 2;
}
template <typename Args>
void Run(void (*kernel)(Args), unsigned blocks, unsigned threads, const Args& args, Stream) {
  CHECK(tutti::Launch(kernel, {blocks, threads}, args));
}
inline void Clear(void* memory, size_t bytes, Stream) { std::memset(memory, 0, bytes); }
#endif

// -------------------------------------------------------------------------------------------------
// Cases
// -------------------------------------------------------------------------------------------------

constexpr unsigned kFull = 0;  // as many blocks as the GPU holds at a time

// Describes a case: a kernel that all ranks run, once or over and over. Args has the members
// `comm`, `notes`, `number` and `launch`.
template <typename Args>
struct Case {
  const char* name;
  void (*kernel)(Args);
  unsigned blocks;
  unsigned threads;           // of each block, on GPUs
  unsigned host_threads;      // and on hosts, where each is a thread of the system
  unsigned long long number;  // a parameter of the kernel
  int launches = 1;           // at most; the ranks meet before each
  double seconds = 1e9;       // after which no further launch begins
  // Writes figures behind "ok". Null without figures.
  void (*tell)(char* text, size_t size, const Case& one, const Notes* ranks, int count) = nullptr;
  // Returns the reason why the ranks cannot run the case, or null. Without a function they can.
  const char* (*misses)(const Args&) = nullptr;
};

// Holds the memory that ranks share, as threads and as processes.
struct Shared {
  pthread_barrier_t barrier;
  ncclUniqueId id;
  Notes notes[kMostRanks];
  std::atomic<int> failed;
  std::atomic<int> told;     // that the case hangs
  std::atomic<int> another;  // whether a further launch follows
  int first;                 // number of the case to begin with
  int current;               // the case that runs
  bool in_case;
  char now[64];  // its name
};
inline Shared* shared = nullptr;

inline void MeetOnHost() { pthread_barrier_wait(&shared->barrier); }

// Returns the environment's value of PREFIX_NAME.
inline const char* prefix = "";
inline const char* Setting(const char* name) {
  return std::getenv((std::string(prefix) + "_" + name).c_str());
}
inline unsigned CaseSeconds() {
  const char* const given = Setting("SECONDS");
  return given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 60;
}
inline bool Wanted(const char* name) {
  const char* const names = Setting("CASES");
  if (names == nullptr) return true;
  return ("," + std::string(names) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

// The beginning of the current step, for a thread that watches.
inline std::atomic<long> step_begun{0};
inline long SecondsNow() {
  return static_cast<long>(std::chrono::duration_cast<std::chrono::seconds>(
                               std::chrono::steady_clock::now().time_since_epoch())
                               .count());
}

inline void OnAlarm(int) {
  const char end[] = " FAILED it hangs\n";
  if (shared->told.exchange(1) == 0 &&
      (write(1, shared->now, strnlen(shared->now, sizeof(shared->now))) < 0 ||
       write(1, end, sizeof(end) - 1) < 0))
    _exit(2);
  _exit(1);
}

// Sets the name of the current step, and its time limit.
inline void BeginStep(int rank, const char* name) {
  if (rank == 0) std::snprintf(shared->now, sizeof(shared->now), "%-22s", name);
  if (rank == 0) step_begun = SecondsNow();
  alarm(CaseSeconds());
}

inline void ReportLine(const char* name, int ranks, const std::string& figures) {
  unsigned long long wrong = 0;
  int first = -1;
  for (int r = 0; r < ranks; ++r) {
    wrong += shared->notes[r].wrong;
    if (first < 0 && shared->notes[r].wrong != 0) first = r;
  }
  if (wrong == 0) {
    std::printf("%-22s ok%s\n", name, figures.c_str());
  } else {
    const Notes& notes = shared->notes[first];
    std::printf(
        "%-22s FAILED %llu wrong, the first of rank %d at line %llu: got %llu, want %llu%s\n", name,
        wrong, first, notes.line, notes.got, notes.want, figures.c_str());
    shared->failed = 1;
  }
  std::fflush(stdout);
}

template <typename Args>
void Report(const Case<Args>& one, int ranks, double seconds) {
  char text[160] = "";
  if (one.tell != nullptr) one.tell(text, sizeof(text), one, shared->notes, ranks);
  std::string figures = text;
  if (seconds >= 1) {
    std::snprintf(text, sizeof(text), "  (%.0f s)", seconds);
    figures += text;
  }
  ReportLine(one.name, ranks, figures);
}

}  // namespace kernel_cases

#ifdef KERNEL_CASES_OVER_EMULATED_CARD
#include "emulated_card.h"
#endif

namespace kernel_cases {

// Ends the process with the reason if the communicator has stopped.
inline void CheckCommunicator(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  CHECK(ncclCommGetAsyncError(comm, &state));
  if (state == ncclSuccess) return;
  if (shared->told.exchange(1) == 0)
    std::printf("%s FAILED %s\n", shared->now, ncclGetLastError(comm));
  std::fflush(stdout);
  std::_Exit(1);
}

// Runs the cases of a table from shared->first on. Cases are numbered from `base`. `prepare` fills
// the windows as a case expects. A rank's notes are in memory that its kernels write.
template <typename Args, size_t kCount, typename Prepare>
void RunCases(const Case<Args> (&cases)[kCount], int base, int rank, ncclComm_t comm, Args args,
              Stream stream, Prepare prepare) {
  const int ranks = args.comm.nRanks;
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
  emulated_card::WatchRank(rank, &args.comm);
#endif
  for (int i = 0; i < static_cast<int>(kCount); ++i) {
    const Case<Args>& one = cases[i];
    if (base + i < shared->first || !Wanted(one.name)) continue;
    const char* const missing = one.misses != nullptr ? one.misses(args) : nullptr;
    MeetOnHost();
    if (missing != nullptr) {
      if (rank == 0) std::printf("%-22s not here: %s\n", one.name, missing);
      std::fflush(stdout);
      continue;
    }
    if (rank == 0) {
      shared->current = base + i;
      shared->in_case = true;
    }
    BeginStep(rank, one.name);
    std::memset(args.notes, 0, sizeof(Notes));
    args.number = one.number;
    prepare();
    const auto begin = std::chrono::steady_clock::now();
    double seconds = 0;
    for (int launch = 0;; ++launch) {
      if (rank == 0) shared->another = launch < one.launches && seconds < one.seconds;
      MeetOnHost();
      const bool another = shared->another != 0;
      MeetOnHost();
      if (!another) break;
      args.launch = launch;
#ifdef __CUDACC__
      const unsigned threads = one.threads;
#else
      const unsigned threads = one.host_threads;
#endif
      Run(one.kernel, one.blocks == kFull ? BlocksThatFill(one.kernel, threads, ranks) : one.blocks,
          threads, args, stream);
      CheckCommunicator(comm);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    shared->notes[rank] = *args.notes;
    MeetOnHost();
    if (rank == 0) {
      Report(one, ranks, seconds);
      shared->in_case = false;
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
      if (const std::string wrong = emulated_card::WhatWasWrong(); !wrong.empty()) {
        std::printf("%-22s FAILED the card says: %s\n", one.name, wrong.c_str());
        shared->failed = 1;
      }
#endif
    }
  }
  MeetOnHost();
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
  emulated_card::WatchRank(rank, nullptr);
#endif
}

// -------------------------------------------------------------------------------------------------
// The program
// -------------------------------------------------------------------------------------------------

using RankFunction = void (*)(int rank, int ranks);

inline void RunThreads(int ranks, RankFunction run) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank, ranks);
  for (std::thread& thread : threads) thread.join();
}

// Runs ranks as processes. `hosts` is 0 where all processes are on this host. Returns whether all
// processes ended well.
inline bool RunProcesses(int ranks, int hosts, RankFunction run) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      // A rank does not outlive the program.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(2 * CaseSeconds());
      if (hosts > 0)
        setenv("NCCL_HOSTID", ("kernel-cases-" + std::to_string(rank * hosts / ranks)).c_str(), 1);
      run(rank, ranks);
      std::exit(0);
    }
    processes.push_back(process);
  }
  bool well = true;
  for (int status = 0; wait(&status) > 0;) {
    if (status == 0) continue;
    well = false;
    for (const pid_t process : processes) kill(process, SIGKILL);
  }
  return well;
}

// Runs all ranks in a process of their own. Returns its status.
inline int RunOnce(int ranks, const std::string& how, int hosts, RankFunction run) {
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, static_cast<unsigned>(ranks));
  shared->in_case = false;
  shared->told = 0;
  std::snprintf(shared->now, sizeof(shared->now), "%-22s", "the start");
  const pid_t process = fork();
  if (process == 0) {
    if (how == "threads") {
      alarm(2 * CaseSeconds());
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
      emulated_card::Begin();
#endif
      RunThreads(ranks, run);
      std::exit(0);
    }
    std::_Exit(RunProcesses(ranks, hosts, run) ? 0 : 1);
  }
  int status = 1;
  waitpid(process, &status, 0);
  return status;
}

inline int Main(int argc, char** argv, const char* name, const char* setting_prefix,
                RankFunction run) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string how = argc > 2 ? argv[2] : "threads";
  const int hosts = how == "hosts" ? (argc > 3 ? std::atoi(argv[3]) : ranks) : 0;
  if (ranks < 2 || ranks > kMostRanks || hosts > ranks ||
      (how != "threads" && how != "processes" && how != "hosts")) {
    std::fprintf(stderr, "usage: %s RANKS [processes | hosts [HOSTS]], with 2 to %d ranks\n", name,
                 kMostRanks);
    return 2;
  }
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
  if (how != "threads") {
    std::fprintf(stderr, "%s: over the emulated card all ranks are threads\n", name);
    return 2;
  }
  emulated_card::ChooseByEnvironment();
#endif
  prefix = setting_prefix;
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  // A kernel that is loaded while another kernel runs may wait for the running kernel.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  signal(SIGALRM, OnAlarm);
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  shared = static_cast<Shared*>(memory);
  // A case that ends the process is skipped by the next process.
  while (true) {
    const int status = RunOnce(ranks, how, hosts, run);
    if (status == 0) break;
    shared->failed = 1;
    if (shared->told == 0)
      std::printf("%s FAILED the program ended with status 0x%x\n", shared->now,
                  static_cast<unsigned>(status));
    std::fflush(stdout);
    if (!shared->in_case) break;
    shared->first = shared->current + 1;
  }
  std::printf("%s\n", shared->failed ? "some failed" : "all passed");
  return shared->failed;
}

}  // namespace kernel_cases
