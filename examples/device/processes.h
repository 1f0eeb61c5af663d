// Ranks that are processes of this program, for the examples that also run on several hosts.

#ifndef TUTTI_EXAMPLES_DEVICE_PROCESSES_H_
#define TUTTI_EXAMPLES_DEVICE_PROCESSES_H_

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "ranks.h"
#include "tutti/launch.h"

// Runs body(rank, communicator) in a process for each rank. The processes act as if they were on
// `hosts` hosts. Returns the value for main to return. The caller must not have used the library
// before.
template <typename Body>
int RunRankProcesses(int num_ranks, int hosts, const Body& body) {
  struct Shared {
    std::atomic<bool> ready;
    ncclUniqueId id;
  };
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  auto* const shared = static_cast<Shared*>(memory);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t process = fork();
    if (process < 0) {
      std::perror("fork");
      return 1;
    }
    if (process > 0) {
      processes.push_back(process);
      continue;
    }
    ChooseDevice(rank);
    if (hosts > 1) setenv("NCCL_HOSTID", rank * hosts / num_ranks == 0 ? "a" : "b", 1);
    if (rank == 0) {
      CHECK(ncclGetUniqueId(&shared->id));
      shared->ready = true;
    }
    while (!shared->ready) usleep(1000);
    ncclComm_t comm;
    CHECK(ncclCommInitRank(&comm, num_ranks, shared->id, rank));
    body(rank, comm);
    CHECK(ncclCommDestroy(comm));
    std::exit(0);
  }
  bool failed = false;
  for (int status = 0; wait(&status) > 0;) {
    if (status == 0 || failed) continue;
    failed = true;
    // The remaining ranks may wait for the dead rank.
    for (const pid_t process : processes) kill(process, SIGKILL);
  }
  return failed ? 1 : 0;
}

// Ends the program if a call of tutti/launch.h has failed.
inline void CheckLaunch(ncclResult_t result) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "%s\n", tuttiLaunchLastError());
  std::exit(1);
}

// Runs body(rank, communicator, number of ranks) as the rank that a launcher assigned to this
// process.
template <typename Body>
void RunLaunchedRank(tuttiLaunch_t launch, const tuttiLaunchInfo_t& info, const Body& body) {
  ncclUniqueId id;
  size_t size = 0;
  if (info.rank == 0) CHECK(ncclGetUniqueId(&id));
  CheckLaunch(tuttiLaunchMeet(launch, &id, sizeof(id), &id, sizeof(id), &size, 0));
  std::vector<tuttiLaunchPlace_t> places(static_cast<size_t>(info.nranks));
  CheckLaunch(tuttiLaunchPlaces(launch, places.data(), info.nranks));
  ChooseDevice(places[static_cast<size_t>(info.rank)].local_rank);
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, info.nranks, id, info.rank));
  body(info.rank, comm, info.nranks);
  CHECK(ncclCommDestroy(comm));
}

// Runs body(rank, communicator, number of ranks) for the number of ranks in the program's first
// argument, or for `usual_ranks`. The ranks are threads by default. They are processes of this
// machine if the second argument is "processes". If it is "hosts", they are processes of two
// machines, as far as the library can tell: the first half of the ranks reaches the second half
// over TCP only. Without any argument under a launcher (`tutti run`, torchrun, mpirun, srun;
// tutti/launch.h) this process is one of the launcher's ranks. Returns the value for main to
// return.
template <typename Body>
int RunRanksAsAsked(int argc, char** argv, int usual_ranks, const Body& body) {
  if (argc == 1) {
    tuttiLaunch_t launch;
    tuttiLaunchInfo_t info = {};
    info.size = sizeof(info);
    CheckLaunch(tuttiLaunchRead(&launch, TUTTI_LAUNCH_MAY_JOIN_PMI));
    CheckLaunch(tuttiLaunchDescribe(launch, &info));
    if (info.nranks > 1) RunLaunchedRank(launch, info, body);
    CheckLaunch(tuttiLaunchClose(launch));
    if (info.nranks > 1) return 0;
  }
  const int num_ranks = argc > 1 ? std::atoi(argv[1]) : usual_ranks;
  const char* const how = argc > 2 ? argv[2] : "threads";
  const auto run = [&](int rank, ncclComm_t comm) { body(rank, comm, num_ranks); };
  if (std::strcmp(how, "threads") != 0)
    return RunRankProcesses(num_ranks, std::strcmp(how, "hosts") == 0 ? 2 : 1, run);
  RunRanks(num_ranks, run);
  return 0;
}

#endif  // TUTTI_EXAMPLES_DEVICE_PROCESSES_H_
