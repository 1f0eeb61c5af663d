// `tutti stat` shows a job of this machine in detail, with rates from two readings.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "observe/picture.h"
#include "observe/rates.h"
#include "observe/readings.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

using observe::CommunicatorView;
using observe::JobView;
using observe::RankView;

struct StatOptions {
  int pid = 0;
  double interval_s = 1;
  bool json = false;
};

void Print(const RankView& one, const CommunicatorView& view, const Rates& rates) {
  if (!one.snapshot) {
    fmt::print("rank {} (pid {}): {}\n", one.rank, one.process.pid, ActivityOf(one, view));
    return;
  }
  const std::vector<std::string> lines = observe::PictureOf(*one.snapshot, view.at_ns);
  fmt::print("{}; the process is {}\n", lines[0], Name(one.life));
  fmt::print(
      "  {:.1f} collectives/s of {:.3f} GB/s, {:.1f} messages/s, waiting for {:.0f} % of the "
      "time\n",
      rates.collectives_per_s, rates.collective_bytes_per_s / 1e9, rates.messages_per_s,
      100 * rates.waiting_share);
  for (size_t i = 1; i < lines.size(); ++i) fmt::print("{}\n", lines[i]);
}

nlohmann::json ToJson(const RankView& one, const CommunicatorView& view, const Rates& rates) {
  nlohmann::json json = tools::ToJson(one, view);
  AddTo(json, rates);
  json["recent"] = nlohmann::json::array();
  if (one.snapshot)
    for (const OpSignature& signature : one.snapshot->recent)
      json["recent"].push_back({{"number", signature.sequence}, {"call", signature.Describe()}});
  return json;
}

int StatMain(const StatOptions& options) {
  const Jobs before = ReadJobs();
  if (before.Find(options.pid) == nullptr) return NoSuchJob("stat", options.pid);
  std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_s));
  const Jobs now = ReadJobs();
  const JobView* const job = now.Find(options.pid);
  if (job == nullptr) return NoSuchJob("stat", options.pid);
  const double seconds = static_cast<double>(now.at_ns - before.at_ns) / 1e9;
  nlohmann::json json = {{"job", job->name}, {"communicators", nlohmann::json::array()}};
  if (!options.json) fmt::print("{}\n", TitleOf(*job));
  for (const CommunicatorView& view : job->communicators) {
    const CommunicatorView earlier = FindCommunicator(before, view.id);
    nlohmann::json shown = tools::ToJson(view);
    for (const RankView& one : view.ranks) {
      const Rates rates = RatesOf(earlier.Find(one.rank), one, seconds);
      if (options.json)
        shown["ranks"].push_back(ToJson(one, view, rates));
      else
        Print(one, view, rates);
    }
    json["communicators"].push_back(std::move(shown));
  }
  if (options.json) fmt::print("{}\n", json.dump(2));
  return 0;
}

}  // namespace

Subcommand AddStat(CLI::App& program) {
  const auto options = std::make_shared<StatOptions>();
  CLI::App* const app = program.add_subcommand(
      "stat", "Show a job of this machine in detail: its last 64 collectives, waits and rates");
  app->add_option("JOB", options->pid, "the job's number in `tutti ps`, or a process of the job")
      ->required();
  app->add_option("--interval", options->interval_s, "seconds between the two readings (default 1)")
      ->check(CLI::Range(0.01, 3600.0));
  app->add_flag("--json", options->json, "print JSON");
  return {app, [options] { return StatMain(*options); }};
}

}  // namespace tutti::tools
