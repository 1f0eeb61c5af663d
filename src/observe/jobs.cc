#include "observe/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace tutti::observe {
namespace {

// Ranks that have not met know no identity of their communicator but that of the meeting.
uint64_t KeyOf(const CommunicatorSnapshot& one) { return one.id != 0 ? one.id : one.meeting; }

// Returns the meeting of a rank that can still meet others; else 0. A meeting place that a setting
// names is the same for a job and for its dead predecessor.
uint64_t MeetingOf(const ProcessSnapshot& process, const CommunicatorSnapshot& one) {
  return process.life == Life::kEnded && one.id != 0 ? 0 : one.meeting;
}

// Returns the sets of processes that share communicators, as indexes.
std::vector<std::vector<size_t>> SetsOf(const std::vector<ProcessSnapshot>& processes) {
  std::vector<size_t> leader(processes.size());
  std::iota(leader.begin(), leader.end(), size_t{0});
  const auto find = [&](size_t at) {
    while (leader[at] != at) at = leader[at] = leader[leader[at]];
    return at;
  };
  std::map<uint64_t, size_t> first;
  for (size_t i = 0; i < processes.size(); ++i) {
    for (const CommunicatorSnapshot& one : processes[i].board.communicators) {
      for (const uint64_t key : {one.id, MeetingOf(processes[i], one)}) {
        if (key == 0) continue;
        const auto [at, is_new] = first.try_emplace(key, i);
        if (!is_new) leader[find(i)] = find(at->second);
      }
    }
  }
  std::map<size_t, std::vector<size_t>> sets;
  for (size_t i = 0; i < processes.size(); ++i) sets[find(i)].push_back(i);
  std::vector<std::vector<size_t>> out;
  for (auto& [at, set] : sets) out.push_back(std::move(set));
  return out;
}

std::string ElsewhereOf(const ProcessSnapshot& process, const CommunicatorSnapshot& here) {
  for (const CommunicatorSnapshot& one : process.board.communicators) {
    const bool waits = one.busy() || !one.step.empty() || one.phase == Phase::kBeingMade;
    if (KeyOf(one) != KeyOf(here) && waits && one.phase != Phase::kStopped)
      return fmt::format("{} of {}", ActivityOf(one), TitleOf(one.name, KeyOf(one)));
  }
  return {};
}

// Adds the ranks of this host whose processes are gone without a board.
void AddGone(CommunicatorView& view, const std::function<bool(int)>& has_process) {
  const auto knows = std::find_if(view.ranks.begin(), view.ranks.end(), [](const RankView& one) {
    return one.life != Life::kUnknown && one.snapshot && !one.snapshot->names.empty();
  });
  if (knows == view.ranks.end()) return;
  const auto here = static_cast<size_t>(knows->rank);
  if (here >= view.names.size()) return;
  std::vector<RankView> gone;
  for (size_t rank = 0; rank < view.names.size(); ++rank) {
    const RankName& name = view.names[rank];
    if (name.pid == 0 || name.host != view.names[here].host) continue;
    if (view.Find(static_cast<int>(rank)) == nullptr && !has_process(name.pid))
      gone.push_back({.rank = static_cast<int>(rank),
                      .process = {.pid = name.pid},
                      .life = Life::kEnded,
                      .snapshot = {},
                      .elsewhere = {}});
  }
  view.ranks.insert(view.ranks.end(), gone.begin(), gone.end());
}

// Several boards can hold the same rank: of a rank that has ended, and of its successor at the
// same meeting place. The living one counts.
void KeepOneOfEachRank(std::vector<RankView>& ranks) {
  std::stable_sort(ranks.begin(), ranks.end(), [](const RankView& a, const RankView& b) {
    return std::pair(a.rank, a.life == Life::kEnded) < std::pair(b.rank, b.life == Life::kEnded);
  });
  const auto same = [](const RankView& a, const RankView& b) { return a.rank == b.rank; };
  ranks.erase(std::unique(ranks.begin(), ranks.end(), same), ranks.end());
}

std::vector<CommunicatorView> ViewsOf(const JobView& job, int64_t at_ns,
                                      const std::function<bool(int)>& has_process) {
  std::map<uint64_t, CommunicatorView> views;
  std::map<uint64_t, uint64_t> met;  // the ids of communicators, by their meetings
  for (const ProcessSnapshot& process : job.processes)
    for (const CommunicatorSnapshot& one : process.board.communicators)
      if (const uint64_t meeting = MeetingOf(process, one); one.id != 0 && meeting != 0)
        met[meeting] = one.id;
  for (const ProcessSnapshot& process : job.processes) {
    for (const CommunicatorSnapshot& one : process.board.communicators) {
      uint64_t key = KeyOf(one);
      if (const auto found = met.find(one.meeting); one.id == 0 && found != met.end())
        key = found->second;
      CommunicatorView& view = views[key];
      view.id = key;
      view.at_ns = at_ns;
      view.num_ranks = one.num_ranks;
      if (view.name.empty()) view.name = one.name;
      if (one.names.size() > view.names.size()) view.names = one.names;
      view.ranks.push_back({.rank = one.rank,
                            .process = process.key,
                            .life = process.life,
                            .snapshot = one,
                            .elsewhere = ElsewhereOf(process, one)});
    }
  }
  std::vector<CommunicatorView> out;
  for (auto& [key, view] : views) {
    // A rank that has not met the others is known by its process alone.
    for (const RankView& one : view.ranks) {
      const auto at = static_cast<size_t>(one.rank);
      if (view.names.size() <= at && at < RankNames::kMostRanks) view.names.resize(at + 1);
      if (at < view.names.size() && view.names[at].pid == 0) view.names[at].pid = one.process.pid;
    }
    AddGone(view, has_process);
    KeepOneOfEachRank(view.ranks);
    out.push_back(std::move(view));
  }
  return out;
}

}  // namespace

const SlowSnapshot* CommunicatorView::slow() const {
  for (const RankView& one : ranks)
    if (one.life != Life::kEnded && one.snapshot && one.snapshot->slow) return &*one.snapshot->slow;
  return nullptr;
}

uint64_t CommunicatorView::Behind(const RankView& one) const {
  if (!one.snapshot) return 0;
  uint64_t highest = 0;
  for (const RankView& other : ranks)
    if (other.snapshot) highest = std::max(highest, other.snapshot->begun);
  return highest - one.snapshot->begun;
}

const RankView* CommunicatorView::Find(int rank) const {
  const auto found = std::find_if(ranks.begin(), ranks.end(),
                                  [&](const RankView& one) { return one.rank == rank; });
  return found == ranks.end() ? nullptr : &*found;
}

bool JobView::HasProcess(int pid) const {
  return std::any_of(processes.begin(), processes.end(),
                     [&](const ProcessSnapshot& one) { return one.key.pid == pid; });
}

std::vector<JobView> FindJobs(const Reading& reading, const std::function<bool(int)>& has_process) {
  std::vector<JobView> jobs;
  for (const std::vector<size_t>& set : SetsOf(reading.processes)) {
    JobView job;
    for (const size_t at : set) job.processes.push_back(reading.processes[at]);
    std::sort(
        job.processes.begin(), job.processes.end(),
        [](const ProcessSnapshot& a, const ProcessSnapshot& b) { return a.key.pid < b.key.pid; });
    job.name = job.processes[0].key.pid;
    job.alive = std::any_of(job.processes.begin(), job.processes.end(),
                            [](const ProcessSnapshot& one) { return one.life != Life::kEnded; });
    job.communicators = ViewsOf(job, reading.at_ns, has_process);
    jobs.push_back(std::move(job));
  }
  std::stable_sort(jobs.begin(), jobs.end(), [](const JobView& a, const JobView& b) {
    return std::pair(!a.alive, a.name) < std::pair(!b.alive, b.name);
  });
  return jobs;
}

}  // namespace tutti::observe
