// `tutti doctor` says what holds a job up: the ranks, the operation, since when and why. The job
// may run, hang or have died; nothing of the job is touched.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "observe/readings.h"
#include "observe/verdict.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

using observe::CommunicatorView;
using observe::Finding;
using observe::JobView;
using observe::RankView;
using observe::Verdict;

// A rank of a running job does something between two looks. A pause of a loaded machine is shorter.
constexpr auto kLookEvery = std::chrono::milliseconds(300);

struct DoctorOptions {
  int pid = 0;  // 0: all jobs that live
  double patience_s = 2;
  bool json = false;
};

// Returns advice; empty where there is none to give.
std::string_view RemedyFor(Finding finding) {
  switch (finding) {
    case Finding::kDead:
      return "look for the end of this process in its own output and in dmesg (the kernel ends "
             "processes where memory runs out); ncclCommShrink goes on without the rank";
    case Finding::kOtherSignature:
      return "all ranks must call the same operations in the same order: compare the two calls";
    case Finding::kStopped:
      return "kill -CONT PID, or leave the debugger";
    case Finding::kNeverEntered:
      return "look at what the process does (py-spy dump --pid PID, gdb -p PID)";
    case Finding::kNotLeft:
      return "look at what the process does (py-spy dump --pid PID, gdb -p PID), and at the load "
             "of its processors";
    case Finding::kNotMoved:
      return "look at the network between the ranks; NCCL_DEBUG=INFO tells the ways between them";
    case Finding::kOnlySlow:
      return "look at the load of this rank's processors, and at its share of the work";
    case Finding::kFailed:
    case Finding::kNothingWrong:
      return "";
  }
  return "";
}

// Two readings: what moves between them is well.
struct Pair {
  Jobs earlier;
  Jobs now;
};

bool IsAsked(const JobView& job, int pid) { return pid == 0 ? job.alive : job.HasProcess(pid); }

// Looks until no rank is held up, or one has been for as long as the patience.
Pair Look(const DoctorOptions& options) {
  const auto patience = std::chrono::duration<double>(options.patience_s);
  const auto until = std::chrono::steady_clock::now() + patience;
  Pair pair = {ReadJobs(), {}};
  for (;;) {
    std::this_thread::sleep_for(kLookEvery);
    pair.now = ReadJobs();
    bool held_up = false;
    for (const JobView& job : pair.now.all) {
      if (!IsAsked(job, options.pid)) continue;
      for (const CommunicatorView& one : job.communicators)
        held_up |= observe::AnyHeldUp(FindCommunicator(pair.earlier, one.id), one);
    }
    if (!held_up || std::chrono::steady_clock::now() >= until) return pair;
  }
}

nlohmann::json ToJson(const CommunicatorView& view, const Verdict& verdict) {
  nlohmann::json json = tools::ToJson(view);
  AddTo(json, verdict, view.at_ns);
  for (const RankView& one : view.ranks) json["ranks"].push_back(tools::ToJson(one, view));
  return json;
}

void Print(const CommunicatorView& view, const Verdict& verdict) {
  fmt::print("  {}, {} ranks: {}\n    {}\n", observe::TitleOf(view.name, view.id), view.num_ranks,
             observe::Name(verdict.finding), verdict.sentence);
  if (const std::string_view remedy = RemedyFor(verdict.finding); !remedy.empty())
    fmt::print("    to do: {}\n", remedy);
  if (!verdict.IsTrouble()) return;
  for (const RankView& one : view.ranks) {
    const bool culprit = std::ranges::find(verdict.culprits, one.rank) != verdict.culprits.end();
    fmt::print("    {} rank {:<4} pid {:<8} {:<8} {}\n", culprit ? ">" : " ", one.rank,
               one.process.pid, Name(one.life), ActivityOf(one, view));
  }
}

// Returns whether a communicator of the job is in trouble. Prints the communicators in trouble
// first.
bool Examine(const JobView& job, const Jobs& earlier, const DoctorOptions& options,
             nlohmann::json& all) {
  const auto patience_ns = static_cast<int64_t>(options.patience_s * 1e9);
  std::vector<std::pair<const CommunicatorView*, Verdict>> judged;
  for (const CommunicatorView& view : job.communicators)
    judged.emplace_back(&view,
                        observe::Judge(FindCommunicator(earlier, view.id), view, patience_ns));
  std::stable_partition(judged.begin(), judged.end(),
                        [](const auto& one) { return one.second.IsTrouble(); });
  nlohmann::json json = {{"job", job.name}, {"alive", job.alive}};
  json["communicators"] = nlohmann::json::array();
  if (!options.json) fmt::print("{}\n", TitleOf(job));
  for (const auto& [view, verdict] : judged) {
    if (options.json)
      json["communicators"].push_back(ToJson(*view, verdict));
    else
      Print(*view, verdict);
  }
  all["jobs"].push_back(std::move(json));
  return !judged.empty() && judged.front().second.IsTrouble();
}

int DoctorMain(const DoctorOptions& options) {
  const Pair pair = Look(options);
  if (options.pid != 0 && pair.now.Find(options.pid) == nullptr)
    return NoSuchJob("doctor", options.pid);
  nlohmann::json all = {{"jobs", nlohmann::json::array()}};
  bool trouble = false;
  std::string ended;
  size_t examined = 0;
  for (const JobView& job : pair.now.all) {
    if (!IsAsked(job, options.pid)) {
      if (!job.alive) ended += fmt::format(" {}", job.name);
      continue;
    }
    ++examined;
    trouble |= Examine(job, pair.earlier, options, all);
  }
  if (options.json) {
    fmt::print("{}\n", all.dump(2));
  } else {
    if (examined == 0) fmt::print("no job of this user runs on this machine\n");
    if (options.pid == 0 && !ended.empty())
      fmt::print(
          "jobs that have ended without destroying their communicators:{}; `tutti doctor "
          "JOB` tells about each\n",
          ended);
  }
  return trouble ? kExitFailure : 0;
}

}  // namespace

Subcommand AddDoctor(CLI::App& program) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* const app = program.add_subcommand(
      "doctor", "Say who holds a job up, in which operation, since when and why");
  app->add_option(
      "JOB", options->pid,
      "the job's number in `tutti ps`, or a process of the job (default: all that run)");
  app->add_option("--patience", options->patience_s,
                  "seconds after which a wait counts as trouble (default 2)")
      ->check(CLI::Range(0.1, 86400.0));
  app->add_flag("--json", options->json, "print JSON");
  app->footer("The exit status is 0 for a healthy job, 1 for trouble, 2 for a wrong command line.");
  return {app, [options] { return DoctorMain(*options); }};
}

}  // namespace tutti::tools
