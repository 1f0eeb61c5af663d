// The text of RAS, in the layout of NCCL's: a summary of the job, a table of the communicators in
// groups of alike ones, and then errors and warnings about single communicators.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "nccl.h"
#include "ras/format.h"
#include "ras/order.h"

namespace tutti::ras {
namespace {

// Sets of up to this many ranks, and up to this part of all ranks, are listed rank by rank.
constexpr size_t kMostListed = 10;
constexpr double kOutlierPart = 0.25;
constexpr double kVerboseOutlierPart = 0.5;

// The states of ranks as bits, and their names.
constexpr unsigned kNoCommunicator = 1, kBeingMade = 2, kRunning = 4;
constexpr std::array<const char*, 3> kStateNames = {"NOCOMM", "INIT", "RUNNING"};
constexpr unsigned kMismatch = 1, kError = 2, kIncomplete = 4;

std::string_view Plural(size_t count) { return count == 1 ? "" : "s"; }

std::string GpuOf(int device) { return device < 0 ? "none" : fmt::format("{}", device); }

unsigned StateOf(const RankState& one) { return one.init_state == 0 ? kRunning : kBeingMade; }

const char* NameOfState(unsigned states) { return kStateNames[std::bit_width(states) - 1u]; }

bool HasError(const RankState& one) { return one.async_error != 0; }

const char* NameOfError(int error) {
  switch (static_cast<Code>(error)) {
    case Code::kUnhandledCudaError:
      return "Unhandled CUDA error";
    case Code::kSystemError:
      return "System error";
    case Code::kInternalError:
      return "Internal error";
    case Code::kInvalidArgument:
      return "Invalid argument";
    case Code::kInvalidUsage:
      return "Invalid usage";
    case Code::kRemoteError:
      return "Remote process error";
    case Code::kTimeout:
      return "Timeout";
    default:
      return "Unexpected error";
  }
}

std::string NamesOfErrors(unsigned errors) {
  std::string names;
  for (const auto& [bit, name] :
       {std::pair(kIncomplete, "INCOMPLETE"), {kError, "ERROR"}, {kMismatch, "MISMATCH"}})
    if ((errors & bit) != 0) names += fmt::format("{}{}", names.empty() ? "" : ",", name);
  return names.empty() ? "OK" : names;
}

// A communicator with what the table and the sections say.
struct Line {
  uint64_t id = 0;
  const CommunicatorState* state = nullptr;
  std::vector<MissingRank> missing;
  std::map<std::string, int> nodes;  // the numbers of their ranks
  unsigned states = 0;
  unsigned errors = 0;
  std::string name = {};  // such as "#0-1 (0123456789abcdef)"

  // Lines with equal keys are a group. The table begins with the largest key.
  auto Key() const {
    return std::tuple(state->num_ranks, nodes.size(), std::bit_width(states), errors);
  }
};

Line LineOf(const Report& report, uint64_t id, const CommunicatorState& state) {
  Line line = {.id = id, .state = &state, .missing = report.MissingOf(state), .nodes = {}};
  for (const MissingRank& one : line.missing) {
    line.errors |= one.heard ? kMismatch : kIncomplete;
    if (one.heard) line.states |= kNoCommunicator;
  }
  for (const auto& [rank, one] : state.ranks) {
    ++line.nodes[one.process.host];
    line.states |= StateOf(one);
    if (one.begun != state.ranks.begin()->second.begun) line.errors |= kMismatch;
    if (HasError(one)) line.errors |= kError;
  }
  if (line.states == 0) line.states = kNoCommunicator;  // All ranks are missing.
  if (std::popcount(line.states) > 1) line.errors |= kMismatch;
  return line;
}

// Returns the lines in the order of the table, group by group.
std::vector<std::vector<Line>> GroupsOf(const Report& report) {
  std::vector<Line> lines;
  for (const auto& [id, state] : report.communicators) lines.push_back(LineOf(report, id, state));
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return std::pair(b.Key(), a.state->ranks.size()) < std::pair(a.Key(), b.state->ranks.size());
  });
  std::vector<std::vector<Line>> groups;
  for (Line& line : lines) {
    if (groups.empty() || groups.back()[0].Key() != line.Key()) groups.emplace_back();
    line.name = fmt::format("#{}-{} ({:016x})", groups.size() - 1, groups.back().size(), line.id);
    groups.back().push_back(std::move(line));
  }
  return groups;
}

class TextWriter {
 public:
  TextWriter(const Report& report, const Frame& frame, bool verbose)
      : report_(report), frame_(frame), verbose_(verbose), groups_(GroupsOf(report)) {
    for (const auto& [id, state] : report.communicators)
      for (const auto& [rank, one] : state.ranks)
        if (one.device >= 0) devices_[one.process].insert(one.device);
  }

  std::string Write() {
    WriteSummary();
    WriteTable();
    WriteErrors();
    WriteWarnings();
    return std::move(text_);
  }

 private:
  template <class... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  // Returns whether a set of ranks is listed. `total` 0: any part of all ranks is.
  bool IsListed(size_t count, size_t total = 0) const {
    if (count == 1) return true;
    const double most =
        static_cast<double>(total) * (verbose_ ? kVerboseOutlierPart : kOutlierPart);
    if (verbose_) return total == 0 || static_cast<double>(count) < most;
    return count <= kMostListed && (total == 0 || static_cast<double>(count) <= most);
  }

  static std::string PlaceOf(int device, const ProcessName& process) {
    if (!process.known()) return "[process information not found]";
    return fmt::format("GPU {} managed by process {} on node {}", GpuOf(device), process.pid,
                       process.host);
  }
  static std::string PlaceOf(const Line& line, int rank) {
    if (const auto one = line.state->ranks.find(rank); one != line.state->ranks.end())
      return PlaceOf(one->second.device, one->second.process);
    const auto name = line.state->names.find(rank);
    return PlaceOf(-1, name == line.state->names.end() ? ProcessName() : name->second);
  }

  // Lists the ranks of each value, the largest sets first. `says` returns what the ranks of a value
  // do, in the singular or the plural.
  void AddBreakdown(const Line& line, const std::map<uint64_t, std::vector<int>>& by_value,
                    size_t total, const std::function<std::string(uint64_t, bool)>& says) {
    std::vector<std::pair<uint64_t, std::vector<int>>> sets(by_value.begin(), by_value.end());
    std::stable_sort(sets.begin(), sets.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second.size(), a.first) > std::pair(b.second.size(), b.first);
    });
    for (const auto& [value, ranks] : sets) {
      const bool many = ranks.size() > 1;
      if (many) Add("  {} ranks {}\n", ranks.size(), says(value, true));
      if (!IsListed(ranks.size(), total)) continue;
      for (const int rank : ranks)
        Add("  Rank {} {}-- {}\n", rank, many ? "" : says(value, false) + " ", PlaceOf(line, rank));
    }
  }

  void AddProcesses(const std::set<ProcessName>& processes) {
    if (!IsListed(processes.size())) return;
    for (const ProcessName& one : processes) {
      const auto found = devices_.find(one);
      Add("  Process {} on node {} managing GPU{} {}\n", one.pid, one.host,
          found == devices_.end() ? "" : Plural(found->second.size()),
          found == devices_.end() ? "none" : fmt::format("{}", fmt::join(found->second, ",")));
    }
  }

  void ForEachLine(unsigned errors, const std::function<void(const Line&)>& write) {
    for (const std::vector<Line>& group : groups_)
      for (const Line& line : group)
        if ((line.errors & errors) != 0) write(line);
  }

  void WriteSummary();
  void WriteUnequalSummary(const std::map<size_t, size_t>& nodes,
                           const std::map<size_t, size_t>& processes, bool equal_gpus);
  void WriteTable();
  void WriteErrors();
  void WriteIncomplete(const Line& line);
  void WriteError(const Line& line);
  void WriteWarnings();
  void WriteMismatch(const Line& line);

  const Report& report_;
  const Frame& frame_;
  const bool verbose_;
  const std::vector<std::vector<Line>> groups_;
  std::map<ProcessName, std::set<int>> devices_;
  std::string text_;
};

// Processes that have not told their part count as well, as far as others know them.
void TextWriter::WriteSummary() {
  std::set<ProcessName> all = report_.heard;
  for (const auto& [id, state] : report_.communicators)
    for (const auto& [rank, name] : state.names)
      if (name.known()) all.insert(name);
  std::map<std::string, size_t> per_node;
  std::map<size_t, size_t> nodes, processes;  // how many have as many processes, as many GPUs
  size_t num_gpus = 0;
  for (const ProcessName& one : all) {
    const auto found = devices_.find(one);
    const size_t gpus = found == devices_.end() ? 0 : found->second.size();
    num_gpus += gpus;
    ++per_node[one.host];
    ++processes[gpus];
  }
  for (const auto& [host, count] : per_node) ++nodes[count];
  Add("Job summary\n===========\n\n");
  if (nodes.size() <= 1 && processes.size() <= 1) {
    Add("  Nodes  Processes         GPUs  Processes     GPUs\n"
        "(total)   per node  per process    (total)  (total)\n");
    Add("{:7}  {:9}  {:11}  {:9}  {:7}\n", per_node.size(),
        nodes.empty() ? 0 : nodes.begin()->first, processes.empty() ? 0 : processes.begin()->first,
        all.size(), num_gpus);
    return;
  }
  WriteUnequalSummary(nodes, processes, processes.size() == 1);
  Add("\n  Nodes  Processes         GPUs\n(total)    (total)      (total)\n{:7}  {:9}  {:11}\n",
      per_node.size(), all.size(), num_gpus);
}

void TextWriter::WriteUnequalSummary(const std::map<size_t, size_t>& nodes,
                                     const std::map<size_t, size_t>& processes, bool equal_gpus) {
  if (equal_gpus) {
    Add("  Nodes  Processes         GPUs\n          per node  per process\n");
    for (const auto& [count, number] : nodes)
      Add("{:7}  {:9}  {:11}\n", number, count, processes.begin()->first);
    return;
  }
  Add("  Nodes  Processes\n          per node\n");
  for (const auto& [count, number] : nodes) Add("{:7}  {:9}\n", number, count);
  Add("\n         Processes         GPUs\n                    per process\n");
  for (const auto& [count, number] : processes) Add("         {:9}  {:11}\n", number, count);
}

void TextWriter::WriteTable() {
  Add("\nCommunicators... ({:.2f}s)\n=============\n\n", frame_.seconds);
  if (groups_.empty()) {
    Add("No communicator data collected!\n");
    return;
  }
  Add("Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
      "    #  in group  per comm  per node  per comm  in group\n");
  for (size_t i = 0; i < groups_.size(); ++i) {
    const std::vector<Line>& group = groups_[i];
    std::set<int> per_node;
    std::set<std::pair<ProcessName, int>> places;
    for (const Line& line : group) {
      for (const auto& [host, count] : line.nodes) per_node.insert(count);
      for (const auto& [rank, one] : line.state->ranks) places.insert({one.process, one.device});
    }
    std::string ranks_per_node = per_node.empty() ? "0" : fmt::format("{}", *per_node.begin());
    if (per_node.size() > 1) ranks_per_node += fmt::format("-{}", *per_node.rbegin());
    const Line& first = group[0];
    Add("{:5}  {:8}  {:8}  {:>8}  {:8}  {:8}  {:>8}  {:>6}\n", i, group.size(), first.nodes.size(),
        ranks_per_node, first.state->num_ranks, places.size(), NameOfState(first.states),
        NamesOfErrors(first.errors));
  }
}

void TextWriter::WriteErrors() {
  std::set<ProcessName> silent, dead;
  for (const std::vector<Line>& group : groups_)
    for (const Line& line : group)
      for (const MissingRank& one : line.missing)
        if (!one.heard && one.process.known()) (one.dead ? dead : silent).insert(one.process);
  Add("\nErrors\n======\n\n");
  if (!silent.empty()) {
    Add("INCOMPLETE\n  Missing communicator data from {} job process{}\n", silent.size(),
        silent.size() > 1 ? "es" : "");
    AddProcesses(silent);
    Add("\n");
  }
  if (!dead.empty()) {
    Add("DEAD\n  {} job process{} considered dead (unreachable via the RAS network)\n", dead.size(),
        dead.size() > 1 ? "es are" : " is");
    AddProcesses(dead);
    Add("\n");
  }
  ForEachLine(kIncomplete | kError, [this](const Line& line) {
    if ((line.errors & kIncomplete) != 0) WriteIncomplete(line);
    if ((line.errors & kError) != 0) WriteError(line);
  });
}

void TextWriter::WriteIncomplete(const Line& line) {
  std::vector<int> ranks;
  for (const MissingRank& one : line.missing)
    if (!one.heard) ranks.push_back(one.rank);
  Add("{} INCOMPLETE\n  Missing communicator data from {} rank{}\n", line.name, ranks.size(),
      Plural(ranks.size()));
  if (IsListed(ranks.size()))
    for (const int rank : ranks) Add("  Rank {} -- {}\n", rank, PlaceOf(line, rank));
  Add("\n");
}

void TextWriter::WriteError(const Line& line) {
  std::map<uint64_t, std::vector<int>> by_error;
  size_t count = 0;
  for (const auto& [rank, one] : line.state->ranks) {
    if (!HasError(one)) continue;
    by_error[static_cast<uint64_t>(one.async_error)].push_back(rank);
    ++count;
  }
  Add("{} ERROR\n  Asynchronous error{} on {} rank{}\n", line.name, Plural(count), count,
      Plural(count));
  AddBreakdown(line, by_error, 0, [](uint64_t error, bool) {
    return fmt::format("reported {}", NameOfError(static_cast<int>(error)));
  });
  Add("\n");
}

void TextWriter::WriteWarnings() {
  Add("Warnings\n========\n\n");
  if (frame_.num_timeouts > 0)
    Add("TIMEOUT\n  Encountered {} communication timeout{} while gathering communicator data\n\n",
        frame_.num_timeouts, frame_.num_timeouts > 1 ? "s" : "");
  ForEachLine(kMismatch, [this](const Line& line) { WriteMismatch(line); });
}

void TextWriter::WriteMismatch(const Line& line) {
  const auto num_ranks = static_cast<size_t>(line.state->num_ranks);
  Add("{} MISMATCH\n", line.name);
  if (std::popcount(line.states) > 1) {
    std::map<uint64_t, std::vector<int>> by_state;
    for (const auto& [rank, one] : line.state->ranks) by_state[StateOf(one)].push_back(rank);
    for (const MissingRank& one : line.missing)
      if (one.heard) by_state[kNoCommunicator].push_back(one.rank);
    Add("  Communicator ranks have different status\n");
    AddBreakdown(line, by_state, num_ranks, [](uint64_t state, bool many) {
      return fmt::format("{} status {}", many ? "have" : "has",
                         NameOfState(static_cast<unsigned>(state)));
    });
  }
  for (const Collective kind : kCounted) {
    std::map<uint64_t, std::vector<int>> by_count;
    for (const auto& [rank, one] : line.state->ranks)
      by_count[one.begun[static_cast<size_t>(kind)]].push_back(rank);
    if (by_count.size() < 2) continue;
    Add("  Communicator ranks have different {} operation counts\n", Name(kind));
    AddBreakdown(line, by_count, num_ranks, [](uint64_t count, bool many) {
      if (count == 0) return fmt::format("{} not launched any operations", many ? "have" : "has");
      return fmt::format("{} launched up to operation {}", many ? "have" : "has", count);
    });
    Add("\n");
  }
}

}  // namespace

std::string ToText(const Report& report, const Frame& frame, bool verbose) {
  const std::string header = fmt::format(
      "NCCL version {}.{}.{} (Tutti)\nCUDA runtime version {}, driver version {}\n\n", NCCL_MAJOR,
      NCCL_MINOR, NCCL_PATCH, frame.cuda_driver_version, frame.cuda_driver_version);
  return header + TextWriter(report, frame, verbose).Write();
}

}  // namespace tutti::ras
