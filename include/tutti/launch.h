// SPDX-License-Identifier: Apache-2.0
//
// tutti/launch.h: lets processes started by a launcher learn their ranks and meet. It reads the
// environment of `tutti run`, torchrun, mpirun of Open MPI, MPICH and Intel MPI, srun, and the
// launchers of Horovod. The `tutti` program and the Python package use these functions, and ranks
// of both and of programs in C can meet one another.
//
//   tuttiLaunch_t launch;
//   tuttiLaunchInfo_t info = {sizeof(info)};
//   ncclUniqueId id;
//   size_t size;
//   tuttiLaunchRead(&launch, 0);
//   tuttiLaunchDescribe(launch, &info);
//   if (info.rank == 0) ncclGetUniqueId(&id);
//   tuttiLaunchMeet(launch, &id, sizeof(id), &id, sizeof(id), &size, 0);
//   ncclCommInitRank(&comm, info.nranks, id, info.rank);
//
// (examples/09_under_a_launcher.c is the same with error handling.)
//
// Both ends of every connection prove knowledge of the job's secret before a byte is parsed: the
// text of TUTTI_COMM_KEY, a secret from the launcher, or the file ~/.tutti/key (`tutti key`). Ranks
// of one machine need no secret, because the kernel tells them that they belong to one user.
// Without a secret other ranks do not meet (ncclInvalidUsage), unless TUTTI_INSECURE=1 is set.
//
// Threads: one thread at a time uses a handle, but any thread may call tuttiLaunchInterrupt. The
// environment is read by tuttiLaunchRead, tuttiLaunchMachine and nothing else.
//
// Errors: ncclInvalidArgument for a senseless environment or argument, ncclInvalidUsage for a
// missing or unusable secret, ncclTimeout for absent ranks, ncclRemoteError for a failure of rank
// 0. tuttiLaunchLastError returns the sentence of this thread's last failed call.

#ifndef TUTTI_LAUNCH_H_
#define TUTTI_LAUNCH_H_

#include <stddef.h>

#include "nccl.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

// This process among the processes of its launcher.
typedef struct tuttiLaunch* tuttiLaunch_t;

typedef struct tuttiLaunchInfo {
  size_t size;  // sizeof(tuttiLaunchInfo_t), set by the caller
  int rank;
  int nranks;
  // The rank's number on its machine and the number of ranks there, by the launcher; both -1
  // without the launcher's word. tuttiLaunchPlaces returns the places on which all ranks agree.
  int local_rank;
  int local_size;
  // Nonzero if the launcher says that all ranks are on one machine.
  int one_machine;
  // The default time for which ranks wait for one another, in seconds:
  // HOROVOD_GLOO_TIMEOUT_SECONDS, else TUTTI_INIT_TIMEOUT_S, else 300.
  double timeout_s;
  char launcher[64];     // "srun", for people
  char rendezvous[256];  // "TCP at node7 port 29500", for people
} tuttiLaunchInfo_t;

// A rank's place in the job.
typedef struct tuttiLaunchPlace {
  int machine;     // machines are numbered in the order of their lowest ranks
  int local_rank;  // among the ranks of the machine
  int local_size;
  int cross_rank;  // the machine's number among the machines with a rank of this local_rank
  int cross_size;
} tuttiLaunchPlace_t;

// Lets ranks meet by PMI or PMIx where the launcher offers nothing else. A process can join PMI or
// PMIx only once, and MPI joins as well. A process with MPI must therefore not set the flag.
#define TUTTI_LAUNCH_MAY_JOIN_PMI 1

// The most bytes that rank 0 can hand to the rest.
#define TUTTI_LAUNCH_MAX_VALUE_BYTES 65536

// Reads the environment and stores a handle for the caller to close. `flags` is 0 or
// TUTTI_LAUNCH_MAY_JOIN_PMI. Stores a job of one rank where no launcher started this process.
ncclResult_t tuttiLaunchRead(tuttiLaunch_t* launch, int flags);

// Stores a job of the listed ranks of the launch alone, numbered in the order of the list. Every
// listed rank must make the call with the same list, and no other rank may. Ranks of several
// machines meet at an address of rank 0, and the list must then begin with rank 0. `launch` is
// unchanged.
ncclResult_t tuttiLaunchPart(tuttiLaunch_t launch, const int* ranks, int nranks,
                             tuttiLaunch_t* part);

// Stores the facts of the environment. info->size must be set.
ncclResult_t tuttiLaunchDescribe(tuttiLaunch_t launch, tuttiLaunchInfo_t* info);

// Returns when all ranks have made the call. Stores the `value` of rank 0 in `received` and its
// size in `*received_size`; the value of other ranks is ignored and may be null. `received` may be
// `value`. A timeout_s of 0 or less stands for the default (tuttiLaunchInfo_t). A failed call may
// be repeated, unless ranks meet by PMI.
ncclResult_t tuttiLaunchMeet(tuttiLaunch_t launch, const void* value, size_t value_size,
                             void* received, size_t capacity, size_t* received_size,
                             double timeout_s);

// Stores the places of all ranks, by rank, as agreed on in tuttiLaunchMeet. `nranks` must equal the
// number of ranks of the launch. ncclInvalidUsage before tuttiLaunchMeet.
ncclResult_t tuttiLaunchPlaces(tuttiLaunch_t launch, tuttiLaunchPlace_t* places, int nranks);

// Makes the tuttiLaunchMeet under way and all later ones fail.
ncclResult_t tuttiLaunchInterrupt(tuttiLaunch_t launch);

// Frees the handle. No thread may be using the handle. Null is allowed.
ncclResult_t tuttiLaunchClose(tuttiLaunch_t launch);

// Stores, for ranks that meet by other means, the unique name of this machine (HOROVOD_HOSTNAME if
// set), ended by a zero byte.
ncclResult_t tuttiLaunchMachine(char* name, size_t capacity);

// Stores, for ranks that meet by other means, the places of ranks on machines of these names,
// counted machine by machine.
ncclResult_t tuttiLaunchCountPlaces(const char* const* machines, tuttiLaunchPlace_t* places,
                                    int nranks);

const char* tuttiLaunchLastError(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // TUTTI_LAUNCH_H_
