#pragma once

// Who this process is among those that a launcher started, read from the environment that the
// launcher left.
//
// Understood: torchrun and `tutti run` (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open MPI's
// mpirun, MPICH's and Intel MPI's (PMI_RANK, PMI_SIZE), srun with any of its --mpi kinds. The
// innermost launcher wins: a torchrun inside an srun is a torchrun. Pure functions of the lookup
// they are given; any thread may call them.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti::launch {

enum class Launcher { kNone, kTorch, kOpenMpi, kPmi, kSlurm };

// By what way rank 0 can hand a value to the others.
enum class Rendezvous { kNone, kPmix, kPmi, kTcp };

struct LaunchInfo {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // Among the ranks of this host; -1 where the launcher does not say.
  int local_size = 1;  // -1 where the launcher does not say.
  Launcher launcher = Launcher::kNone;
  Rendezvous rendezvous = Rendezvous::kNone;
  // With Rendezvous::kTcp: the host where rank 0 listens, and the ports it may have taken, best
  // first.
  std::string address;
  std::vector<uint16_t> ports;
  // What tells this job from another on the same address, and the secret that its ranks share (""
  // if none was given).
  std::string job;
  std::string secret;
};

// getenv(3) in production, a map in tests. Returns null for a name that is not set.
using Lookup = std::function<const char*(const char* name)>;

// Fails with InvalidArgument when the environment contradicts itself (a rank that is not below the
// size, a number that is none). No launcher is not a failure: one rank, Launcher::kNone.
Result<LaunchInfo> ReadLaunchEnvironment(const Lookup& lookup);

std::string_view Name(Launcher launcher);
std::string_view Name(Rendezvous rendezvous);

// The first host of a Slurm host list: "node[07-12,20],login" gives "node07".
std::string FirstHost(std::string_view host_list);

// The number of tasks on node `node` in Slurm's form "4(x2),3"; -1 where it says nothing of it.
int TasksOnNode(std::string_view tasks_per_node, int node);

}  // namespace tutti::launch
