// A checked build (nccl_device/impl/window_check.h) ends programs whose kernels access memory
// outside of a window. The final sentence names the calling line, block and thread, and the access.
// The same source serves kernels of hosts and of GPUs.
//
//   nvcc -std=c++17 -arch=native -I INCLUDE checked_test.cu -L LIBRARY -ltutti -o checked_test
//   LD_LIBRARY_PATH=LIBRARY ./checked_test [RANKS]
//
// Each case runs in a separate process, whose ranks are threads. On GPUs every rank needs a GPU.

#define TUTTI_CHECKED_KERNELS 1
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tutti/host_kernel.h"

namespace {

constexpr unsigned kBlocks = 2, kThreads = 4;
// Rank r has kBytes + r * kMore bytes.
constexpr size_t kBytes = 8192, kMore = 4096;

struct Args {
  ncclDevComm comm;
  ncclWindow_t window;
  int* sink;  // takes read values, to keep the compiler from removing reads
};

// Picks the thread of the grid that makes the mistake.
__device__ bool IsTheOne() { return blockIdx.x == 1 && threadIdx.x == 3; }
// Returns the length of the last rank's part.
__device__ size_t Length(const Args& args) {
  return kBytes + static_cast<size_t>(args.comm.lsaSize - 1) * kMore;
}

__global__ void RightKernel(Args args) {
  const int last = args.comm.lsaSize - 1;
  const ncclSymPtr<int> ints(args.window, 0);
  int sum = *static_cast<int*>(ncclGetLsaPointer(args.window, Length(args) - sizeof(int), last));
  sum += *static_cast<int*>(ncclGetLocalPointer(args.window, kBytes - sizeof(int)));
  sum += *static_cast<int*>(ncclGetPeerPointer(args.window, 0, args.comm.rank));
  sum += *ints.localPtr() + *ints.lsaPtr(last) + *ints.peerPtr(ncclTeamLsa(args.comm), last);
  sum += *static_cast<int*>(ncclGetResourceBufferLocalPointer(args.comm, 0));
  if (IsTheOne()) args.sink[kBytes / sizeof(int)] = sum;
  if (blockIdx.x == 0)
    ncclLsaReduceSum<int>(ncclCoopCta(), ints, args.sink, static_cast<int>(kBytes / sizeof(int)),
                          args.comm);
}
__global__ void BeyondTheEnd(Args args) {
  const size_t at = IsTheOne() ? Length(args) : 0;
  int* const there = static_cast<int*>(ncclGetLsaPointer(args.window, at, args.comm.lsaSize - 1));
  if (IsTheOne()) args.sink[0] = *there;
}
__global__ void BeyondTheOwnEnd(Args args) {
  if (!IsTheOne() || args.comm.rank != 0) return;
  args.sink[0] = *static_cast<int*>(ncclGetLocalPointer(args.window, kBytes + 4));
}
__global__ void NoSuchPeer(Args args) {
  if (!IsTheOne()) return;
  args.sink[0] = *static_cast<int*>(ncclGetPeerPointer(args.window, 0, args.comm.nRanks));
}
__global__ void NegativePeer(Args args) {
  if (IsTheOne()) args.sink[0] = *static_cast<int*>(ncclGetLsaPointer(args.window, 0, -1));
}
__global__ void PointerBeyond(Args args) {
  const ncclSymPtr<int> ints(args.window, 0);
  if (IsTheOne()) args.sink[0] = *(ints + Length(args) / sizeof(int)).lsaPtr(args.comm.lsaSize - 1);
}
__global__ void ResourceBeyond(Args args) {
  if (IsTheOne())
    args.sink[0] = *static_cast<int*>(ncclGetResourceBufferLocalPointer(args.comm, 1u << 24));
}
__global__ void SumTooLong(Args args) {
  if (IsTheOne())
    ncclLsaReduceSum<int>(ncclCoopThread(), ncclSymPtr<int>(args.window, 4), args.sink,
                          static_cast<int>(kBytes / sizeof(int)), args.comm);
}

struct Case {
  void (*kernel)(Args);
  std::vector<std::string> said;  // Parts of the sentence; none: the kernel ends well.
};

[[noreturn]] void Fail(const char* what) {
  std::printf("%s: %s\n", what, ncclGetLastError(nullptr));
  std::fflush(stdout);
  std::_Exit(3);
}
void Check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) Fail(what);
}

// Ends with 1 where the kernel did.
void RunRank(int rank, int ranks, const ncclUniqueId& id, void (*kernel)(Args)) {
#ifdef __CUDACC__
  if (cudaSetDevice(rank) != cudaSuccess) Fail("there is no GPU for each rank");
#endif
  ncclComm_t comm = nullptr;
  Check(ncclCommInitRank(&comm, ranks, id, rank), "ncclCommInitRank");
  const size_t bytes = kBytes + static_cast<size_t>(rank) * kMore;
  Args args = {};
  void *memory = nullptr, *sink = nullptr;
  Check(ncclMemAlloc(&memory, bytes), "ncclMemAlloc");
  Check(ncclMemAlloc(&sink, 2 * kBytes), "ncclMemAlloc");
  args.sink = static_cast<int*>(sink);
  Check(ncclCommWindowRegister(comm, memory, bytes, &args.window, NCCL_WIN_COLL_SYMMETRIC),
        "ncclCommWindowRegister");
  ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.lsaBarrierCount = 1;
  Check(ncclDevCommCreate(comm, &asked, &args.comm), "ncclDevCommCreate");
  Check(tutti::Launch(kernel, {kBlocks, kThreads}, args), "Launch");
#ifdef __CUDACC__
  const bool ended = cudaDeviceSynchronize() != cudaSuccess;
  std::fflush(stdout);
  if (ended) std::_Exit(1);
#endif
}

void RunRanks(int ranks, void (*kernel)(Args)) {
  ncclUniqueId id;
  Check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([=, &id] { RunRank(rank, ranks, id, kernel); });
  for (std::thread& thread : threads) thread.join();
  std::fflush(stdout);
  std::_Exit(0);
}

// Runs a case in a child. Returns the child's output, and its end as waitpid tells it.
std::string Run(int ranks, void (*kernel)(Args), int* status) {
  int ends[2];
  if (pipe(ends) != 0) Fail("pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    close(ends[0]);
    alarm(60);
    RunRanks(ranks, kernel);
  }
  close(ends[1]);
  std::string said;
  char part[4096];
  for (ssize_t got; (got = read(ends[0], part, sizeof(part))) > 0;)
    said.append(part, static_cast<size_t>(got));
  close(ends[0]);
  waitpid(child, status, 0);
  return said;
}

bool IsRight(int ranks, const char* name, const Case& tried) {
  int status = 0;
  const std::string said = Run(ranks, tried.kernel, &status);
  bool right = true;
  if (tried.said.empty()) {
    right = status == 0;
  } else {
#ifdef __CUDACC__
    right = WIFEXITED(status) && WEXITSTATUS(status) == 1;
#else
    right = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
#endif
    right = right && said.find("block 1, thread 3") != std::string::npos;
    for (const std::string& part : tried.said) right = right && said.find(part) != said.npos;
  }
  std::printf("%-16s %s\n", name, right ? "right" : "WRONG");
  if (!right) std::printf("  status %#x, and it said:\n%s\n", status, said.c_str());
  std::fflush(stdout);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 1;
  const int last = ranks - 1;
  const std::string length = std::to_string(kBytes + static_cast<size_t>(last) * kMore);
  const auto at = [](size_t offset, int rank) {
    return "at " + std::to_string(offset) + " of LSA rank " + std::to_string(rank);
  };
  const std::string has = "there it has ", none = "the LSA team has no such rank";
  bool right = IsRight(ranks, "right", {RightKernel, {}});
  right &=
      IsRight(ranks, "beyond the end",
              {BeyondTheEnd, {"BeyondTheEnd, line ", at(std::stoul(length), last), has + length}});
  right &= IsRight(
      ranks, "own end",
      {BeyondTheOwnEnd, {"BeyondTheOwnEnd", at(kBytes + 4, 0), has + std::to_string(kBytes)}});
  right &= IsRight(ranks, "no such peer", {NoSuchPeer, {"NoSuchPeer", at(0, ranks), none}});
  right &= IsRight(ranks, "negative peer", {NegativePeer, {"NegativePeer", at(0, -1), none}});
  right &= IsRight(ranks, "symmetric pointer",
                   {PointerBeyond, {"PointerBeyond", at(std::stoul(length), last), has + length}});
  right &= IsRight(ranks, "resource buffer", {ResourceBeyond, {"ResourceBeyond", has}});
  right &= IsRight(
      ranks, "sum",
      {SumTooLong,
       {"a sum or a copy", std::to_string(kBytes) + " bytes at 4", has + std::to_string(kBytes)}});
  std::puts(right ? "all right" : "something is WRONG");
  return right ? 0 : 1;
}
