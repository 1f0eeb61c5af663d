#include "observe/readings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "config/settings.h"
#include "observe/folder.h"
#include "subcommands.h"

namespace tutti::tools {

using observe::CommunicatorSnapshot;
using observe::CommunicatorView;
using observe::JobView;
using observe::Life;
using observe::Phase;
using observe::RankView;
using observe::Seconds;

const JobView* Jobs::Find(int pid) const {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const JobView& job) { return job.HasProcess(pid); });
  return found == all.end() ? nullptr : &*found;
}

Jobs ReadJobs() {
  const Environment environment = ProcessVariables();
  const char* const given = environment("TUTTI_OBSERVE_DIR");
  const observe::Reading reading =
      observe::ReadBoards(observe::FoldersOfBoards(given != nullptr ? given : "", environment));
  return {reading.at_ns, observe::FindJobs(reading, observe::HasProcess)};
}

CommunicatorView FindCommunicator(const Jobs& jobs, uint64_t id) {
  for (const JobView& job : jobs.all)
    for (const CommunicatorView& one : job.communicators)
      if (one.id == id) return one;
  return {};
}

std::string_view Name(Life life) {
  switch (life) {
    case Life::kRunning:
      return "running";
    case Life::kStopped:
      return "stopped";
    case Life::kEnded:
      return "ended";
    case Life::kUnknown:
      return "unknown";
  }
  return "";
}

std::string TitleOf(const JobView& job) {
  return fmt::format("job {} ({}), {} process{} on this machine{}", job.name,
                     job.processes[0].board.program, job.processes.size(),
                     job.processes.size() == 1 ? "" : "es",
                     job.alive ? "" : ", ended without destroying its communicators");
}

std::string ActivityOf(const RankView& one, const CommunicatorView& view) {
  if (!one.snapshot) return "ended; left no board";
  const CommunicatorSnapshot& snapshot = *one.snapshot;
  if (snapshot.phase == Phase::kStopped) return "stopped: " + snapshot.reason;
  std::string text = observe::ActivityOf(snapshot);
  const bool ended = one.life == Life::kEnded;  // Its times have ended with it.
  if (snapshot.wait) {
    text += fmt::format(", waits for {}", observe::NameAll(snapshot.wait->ranks, view.names));
    if (!ended) text += " for " + Seconds(view.at_ns - snapshot.wait->since_ns);
  } else if (!snapshot.step.empty() && !ended) {
    text += " for " + Seconds(view.at_ns - snapshot.step_since_ns);
  } else if (snapshot.phase == Phase::kBeingMade && !ended) {
    text += " for " + Seconds(view.at_ns - snapshot.phase_since_ns);
  }
  return text;
}

nlohmann::json ToJson(const RankView& one, const CommunicatorView& view) {
  nlohmann::json json = {{"rank", one.rank},
                         {"pid", one.process.pid},
                         {"process", Name(one.life)},
                         {"activity", ActivityOf(one, view)}};
  if (!one.snapshot) return json;
  const CommunicatorSnapshot& snapshot = *one.snapshot;
  json["device"] = snapshot.cuda_device;
  json["phase"] = snapshot.phase == Phase::kBeingMade     ? "being-made"
                  : snapshot.phase == Phase::kInOperation ? "in-operation"
                                                          : "stopped";
  json["collectives_begun"] = snapshot.begun;
  json["collectives_done"] = snapshot.done();
  json["messages_begun"] = snapshot.messages_begun;
  json["messages_done"] = snapshot.messages_done();
  if (const OpSignature* const last = snapshot.Find(snapshot.begun))
    json["last_collective"] = last->Describe();
  if (!snapshot.reason.empty()) json["reason"] = snapshot.reason;
  if (!snapshot.step.empty()) json["step"] = snapshot.step;
  json["waited_s"] = static_cast<double>(snapshot.waited_ns) / 1e9;
  if (snapshot.wait) {
    json["waits_for"] = snapshot.wait->ranks;
    json["waits_s"] = static_cast<double>(view.at_ns - snapshot.wait->since_ns) / 1e9;
  }
  return json;
}

nlohmann::json ToJson(const CommunicatorView& view) {
  nlohmann::json json = {{"id", fmt::format("{:016x}", view.id)},
                         {"name", view.name},
                         {"num_ranks", view.num_ranks},
                         {"ranks_here", view.ranks.size()}};
  if (const observe::SlowSnapshot* const slow = view.slow())
    json["slow"] = {{"ranks", slow->ranks},
                    {"since_s", static_cast<double>(view.at_ns - slow->since_ns) / 1e9},
                    {"share", slow->share},
                    {"ms_per_collective", static_cast<double>(slow->per_collective_ns) / 1e6}};
  return json;
}

void AddTo(nlohmann::json& json, const observe::Verdict& verdict, int64_t at_ns) {
  json["finding"] = observe::Name(verdict.finding);
  json["culprits"] = verdict.culprits;
  json["sentence"] = verdict.sentence;
  if (verdict.since_ns != 0)
    json["held_up_s"] = static_cast<double>(at_ns - verdict.since_ns) / 1e9;
}

void AddTo(nlohmann::json& json, const Rates& rates) {
  json["collectives_per_s"] = rates.collectives_per_s;
  json["messages_per_s"] = rates.messages_per_s;
  json["collective_bytes_per_s"] = rates.collective_bytes_per_s;
  json["waiting_share"] = rates.waiting_share;
}

int NoSuchJob(std::string_view subcommand, int pid) {
  fmt::print(stderr, "tutti {}: process {} has no communicators; `tutti ps` lists the jobs\n",
             subcommand, pid);
  return kExitUsage;
}

}  // namespace tutti::tools
