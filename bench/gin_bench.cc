// Measures device-initiated networking of kernels on hosts, beside the mechanisms underneath, in
// one run: two processes, each pinned to a processor of its own, take turns in
//
//   core    a word that each process writes for its peer in shared memory
//   memory  a put with a signal between kernels whose windows are mapped
//   tcp     a message between two bare TCP sockets over loopback, with both processes spinning
//   socket  a put with a signal between kernels that only the network joins
//   copy    copies of one process between two buffers of its own
//
// Prints the time of a round trip, the median of the rounds, and the ratios. The methods take turns
// within each round. `idle` is the processor time that both processes use in a second with a device
// communicator and without a running kernel.
//
//   gin_bench [rounds] [memory | socket]

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/copy.h"
#include "base/wait.h"
#include "sys/tcp.h"
#include "tutti/host_kernel.h"

namespace tutti {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;

// Holds the memory that the processes of a measurement share.
struct Shared {
  alignas(64) std::atomic<uint64_t> words[2];
  alignas(64) std::atomic<int> arrived[4];  // How many processes have come to each meeting.
  ncclUniqueId id;
  SocketAddress address;
  double seconds = 0;
  double used_seconds[2] = {};
};

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "gin_bench: %s\n", why.c_str());
  std::exit(1);
}
void Check(ncclResult_t result) {
  if (result != ncclSuccess) Die(ncclGetLastError(nullptr));
}

// Runs side(0) and side(1) in two processes, each on a separate processor. Returns when both have
// ended; the results are in *shared.
void RunPair(Shared* shared, const std::function<void(int)>& side) {
  new (shared) Shared();
  pid_t children[2];
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    if (children[rank] < 0) Die("cannot fork");
    if (children[rank] > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    side(rank);
    std::exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) Die("a process failed");
  }
}

// Called after the library has started its threads, to leave these threads unpinned.
void Pin(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(rank, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) Die("cannot pin a thread to a processor");
}

// Waits for the peer process. Each number serves one meeting.
enum Meeting { kReady, kConnected, kStart };
void Meet(Shared* shared, Meeting number) {
  std::atomic<int>& arrived = shared->arrived[number];
  arrived.fetch_add(1);
  while (arrived.load() < 2) sched_yield();
}

// Times `count` rounds on both sides, and notes the time of a single round.
template <typename Rounds>
void Time(Shared* shared, int rank, int count, const Rounds& rounds) {
  Meet(shared, kStart);
  const int64_t begin_ns = NowNs();
  rounds(count);
  if (rank == 0) shared->seconds = static_cast<double>(NowNs() - begin_ns) * 1e-9 / count;
}

void Core(Shared* shared, int rank, int count) {
  Pin(rank);
  Time(shared, rank, count, [&](int rounds) {
    for (uint64_t i = 1; i <= static_cast<uint64_t>(rounds); ++i) {
      if (rank == 0) shared->words[1].store(i, std::memory_order_release);
      while (shared->words[rank].load(std::memory_order_acquire) < i) CpuPause();
      if (rank == 1) shared->words[0].store(i, std::memory_order_release);
    }
  });
}

void SpinSend(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) Die("cannot send");
    if (sent > 0) data += sent, bytes -= static_cast<size_t>(sent);
  }
}
void SpinReceive(int fd, char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, data, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) Die("cannot receive");
    if (got > 0) data += got, bytes -= static_cast<size_t>(got);
  }
}

void Tcp(Shared* shared, int rank, size_t bytes, int count) {
  UniqueFd fd;
  if (rank == 0) {
    SocketAddress address = ParseSocketAddress("127.0.0.1:0").value();
    const UniqueFd listening = Listen(address).value();
    shared->address = address;
    Meet(shared, kReady);
    while (!fd.valid()) fd = Accept(listening.get(), nullptr).value();
    Meet(shared, kConnected);
  } else {
    Meet(shared, kReady);
    fd = Connect(shared->address, {Deadline::AfterSeconds(10), nullptr}).value();
    Meet(shared, kConnected);
  }
  Pin(rank);
  std::vector<char> data(bytes);
  Time(shared, rank, count, [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      if (rank == 0) SpinSend(fd.get(), data.data(), bytes);
      SpinReceive(fd.get(), data.data(), bytes);
      if (rank == 1) SpinSend(fd.get(), data.data(), bytes);
    }
  });
}

void PingPong(ncclDevComm comm, ncclWindow_t window, size_t bytes, uint64_t first, int rounds) {
  const ncclCoopThread self;
  const ncclGin gin(comm, 0, NCCL_GIN_RESOURCE_SHARING_THREAD);
  const ncclTeam world = ncclTeamWorld(comm);
  const int other = 1 - comm.rank;
  for (uint64_t i = first; i < first + static_cast<uint64_t>(rounds); ++i) {
    if (comm.rank == 1) gin.waitSignal(self, 0, i);
    gin.put(world, other, window, kMostBytes, window, 0, bytes, ncclGin_StrongSignalInc{0});
    if (comm.rank == 0) gin.waitSignal(self, 0, i);
  }
  gin.flush(self);
}

double UsedSeconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// Holds the objects that a rank needs for kernels with puts.
struct Rank {
  ncclComm_t comm = nullptr;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  ncclDevComm devcomm = {};

  Rank(Shared* shared, int rank, bool by_memory) {
    setenv("NCCL_SHM_DISABLE", by_memory ? "0" : "1", /*overwrite=*/1);
    setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/1);
    if (rank == 0) Check(ncclGetUniqueId(&shared->id));
    Meet(shared, kReady);
    Check(ncclCommInitRank(&comm, 2, shared->id, rank));
    Check(ncclMemAlloc(&memory, 2 * kMostBytes));
    std::memset(memory, rank, 2 * kMostBytes);
    Check(ncclCommWindowRegister(comm, memory, 2 * kMostBytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    asked.ginSignalCount = 1;
    Check(ncclDevCommCreate(comm, &asked, &devcomm));
  }
  ~Rank() {
    Check(ncclDevCommDestroy(comm, &devcomm));
    Check(ncclCommWindowDeregister(comm, window));
    Check(ncclMemFree(memory));
    Check(ncclCommDestroy(comm));
  }
};

void Gin(Shared* shared, int rank, bool by_memory, size_t bytes, int count) {
  const Rank self(shared, rank, by_memory);
  Pin(rank);
  Check(Launch(PingPong, {}, self.devcomm, self.window, bytes, uint64_t{1}, 10));
  Time(shared, rank, count, [&](int rounds) {
    Check(Launch(PingPong, {}, self.devcomm, self.window, bytes, uint64_t{11}, rounds));
  });
}

void Idle(Shared* shared, int rank, bool by_memory) {
  const Rank self(shared, rank, by_memory);
  Check(Launch(PingPong, {}, self.devcomm, self.window, size_t{8}, uint64_t{1}, 10));
  sleep(1);  // work that a kernel leaves to the progress thread
  const double before = UsedSeconds();
  sleep(1);
  shared->used_seconds[rank] = UsedSeconds() - before;
}

void Copy(Shared* shared, int rank, size_t bytes, int count) {
  Pin(rank);
  std::vector<std::byte> from(bytes), to(bytes);
  Time(shared, rank, count, [&](int rounds) {
    if (rank == 1) return;
    for (int i = 0; i < rounds; ++i) {
      CopyBytes(to.data(), from.data(), bytes);
      CopyBytes(from.data(), to.data(), bytes);
    }
  });
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Method {
  const char* name;
  std::function<void(int)> side;
  std::vector<double> times = {};
};

// Measures one size by two methods, and prints the ratio of the second to the first.
void Compare(Shared* shared, size_t bytes, int rounds, Method bare, Method own) {
  for (int round = 0; round < rounds; ++round) {
    for (Method* const method : {&bare, &own}) {
      RunPair(shared, method->side);
      method->times.push_back(shared->seconds * 1e6);
    }
  }
  const double before = Median(bare.times), after = Median(own.times);
  std::printf("%8zu  %-7s %10.2f us  %-7s %10.2f us  ratio %.2f\n", bytes, bare.name, before,
              own.name, after, after / before);
  std::fflush(stdout);
}

constexpr int kMemoryRounds = 200'000, kNetworkRounds = 10'000;

void CompareByMemory(Shared* shared, int rounds) {
  Compare(shared, 8, rounds, {"core", [&](int rank) { Core(shared, rank, kMemoryRounds); }},
          {"memory", [&](int rank) { Gin(shared, rank, true, 8, kMemoryRounds); }});
  for (const size_t bytes : {size_t{1024}, size_t{65'536}, kMostBytes}) {
    const int count = bytes < kMostBytes ? kMemoryRounds / 10 : 500;
    Compare(shared, bytes, rounds, {"copy", [&](int rank) { Copy(shared, rank, bytes, count); }},
            {"memory", [&](int rank) { Gin(shared, rank, true, bytes, count); }});
  }
}

void CompareByNetwork(Shared* shared, int rounds) {
  for (const size_t bytes : {size_t{8}, size_t{1024}, size_t{65'536}, kMostBytes}) {
    const int count = bytes < kMostBytes ? kNetworkRounds : 300;
    Compare(shared, bytes, rounds, {"tcp", [&](int rank) { Tcp(shared, rank, bytes, count); }},
            {"socket", [&](int rank) { Gin(shared, rank, false, bytes, count); }});
  }
}

int Main(int rounds, const std::string& only) {
  auto* const shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) Die("no memory");
  if (only != "socket") CompareByMemory(shared, rounds);
  if (only != "memory") CompareByNetwork(shared, rounds);
  for (const bool by_memory : {true, false}) {
    RunPair(shared, [&](int rank) { Idle(shared, rank, by_memory); });
    std::printf("idle, by %-7s %.3f and %.3f ms of processor time in a second\n",
                by_memory ? "memory" : "socket", shared->used_seconds[0] * 1e3,
                shared->used_seconds[1] * 1e3);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  return tutti::Main(argc > 1 ? std::atoi(argv[1]) : 5, argc > 2 ? argv[2] : "");
}
