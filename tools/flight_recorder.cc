// `tutti flight-recorder` writes what the boards of a job show as files of PyTorch's flight
// recorder, for torchfrtrace and for other programs that read such files. A board has no times of
// its collectives, so the files have none. Messages between two ranks are counted on a board and
// are not in the files.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "observe/pickle.h"
#include "observe/readings.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

using observe::CommunicatorView;
using observe::JobView;
using observe::RankName;
using observe::RankView;

// The version of the files' layout (c10d's FlightRecorder).
constexpr const char* kVersion = "2.10";
// PyTorch's own name for these files, before the rank.
constexpr const char* kPrefix = "comm_lib_trace_rank_";

struct FlightOptions {
  int pid = 0;
  std::string folder;
};

// A collective as PyTorch names it. A length is that of a call's count (1), or of all ranks' parts
// together (n).
struct Row {
  const char* name;
  bool all_in;
  bool all_out;
};

Row RowOf(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return {"all_reduce", false, false};
    case Collective::kReduce:
      return {"reduce", false, false};
    case Collective::kBroadcast:
      return {"broadcast", false, false};
    case Collective::kAllGather:
      return {"_all_gather_base", false, true};
    case Collective::kReduceScatter:
      return {"_reduce_scatter_base", true, false};
    case Collective::kAlltoAll:
      return {"all_to_all", true, true};
    case Collective::kGather:
    case Collective::kGatherV:
      return {"gather", false, true};
    case Collective::kScatter:
    case Collective::kScatterV:
      return {"scatter", true, false};
    case Collective::kAllGatherV:
      return {"all_gather_v", false, false};
    case Collective::kReduceScatterV:
      return {"reduce_scatter_v", false, false};
    case Collective::kAlltoAllV:
      return {"all_to_all_v_single", false, false};
    case Collective::kBarrier:
      return {"barrier", false, false};
    case Collective::kSendRecv:
      break;
  }
  return {"coalesced", false, false};
}

// The sizes of a single tensor of one dimension.
nlohmann::json Sizes(uint64_t count) {
  return nlohmann::json::array({nlohmann::json::array({count})});
}

nlohmann::json EntryOf(const OpSignature& signature, const CommunicatorView& view, bool done,
                       const nlohmann::json& group) {
  const Row row = RowOf(signature.collective);
  const uint64_t count = signature.count, all = count * static_cast<uint64_t>(view.num_ranks);
  const nlohmann::json types = nlohmann::json::array({Name(signature.type)});
  nlohmann::json entry = {{"pg_id", view.id & INT32_MAX},
                          {"process_group", group},
                          {"collective_seq_id", signature.sequence},
                          {"p2p_seq_id", 0},
                          {"op_id", signature.sequence},
                          {"profiling_name", fmt::format("nccl:{}", row.name)},
                          {"time_created_ns", 0},
                          {"input_dtypes", types},
                          {"output_dtypes", types},
                          {"state", done ? "completed" : "started"},
                          {"time_discovered_started_ns", nullptr},
                          {"time_discovered_completed_ns", nullptr},
                          {"retired", done},
                          {"timeout_ms", 0},
                          {"is_p2p", false}};
  entry["frames"] = nlohmann::json::array();
  entry["input_sizes"] = Sizes(row.all_in ? all : count);
  entry["output_sizes"] = Sizes(row.all_out ? all : count);
  return entry;
}

// The ranks of the job are those of its largest communicator.
class Ranks {
 public:
  explicit Ranks(const CommunicatorView& world) {
    for (size_t rank = 0; rank < world.names.size(); ++rank)
      known_.emplace(std::pair(world.names[rank].host, world.names[rank].pid), rank);
  }

  // Returns the job's numbers of a communicator's ranks; nothing where a process has several ranks
  // or is not known.
  std::optional<std::vector<size_t>> Of(const CommunicatorView& view) const {
    std::vector<size_t> numbers;
    for (const RankName& name : view.names) {
      const auto found = known_.find({name.host, name.pid});
      if (found == known_.end() || known_.count({name.host, name.pid}) != 1) return {};
      numbers.push_back(found->second);
    }
    if (std::ssize(numbers) != view.num_ranks) return {};
    return numbers;
  }

 private:
  std::multimap<std::pair<std::string, int>, size_t> known_;
};

// Adds a communicator to the files of its ranks. Readers pair the entries of ranks from the first
// on, and so the entries begin where all ranks still have them.
void Add(const CommunicatorView& view, const std::vector<size_t>& ranks, bool is_world,
         std::map<size_t, nlohmann::json>& files) {
  uint64_t first = 0;
  for (const RankView& one : view.ranks)
    if (one.snapshot && !one.snapshot->recent.empty())
      first = std::max(first, one.snapshot->recent.front().sequence);
  const std::string id = fmt::format("{:016x}", view.id);
  const std::string text = view.name.empty() ? (is_world ? "default_pg" : id) : view.name;
  for (const RankView& one : view.ranks) {
    if (!one.snapshot) continue;
    nlohmann::json& file = files[ranks[static_cast<size_t>(one.rank)]];
    if (file.is_null()) file = {{"version", kVersion}, {"entries", nlohmann::json::array()}};
    file["pg_config"][id] = {{"name", id}, {"desc", text}, {"ranks", nlohmann::json(ranks).dump()}};
    file["pg_status"][id] = {{"last_enqueued_collective", one.snapshot->begun},
                             {"last_started_collective", one.snapshot->begun},
                             {"last_completed_collective", one.snapshot->done()}};
    for (const OpSignature& signature : one.snapshot->recent) {
      if (signature.sequence < first) continue;
      nlohmann::json entry =
          EntryOf(signature, view, signature.sequence <= one.snapshot->done(), {id, text});
      entry["record_id"] = file["entries"].size();
      file["entries"].push_back(std::move(entry));
    }
  }
}

bool Write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  out.close();
  if (!out) fmt::print(stderr, "tutti flight-recorder: {} cannot be written\n", path.string());
  return !out.fail();
}

int FlightMain(const FlightOptions& options) {
  const Jobs jobs = ReadJobs();
  const JobView* const job = jobs.Find(options.pid);
  if (job == nullptr) return NoSuchJob("flight-recorder", options.pid);
  const auto world = std::ranges::max_element(job->communicators, {}, &CommunicatorView::num_ranks);
  std::map<size_t, nlohmann::json> files;
  size_t left_out = 0;
  if (world != job->communicators.end()) {
    const Ranks numbers(*world);
    for (const CommunicatorView& view : job->communicators) {
      if (const auto ranks = numbers.Of(view))
        Add(view, *ranks, &view == &*world, files);
      else
        ++left_out;
    }
  }
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  for (const auto& [rank, file] : files) {
    const auto path = std::filesystem::path(options.folder) / fmt::format("{}{}", kPrefix, rank);
    if (!Write(path, Pickle(file))) return kExitFailure;
  }
  fmt::print("{} files {}/{}N written: torchfrtrace {}\n", files.size(), options.folder, kPrefix,
             options.folder);
  if (left_out > 0)
    fmt::print("{} communicators left out: a process has several ranks, or is not known\n",
               left_out);
  return files.empty() ? kExitFailure : 0;
}

}  // namespace

Subcommand AddFlightRecorder(CLI::App& program) {
  const auto options = std::make_shared<FlightOptions>();
  CLI::App* const app = program.add_subcommand(
      "flight-recorder",
      "Write the last 64 collectives of each rank of a job as files that PyTorch's torchfrtrace "
      "reads");
  app->add_option("JOB", options->pid, "the job's number in `tutti ps`, or a process of the job")
      ->required();
  app->add_option("FOLDER", options->folder, "the folder of the files; made where it is missing")
      ->required();
  return {app, [options] { return FlightMain(*options); }};
}

}  // namespace tutti::tools
