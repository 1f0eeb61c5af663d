#pragma once

// Starts, watches and ends the local ranks of a program.
//
// Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR (127.0.0.1),
// MASTER_PORT and a random TUTTI_COMM_KEY, by which programs with torchrun's environment,
// NCCL_COMM_ID or tutti/launch.h find each other. Programs of Horovod learn their numbers by
// HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK and so on. With `horovod_store` ranks also get the
// further variables of Horovod's own launcher, and workers built with Horovod and Gloo meet by the
// store that the launcher serves (launch/http_store.h).
//
// Signals that would end this process are passed on. When a rank fails, all remaining ranks and the
// processes that they have left behind get SIGTERM, and SIGKILL after a grace time; the failing
// rank's status is the result. Ranks die with this process, even if it is killed.

#include <map>
#include <string>
#include <vector>

namespace tutti::tools {

struct RunOptions {
  int num_ranks = 0;  // 0 where not given
  bool tag = false;
  bool bind = false;
  bool horovod_store = false;  // serve Horovod's rendezvous, and give the ranks its address
  double grace_s = 5;
  int port = 0;  // 0: any free port
  // Variables of the ranks beside this process's own.
  std::map<std::string, std::string> variables;
  std::vector<std::string> command;
};

// Returns the exit status: 0 when all ranks ended well. Otherwise returns the status of the first
// rank that failed, 128 plus the number of the signal that killed the rank, or 127 when the program
// could not be started.
int RunProgram(const RunOptions& options);

}  // namespace tutti::tools
