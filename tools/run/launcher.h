#pragma once

// Starts, watches and ends the ranks of a program, on this host or by ssh (remote.h).
//
// Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and a
// random TUTTI_COMM_KEY, by which programs with torchrun's environment, NCCL_COMM_ID or
// tutti/launch.h find each other. Where a rank is on another host, MASTER_ADDR is an address of
// rank 0's host, and ranks of tutti/launch.h meet by the launcher's store at TUTTI_STORE_ADDR
// (store.h); otherwise MASTER_ADDR is 127.0.0.1. Programs of Horovod learn their numbers by
// HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK and so on. With `horovod_store` ranks also get the
// further variables of Horovod's own launcher, and workers built with Horovod and Gloo meet by the
// store that the launcher serves (launch/http_store.h).
//
// Signals that would end this process are passed on. When a rank fails, all remaining ranks and the
// processes that they have left behind get SIGTERM, and SIGKILL after a grace time; the failing
// rank's status is the result. Ranks die with this process, even if it is killed.

#include <string>
#include <vector>

#include "elastic/hosts.h"
#include "run/remote.h"

namespace tutti::tools {

struct RunOptions {
  int num_ranks = 0;                      // 0 where not given
  std::vector<elastic::HostSlots> hosts;  // empty: this host, with a slot for each rank
  bool tag = false;
  bool bind = false;
  bool horovod_store = false;  // serve Horovod's rendezvous, and give the ranks its address
  double grace_s = 5;
  int port = 0;  // 0: any free port
  RemoteOptions remote;
  std::vector<std::string> command;
};

// Returns the exit status: 0 when all ranks ended well. Otherwise returns the status of the first
// rank that failed, 128 plus the number of the signal that killed the rank, or 127 when the program
// could not be started.
int RunProgram(const RunOptions& options);

}  // namespace tutti::tools
