// SPDX-License-Identifier: Apache-2.0
//
// tutti/launch.h: how the processes that a launcher started learn who they are and meet. It
// understands what `tutti run`, torchrun, Open MPI's mpirun, MPICH's and Intel MPI's, srun and
// whatever starts Horovod's ranks leave in the environment. The `tutti` program and the Python
// package are built on this, so ranks of either, and of programs in C, meet one another.
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
// (examples/09_under_a_launcher.c has it with its errors.)
//
// Both ends of every connection prove that they hold the job's key before a byte is parsed: the
// text of TUTTI_COMM_KEY, or a secret that the launcher gave its ranks. Without either they prove
// only that they know the job's name, and rank 0 warns in the log where other machines can reach
// it.
//
// Threads: one thread at a time uses a handle; tuttiLaunchInterrupt may be called beside it. The
// environment is read by tuttiLaunchRead, tuttiLaunchMachine and nothing else.
//
// Errors: ncclInvalidArgument for an environment or an argument that makes no sense, ncclTimeout
// when ranks stay away, ncclRemoteError when rank 0 failed. tuttiLaunchLastError has the sentence
// of this thread's last failed call.

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

// This process among those that its launcher started.
typedef struct tuttiLaunch* tuttiLaunch_t;

typedef struct tuttiLaunchInfo {
  size_t size;  // sizeof(tuttiLaunchInfo_t), set by the caller
  int rank;
  int nranks;
  // The rank's number among the ranks of its machine and how many there are, as the launcher says;
  // both -1 where it does not say. tuttiLaunchPlaces has what all ranks agree on.
  int local_rank;
  int local_size;
  // Whether the launcher says that all ranks are on one machine.
  int one_machine;
  // How long ranks wait for one another by default, in seconds: HOROVOD_GLOO_TIMEOUT_SECONDS, else
  // TUTTI_INIT_TIMEOUT_S, else 120.
  double timeout_s;
  char launcher[64];     // "srun", for people
  char rendezvous[256];  // "TCP at node7 port 29500", for people
} tuttiLaunchInfo_t;

// A rank's place in the job.
typedef struct tuttiLaunchPlace {
  int machine;     // machines are numbered in the order of their lowest ranks
  int local_rank;  // among the ranks of the machine
  int local_size;
  int cross_rank;  // the machine's number among those that have a rank with this local rank
  int cross_size;
} tuttiLaunchPlace_t;

// Lets ranks meet by PMI or PMIx where the launcher offers nothing else. A process can join either
// once only, and MPI joins as well, so a process that uses MPI must not ask for it.
#define TUTTI_LAUNCH_MAY_JOIN_PMI 1

// The most bytes that rank 0 can hand to the others.
#define TUTTI_LAUNCH_MAX_VALUE_BYTES 65536

// Reads the environment and stores a handle that the caller must close. `flags` is 0 or
// TUTTI_LAUNCH_MAY_JOIN_PMI. One rank alone where no launcher started this process.
ncclResult_t tuttiLaunchRead(tuttiLaunch_t* launch, int flags);

// Stores a job of these of the launch's ranks alone, numbered in the order given. Every one of them
// must ask for it with the same list, and the others must not. Ranks of several machines meet at an
// address of rank 0, which has to be the first of the list then. `launch` stays as it is.
ncclResult_t tuttiLaunchPart(tuttiLaunch_t launch, const int* ranks, int nranks,
                             tuttiLaunch_t* part);

// Stores what the environment says. info->size must be set.
ncclResult_t tuttiLaunchDescribe(tuttiLaunch_t launch, tuttiLaunchInfo_t* info);

// Returns when all ranks have called it, having stored what rank 0 passed as `value` into
// `received` and its size into `*received_size`; the value of other ranks is ignored and may be
// null. `received` may be `value`. A timeout_s of 0 or less stands for the default
// (tuttiLaunchInfo_t). A call that failed may be repeated, unless ranks meet by PMI.
ncclResult_t tuttiLaunchMeet(tuttiLaunch_t launch, const void* value, size_t value_size,
                             void* received, size_t capacity, size_t* received_size,
                             double timeout_s);

// Stores the places of all ranks, by rank, as they agreed on them when they met. `nranks` must be
// that of the launch. ncclInvalidUsage before tuttiLaunchMeet.
ncclResult_t tuttiLaunchPlaces(tuttiLaunch_t launch, tuttiLaunchPlace_t* places, int nranks);

// Makes the tuttiLaunchMeet under way and all later ones fail.
ncclResult_t tuttiLaunchInterrupt(tuttiLaunch_t launch);

// Frees the handle, which nobody may be using. Null is allowed.
ncclResult_t tuttiLaunchClose(tuttiLaunch_t launch);

// Stores, for ranks that meet by other means, the name of this machine, which no other has
// (HOROVOD_HOSTNAME where it is set), ended by a zero byte.
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
