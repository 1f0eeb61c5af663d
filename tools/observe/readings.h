#pragma once

// The shared parts of `tutti ps`, `top`, `stat`, `doctor` and `metrics`, which read the boards of
// this user's processes (observe/reader.h) and change nothing.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/jobs.h"
#include "observe/rates.h"
#include "observe/reader.h"
#include "observe/verdict.h"

namespace tutti::tools {

struct Jobs {
  int64_t at_ns = 0;  // the monotonic time of the reading
  std::vector<observe::JobView> all;

  // Returns the job with a process of this number; null where there is none.
  const observe::JobView* Find(int pid) const;
};

// Reads all jobs of this user on this machine.
Jobs ReadJobs();

// Returns the same communicator among `jobs`, or an empty view.
observe::CommunicatorView FindCommunicator(const Jobs& jobs, uint64_t id);

// Returns "running", "stopped", "ended" or "unknown".
std::string_view Name(observe::Life life);

// Returns a line such as "job 4711 (python3), 4 processes on this machine".
std::string TitleOf(const observe::JobView& job);
// Returns the activity of a rank, with its wait.
std::string ActivityOf(const observe::RankView& one, const observe::CommunicatorView& view);

// The JSON form of a rank and of a communicator without its ranks (docs/observe.md).
nlohmann::json ToJson(const observe::RankView& one, const observe::CommunicatorView& view);
nlohmann::json ToJson(const observe::CommunicatorView& view);

// Adds what the doctor says to the JSON form of a communicator.
void AddTo(nlohmann::json& json, const observe::Verdict& verdict, int64_t at_ns);
// Adds rates to the JSON form of a rank or a communicator.
void AddTo(nlohmann::json& json, const Rates& rates);

// Says on standard error that there is no such job, and returns the exit status.
int NoSuchJob(std::string_view subcommand, int pid);

}  // namespace tutti::tools
