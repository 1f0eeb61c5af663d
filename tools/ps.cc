// `tutti ps` lists this user's jobs on this machine, their communicators, and the present activity
// of every rank.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "observe/readings.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

using observe::CommunicatorView;
using observe::JobView;
using observe::ProcessSnapshot;
using observe::RankView;

// A job that has ended is shown by its title alone; `tutti doctor` tells more.
void PrintJob(const JobView& job) {
  fmt::print("{}\n", TitleOf(job));
  if (!job.alive) return;
  for (const ProcessSnapshot& process : job.processes) {
    if (!process.trouble.empty())
      fmt::print("  process {}: {}\n", process.key.pid, process.trouble);
    else if (process.board.num_hidden > 0)
      fmt::print("  process {}: further {} communicators are not shown\n", process.key.pid,
                 process.board.num_hidden);
  }
  for (const CommunicatorView& view : job.communicators) {
    fmt::print("  {}, {} of {} ranks here\n", observe::TitleOf(view.name, view.id),
               view.ranks.size(), view.num_ranks);
    for (const RankView& one : view.ranks)
      fmt::print("    rank {:<4} pid {:<8} {:<8} {}\n", one.rank, one.process.pid, Name(one.life),
                 ActivityOf(one, view));
  }
}

nlohmann::json ToJson(const JobView& job) {
  nlohmann::json json = {{"job", job.name}, {"alive", job.alive}};
  json["processes"] = nlohmann::json::array();
  for (const ProcessSnapshot& process : job.processes) {
    nlohmann::json one = {{"pid", process.key.pid},
                          {"process", Name(process.life)},
                          {"host", process.board.host},
                          {"program", process.board.program},
                          {"communicators_not_shown", process.board.num_hidden}};
    if (!process.trouble.empty()) one["trouble"] = process.trouble;
    json["processes"].push_back(std::move(one));
  }
  json["communicators"] = nlohmann::json::array();
  for (const CommunicatorView& view : job.communicators) {
    nlohmann::json one = tools::ToJson(view);
    for (const RankView& rank : view.ranks) one["ranks"].push_back(tools::ToJson(rank, view));
    json["communicators"].push_back(std::move(one));
  }
  return json;
}

int PsMain(bool as_json) {
  const Jobs jobs = ReadJobs();
  if (as_json) {
    nlohmann::json all = {{"jobs", nlohmann::json::array()}};
    for (const JobView& job : jobs.all) all["jobs"].push_back(ToJson(job));
    fmt::print("{}\n", all.dump(2));
    return 0;
  }
  if (jobs.all.empty()) fmt::print("no job of this user has communicators on this machine\n");
  for (const JobView& job : jobs.all) PrintJob(job);
  return 0;
}

}  // namespace

Subcommand AddPs(CLI::App& program) {
  const auto as_json = std::make_shared<bool>(false);
  CLI::App* const app = program.add_subcommand(
      "ps", "List your jobs on this machine and what each rank does at the moment");
  app->add_flag("--json", *as_json, "print JSON");
  return {app, [as_json] { return PsMain(*as_json); }};
}

}  // namespace tutti::tools
