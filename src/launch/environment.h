#pragma once

// Finds out who this process is among those that a launcher started, and where they meet, read from
// the environment that the launcher left.
//
// Understood are, in the order in which they count:
//
//   HOROVOD_RANK, HOROVOD_SIZE, …                      whatever starts Horovod's ranks
//   RANK, WORLD_SIZE with MASTER_ADDR                  torchrun and `tutti run`, which sets the former
//                                                      as well; where no store is named, these count
//   OMPI_COMM_WORLD_RANK, …                            Open MPI's mpirun
//   PMI_RANK, PMI_SIZE                                 MPICH's and Intel MPI's, srun --mpi=pmi2
//   SLURM_PROCID in a job step                         srun
//   RANK, WORLD_SIZE without an address                a person
//
// so that the innermost launcher wins: a torchrun inside an srun is a torchrun. Where ranks meet is
// decided by all of them alike, by the first of these that applies:
//
//   1. a given address of rank 0: TUTTI_ADDR;
//   2. the store that Horovod's launcher serves, at HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT, in which
//      rank 0 leaves its address (http_store.h);
//   3. MASTER_ADDR and MASTER_PORT;
//   4. a socket of the machine, where the launcher says that all ranks are on one;
//   5. the first node of the Slurm step, at a port that is made of the job's number;
//   6. PMIx or PMI, for processes that make no other use of it.
//
// Pure functions of what they are given; any thread may call them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/settings.h"
#include "launch/machine.h"

namespace tutti::launch {

// A job larger than this is a misread variable; the bound keeps per-rank tables small.
inline constexpr int kMaxRanks = 1 << 20;

enum class Launcher { kNone, kHorovod, kTorch, kOpenMpi, kPmi, kSlurm };
enum class Rendezvous { kNone, kTcp, kLocal, kHttp, kPmix, kPmi };

// A place where rank 0 may listen: a host and a TCP port, or, with a `local_name`, an abstract Unix
// socket of the machine.
struct Endpoint {
  std::string host;
  uint16_t port = 0;
  std::string local_name;

  // Returns a text such as "node7 port 29500" or "the local socket NAME".
  std::string ToString() const;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

struct LaunchInfo {
  int rank = 0;
  int size = 1;
  // The rank's number among the ranks of its machine, and how many there are, as the launcher says;
  // both -1 where it does not say.
  int local_rank = -1;
  int local_size = -1;
  // The launcher says that all ranks are on one machine.
  bool one_machine = false;
  Launcher launcher = Launcher::kNone;
  Rendezvous rendezvous = Rendezvous::kNone;
  // With kTcp and kLocal: where rank 0 may listen, best first. With kHttp: where the store is.
  std::vector<Endpoint> endpoints;
  int pmi_fd = -1;      // Set with kPmi.
  std::string machine;  // Machine::name
  uint32_t user = 0;    // Machine::user
  // What tells this job from another at the same address, and the secret that its ranks share (""
  // if none was given).
  std::string job;
  std::string secret;
  // Ranks wait so long for one another to come.
  double timeout_s = 120;
};

struct ReadOptions {
  // Lets ranks meet by PMI or PMIx. A process can join either once only, so one that may use MPI
  // itself must not: MPI joins as well.
  bool may_join_pmi = false;
};

// Fails with InvalidArgument when the environment contradicts itself (a rank that is not below the
// size, a number that is none, ranks without a way to meet). No launcher is not a failure: one rank
// and Launcher::kNone.
Result<LaunchInfo> ReadLaunchEnvironment(const Environment& environment, const Machine& machine,
                                         const ReadOptions& options = {});

// Returns the job of these of the launch's ranks alone, numbered in the order given; every one of
// them begins it, the others do not. InvalidArgument for ranks that are not there, that are named
// twice, or among which this one is not; and where the ranks are on several machines and meet at an
// address of rank 0, unless that is the first of them.
Result<LaunchInfo> PartOf(const LaunchInfo& info, const std::vector<int>& ranks);

std::string_view Name(Launcher launcher);
std::string_view Name(Rendezvous rendezvous);

}  // namespace tutti::launch
