#pragma once

// Holds all the ranks that run one library, as the driver sees them. A team starts its ranks or
// takes them over, sends them commands in step, and ends them.
//
// Ranks of this host are processes of their own (or one process with a thread per rank), hence two
// libraries that export the same names never meet in one address space. When a rank dies or reports
// a failure, the current command ends with a sentence that names the rank and the failure. All
// remaining ranks may wait for the rank inside the library for ever, and are killed when the team
// is destroyed.
//
// Use from one thread.

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "perf/barrier.h"
#include "perf/channel.h"

namespace tutti::tools {

using EnvironmentChanges = std::vector<std::pair<std::string, std::string>>;

// A process that serves ranks (`tutti perf-rank`), with one socket for each rank.
struct RankProcess {
  pid_t pid = -1;
  std::vector<int> ranks;
};

// Starts this program anew with the given sockets, one rank each. The process dies with this
// process. `changes` are set in its environment unless they are set already.
Result<pid_t> StartRankProcess(std::vector<UniqueFd> sockets, const EnvironmentChanges& changes);

// Describes a status of waitpid(2): "was killed by signal 9 (Killed)", "ended with exit status 3".
std::string DescribeEnd(int wait_status);

class Team {
 public:
  // Called a few times a second while the team waits, to show progress on the terminal.
  using Tick = std::function<void()>;

  // Errors begin with `label`.
  explicit Team(std::string label) : label_(std::move(label)) {}
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Adds the next rank, served over `channel`.
  void AddRank(Channel channel) { channels_.push_back(std::move(channel)); }
  // Adds a started process that serves ranks of this team.
  void AddProcess(RankProcess process) { processes_.push_back(std::move(process)); }
  void set_tick(Tick tick) { tick_ = std::move(tick); }

  int size() const { return static_cast<int>(channels_.size()); }

  // Sends `request` to every rank, merged with the rank's own fields from `per_rank`, and waits for
  // all answers. `doing` completes "while …" in errors.
  Result<std::vector<Json>> AskAll(const Json& request, const std::string& doing, double timeout_s,
                                   const std::function<Json(int rank)>& per_rank = nullptr);
  Result<Json> AskOne(int rank, const Json& request, const std::string& doing, double timeout_s);

  // Ends all ranks in good order.
  Status Quit(double timeout_s);

 private:
  struct Round;
  Status Collect(Round* round, const std::string& doing, Deadline deadline);
  Status TakeFrom(int rank, Round* round, const std::string& doing);
  void ReleaseBarrier(Round* round);
  std::string DescribeLoss(int rank, const std::string& doing);
  Status Reap(double timeout_s);

  const std::string label_;
  std::vector<Channel> channels_;
  std::vector<RankProcess> processes_;
  Tick tick_;
};

}  // namespace tutti::tools
