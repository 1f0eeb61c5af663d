#pragma once

// Finds out, from the environment that a launcher left, this process's rank in the job and the
// place where the ranks meet.
//
// Launchers that are understood, in the order in which they count:
//
//   HOROVOD_RANK, HOROVOD_SIZE, …                      any launcher of Horovod's ranks; does not count beside
//                                                      MASTER_ADDR without HOROVOD_GLOO_RENDEZVOUS_ADDR
//   RANK, WORLD_SIZE with MASTER_ADDR                  torchrun and `tutti run`
//   OMPI_COMM_WORLD_RANK, …                            Open MPI's mpirun
//   PMI_RANK, PMI_SIZE                                 MPICH's and Intel MPI's, srun --mpi=pmi2
//   SLURM_PROCID in a job step                         srun
//   RANK, WORLD_SIZE without an address                a person
//
// The innermost launcher wins: a torchrun inside an srun is a torchrun. All ranks choose their
// meeting place alike, by the first item of this list that applies:
//
//   1. a given address of rank 0: TUTTI_ADDR;
//   2. a socket of the machine, where the launcher says that all ranks are on one machine. The kernel
//      names the user at the other end, so no other user can take part, with or without a secret;
//   3. the store that Horovod's launcher serves, at HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT, or the
//      store that `tutti run -H` serves, at TUTTI_STORE_ADDR (elastic/store.h); rank 0 leaves its
//      address in the store (http_store.h);
//   4. MASTER_ADDR and MASTER_PORT; a socket of the machine where MASTER_ADDR is a loopback address;
//   5. the first node of the Slurm step, at a port derived from the job's number (without a secret
//      PMIx comes first);
//   6. PMIx or PMI, for processes that make no further use of PMI. These carry a random key.
//
// Ways 1, 3, 4 and 5 need the job's secret (config/secret.h).
// Pure functions of their arguments and of the file of the secret; any thread may call them.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/erased.h"
#include "base/status.h"
#include "config/settings.h"

namespace tutti::launch {

// A larger job is a misread variable; the bound keeps per-rank tables small.
inline constexpr int kMaxRanks = 1 << 20;

enum class Launcher { kNone, kHorovod, kTorch, kOpenMpi, kPmi, kSlurm };
enum class Rendezvous { kNone, kTcp, kLocal, kHttp, kStore, kPmix, kPmi };

// Describes an address at which rank 0 may listen: a host and a TCP port, or, with a `local_name`,
// an abstract Unix socket of the machine.
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
  // The rank's number among the ranks of its machine, and the number of these ranks, as the
  // launcher gives them; both are -1 where the launcher gives neither.
  int local_rank = -1;
  int local_size = -1;
  // Whether the launcher says that all ranks are on one machine.
  bool one_machine = false;
  Launcher launcher = Launcher::kNone;
  Rendezvous rendezvous = Rendezvous::kNone;
  // With kTcp and kLocal: the addresses at which rank 0 may listen, best first. With kHttp
  // and kStore: the store's addresses.
  std::vector<Endpoint> endpoints;
  int pmi_fd = -1;      // set with kPmi
  std::string machine;  // Machine::name
  uint32_t user = 0;    // Machine::user
  // The text that tells this job from another job at the same address, and the secret that the
  // job's ranks share ("" where none was given).
  std::string job;
  ErasedText secret;
  std::string secret_source;  // the variable or the file of the secret; empty without a secret
  bool insecure = false;      // TUTTI_INSECURE: ranks may meet over TCP without a secret
  // Longest time for which ranks wait for one another.
  double timeout_s = Settings{}.init_timeout_s;
};

// Holds the facts that ReadLaunchEnvironment needs beside the environment. A Machine is a plain
// value, and tests can make any machine.
struct Machine {
  // Tells this machine from all others. The value is HOROVOD_HOSTNAME where set, otherwise the
  // host's name and the identifier of its boot, because virtual machines and containers may all be
  // called `localhost`. Containers of one machine with names of their own count as several
  // machines.
  std::string name;
  uint32_t user = 0;
  // Returns the process that started this rank, directly or through scripts: the nearest ancestor
  // that is Hydra's proxy or has no PMI_RANK in its environment.
  std::function<pid_t()> starter;
};

// Describes the machine of this process.
Machine ThisMachine(const Environment& environment);

// Returns Machine::name for this machine.
std::string MachineName(const Environment& environment);

struct ReadOptions {
  // Lets ranks meet by PMI or PMIx. A process can join PMI or PMIx only once, and MPI joins as
  // well: a process that may use MPI must not set this option.
  bool may_join_pmi = false;
};

// Reads the launcher's variables. Fails with InvalidArgument when the environment contradicts
// itself (a rank not below the size, a malformed number, ranks without a way to meet), for a worker
// of an elastic job, which has no rank in its environment, and with InvalidUsage for an unusable
// secret. Without a launcher, returns one rank and Launcher::kNone.
Result<LaunchInfo> ReadLaunchEnvironment(const Environment& environment, const Machine& machine,
                                         const ReadOptions& options = {});

// Returns the job of the given ranks alone, numbered in the given order. Each of the given ranks
// must begin the job; all further ranks take no part. InvalidArgument for ranks outside the job,
// for a rank that is named twice, and for a list without this rank. InvalidArgument also where the
// ranks are on several machines and meet at an address of rank 0, unless rank 0 is first in the
// list.
Result<LaunchInfo> PartOf(const LaunchInfo& info, const std::vector<int>& ranks);

// Returns the host at which the ranks meet, as the environment names the host: a name or an address
// of a host that all ranks reach. Empty where the environment names none.
std::string MeetingHost(const Environment& environment);

std::string_view Name(Launcher launcher);
std::string_view Name(Rendezvous rendezvous);

}  // namespace tutti::launch
