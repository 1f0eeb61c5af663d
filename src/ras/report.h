#pragma once

// The state of a job as RAS shows it: the communicators, their ranks and the processes behind them.
// A process reads its own part and the part of its machine from the boards (observe/reader.h), and
// asks processes of other machines for theirs (collector.h). Plain values and pure functions.

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/wire.h"
#include "observe/reader.h"
#include "plan/work.h"

namespace tutti::ras {

// Names a process of the job.
struct ProcessName {
  std::string host = "unknown";
  int pid = -1;
  auto operator<=>(const ProcessName&) const = default;
  bool known() const { return pid > 0; }
};

// The state of a rank, told by its record.
struct RankState {
  ProcessName process;
  int device = -1;      // the CUDA device; -1: a host
  int init_state = 0;   // kInProgress (base/status.h) while the communicator is made
  int async_error = 0;  // the Code of the reason why the communicator has stopped
  std::array<uint64_t, kNumCollectives> begun = {};  // by Collective
  bool operator==(const RankState&) const = default;
};

// A rank that is not among the ranks of a communicator's state.
struct MissingRank {
  int rank = 0;
  ProcessName process;
  bool heard = false;  // The process has told its part, and the rank was not in it.
  bool dead = false;
};

struct CommunicatorState {
  int num_ranks = 0;
  std::map<int, RankState> ranks;
  std::map<int, ProcessName> names;  // of ranks, as far as known
  std::set<int> dead;                // ranks
};

struct Report {
  std::map<uint64_t, CommunicatorState> communicators;  // by id
  std::set<ProcessName> heard;                          // processes that have told their part

  // Returns the missing ranks in order, the first kMostMissing of them.
  std::vector<MissingRank> MissingOf(const CommunicatorState& one) const;
  // A report of another process may claim any number of ranks.
  static constexpr size_t kMostMissing = 1024;
};

// Returns the part of the machine: the job of process `own_pid`, with its processes that serve this
// RAS address. The process can ask no ranks of other jobs, which would seem to miss their ranks.
Report ReportOf(observe::Reading reading, std::string_view ras_address, int own_pid);

// Adds the report of another process. A rank that is known already keeps its entry.
void Merge(const Report& told, Report& into);

// Returns the wire form, without the names of missing ranks that are alive. Of a report that is
// too large for a letter, only the first communicators are in the wire form.
Bytes Encode(const Report& report);
inline constexpr size_t kMostWireBytes = 4 << 20;
// Returns nothing where the bytes are no report, or name more than kMostCommunicators.
inline constexpr size_t kMostCommunicators = 1024;
std::optional<Report> Decode(std::span<const std::byte> bytes);

}  // namespace tutti::ras
