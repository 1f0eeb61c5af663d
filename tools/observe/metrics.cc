#include "observe/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <set>
#include <vector>

namespace tutti::tools {
namespace {

using observe::CommunicatorSnapshot;
using observe::CommunicatorView;
using observe::JobView;
using observe::RankView;

// The metrics, in the order of the text. The names of the constants are the places in the table.
enum Place : size_t {
  kCollectives,
  kMessages,
  kJobs,
  kProcesses,
  kDone,
  kMeanBytes,
  kWaited,
  kWaiting,
  kBehind,
  kStopped,
  kSlowShare,
  kSlowSeconds,
  kNumPlaces
};

constexpr std::array<Metric, kNumPlaces> kMetrics = {{
    {"tutti_collectives_total", "counter", "Collectives that a rank has begun, by kind."},
    {"tutti_messages_total", "counter", "Sends and receives that a rank has finished."},
    {"tutti_jobs", "gauge", "Jobs of this user with living processes on this machine."},
    {"tutti_processes", "gauge", "Processes of a job on this machine, by state."},
    {"tutti_collectives_done_total", "counter",
     "Collectives that a rank has finished, on GPUs launched."},
    {"tutti_collective_mean_bytes", "gauge",
     "Mean length of the last 64 collectives of a rank: elements of a call times their size."},
    {"tutti_collective_waited_seconds_total", "counter",
     "Time for which the collectives that a rank has finished waited for other ranks."},
    {"tutti_waiting_seconds", "gauge",
     "Age of the present wait of a rank's operation for other ranks; 0 without a wait."},
    {"tutti_collectives_behind", "gauge",
     "Collectives that a rank has begun fewer than the furthest rank on this machine."},
    {"tutti_communicator_stopped", "gauge",
     "1 where the library has stopped the communicator on a rank, otherwise 0."},
    {"tutti_slow_rank_share", "gauge",
     "Part of the time for which the other ranks wait for a slow rank; missing for other ranks."},
    {"tutti_slow_rank_seconds_per_collective", "gauge",
     "Time for which the other ranks wait for a slow rank in each collective."},
}};

// Returns a text as the value of a label.
std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string Label(std::string_view name, std::string_view value) {
  return fmt::format("{}{}=\"{}\"", name == "version" ? "" : ",", name, Escaped(value));
}

// Collects samples by metric.
class Samples {
 public:
  void Add(Place place, std::string_view labels, double value) {
    fmt::format_to(std::back_inserter(texts_[place]), "{}{{{}}} {}\n", kMetrics[place].name, labels,
                   value);
  }
  // Returns the samples, each metric with its type, as the format wants.
  std::string Text() const {
    std::string text;
    for (size_t i = 0; i < kNumPlaces; ++i) {
      if (texts_[i].empty()) continue;
      const Metric& metric = kMetrics[i];
      fmt::format_to(std::back_inserter(text), "# HELP {} {}\n# TYPE {} {}\n{}", metric.name,
                     metric.help, metric.name, metric.type, texts_[i]);
    }
    return text;
  }

 private:
  std::array<std::string, kNumPlaces> texts_;
};

// Returns the labels that NCCL Inspector's exporter gives a rank, and then the labels that tell two
// ranks apart.
std::string LabelsOf(const JobView& job, const CommunicatorView& view, const RankView& one,
                     std::string_view slurm_job_id) {
  std::set<std::string_view> hosts;
  for (const observe::RankName& name : view.names) hosts.insert(name.host);
  const int device = one.snapshot->cuda_device;
  const auto process =
      std::ranges::find(job.processes, one.process, &observe::ProcessSnapshot::key);
  const std::string node = process == job.processes.end() ? "" : process->board.host;
  return Label("version", "tutti") +
         Label("slurm_job_id", slurm_job_id.empty() ? "unknown" : slurm_job_id) +
         Label("node", node) + Label("gpu", device < 0 ? "none" : fmt::format("GPU{}", device)) +
         Label("comm_name", view.name.empty() ? "unknown" : view.name) +
         Label("n_nodes", fmt::format("{}", std::max<size_t>(hosts.size(), 1))) +
         Label("nranks", fmt::format("{}", view.num_ranks)) +
         Label("comm_id", fmt::format("{:016x}", view.id)) +
         Label("job_pid", fmt::format("{}", job.name)) +
         Label("rank", fmt::format("{}", one.rank)) +
         Label("pid", fmt::format("{}", one.process.pid));
}

double MeanBytes(const CommunicatorSnapshot& one) {
  double bytes = 0;
  for (const OpSignature& call : one.recent)
    bytes += static_cast<double>(call.count) * static_cast<double>(SizeOf(call.type));
  return one.recent.empty() ? 0 : bytes / static_cast<double>(one.recent.size());
}

void AddRank(const CommunicatorView& view, const RankView& one, const std::string& labels,
             Samples& samples) {
  const CommunicatorSnapshot& rank = *one.snapshot;
  for (int i = 0; i < kNumCollectives; ++i) {
    const uint64_t begun = rank.begun_of[static_cast<size_t>(i)];
    const std::string kind = Label("collective", Name(static_cast<Collective>(i)));
    if (begun > 0) samples.Add(kCollectives, labels + kind, static_cast<double>(begun));
  }
  samples.Add(kMessages, labels, static_cast<double>(rank.messages_done()));
  samples.Add(kDone, labels, static_cast<double>(rank.done()));
  samples.Add(kMeanBytes, labels, MeanBytes(rank));
  samples.Add(kWaited, labels, static_cast<double>(rank.waited_ns) / 1e9);
  const int64_t waits_ns = rank.wait ? view.at_ns - rank.wait->since_ns : 0;
  samples.Add(kWaiting, labels, static_cast<double>(std::max<int64_t>(waits_ns, 0)) / 1e9);
  samples.Add(kBehind, labels, static_cast<double>(view.Behind(one)));
  samples.Add(kStopped, labels, rank.phase == observe::Phase::kStopped ? 1 : 0);
  const observe::SlowSnapshot* const slow = view.slow();
  if (slow == nullptr || std::ranges::find(slow->ranks, one.rank) == slow->ranks.end()) return;
  samples.Add(kSlowShare, labels, slow->share);
  samples.Add(kSlowSeconds, labels, static_cast<double>(slow->per_collective_ns) / 1e9);
}

void AddJob(const JobView& job, std::string_view slurm_job_id, Samples& samples) {
  for (const observe::Life life : {observe::Life::kRunning, observe::Life::kStopped,
                                   observe::Life::kEnded, observe::Life::kUnknown}) {
    const auto count = std::ranges::count(job.processes, life, &observe::ProcessSnapshot::life);
    const std::string labels =
        Label("version", "tutti") + Label("job_pid", fmt::format("{}", job.name)) +
        Label("program", job.processes[0].board.program) + Label("state", Name(life));
    samples.Add(kProcesses, labels, static_cast<double>(count));
  }
  for (const CommunicatorView& view : job.communicators)
    for (const RankView& one : view.ranks)
      if (one.snapshot) AddRank(view, one, LabelsOf(job, view, one, slurm_job_id), samples);
}

}  // namespace

std::span<const Metric> AllMetrics() { return kMetrics; }

std::string MetricsText(const Jobs& jobs, std::string_view slurm_job_id) {
  Samples samples;
  int alive = 0;
  for (const JobView& job : jobs.all) {
    if (!job.alive) continue;
    ++alive;
    AddJob(job, slurm_job_id, samples);
  }
  samples.Add(kJobs, Label("version", "tutti"), alive);
  return samples.Text();
}

}  // namespace tutti::tools
