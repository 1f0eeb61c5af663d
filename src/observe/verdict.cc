#include "observe/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace tutti::observe {
namespace {

// A wait writes its word every 20 ms. The word of a running process that is older than this belongs
// to a wait that is over.
constexpr int64_t kFreshNs = 1'000'000'000;

bool Lives(const RankView& one) { return one.snapshot && one.life != Life::kEnded; }

// Returns the wait of the rank's operation, or null.
const WaitSnapshot* WaitOf(const RankView& one, int64_t now_ns) {
  if (!one.snapshot || !one.snapshot->wait) return nullptr;
  const WaitSnapshot& wait = *one.snapshot->wait;
  const bool fresh = one.life != Life::kRunning || now_ns - wait.seen_ns < kFreshNs;
  return fresh ? &wait : nullptr;
}

// Returns whether the rank is in an operation, in a call of all ranks, or being made.
bool IsInside(const RankView& one) {
  const CommunicatorSnapshot& snapshot = *one.snapshot;
  return snapshot.phase == Phase::kBeingMade ||
         (snapshot.phase == Phase::kInOperation && (snapshot.busy() || !snapshot.step.empty()));
}

// Returns since when the rank waits for others; nothing where the rank is not known to wait.
std::optional<int64_t> WaitsSince(const RankView& one, int64_t now_ns) {
  const CommunicatorSnapshot& snapshot = *one.snapshot;
  if (snapshot.phase == Phase::kBeingMade) return snapshot.phase_since_ns;
  if (const WaitSnapshot* const wait = WaitOf(one, now_ns)) return wait->since_ns;
  if (!snapshot.step.empty()) return snapshot.step_since_ns;
  return {};
}

// Returns whether the rank did anything between two readings.
bool Moved(const RankView* before, const RankView& now) {
  if (before == nullptr || !before->snapshot || !now.snapshot) return true;
  const CommunicatorSnapshot &a = *before->snapshot, &b = *now.snapshot;
  return std::tie(a.place_use, a.phase, a.phase_since_ns, a.begun, a.in_collective,
                  a.messages_begun, a.messages_under_way, a.step, a.step_since_ns) !=
         std::tie(b.place_use, b.phase, b.phase_since_ns, b.begun, b.in_collective,
                  b.messages_begun, b.messages_under_way, b.step, b.step_since_ns);
}

// Holds a view and what follows from it for all rules.
class Judgement {
 public:
  Judgement(const CommunicatorView& earlier, const CommunicatorView& now, int64_t patience_ns)
      : earlier_(earlier), view_(now), patience_ns_(patience_ns) {
    for (const RankView& one : view_.ranks) {
      if (!one.snapshot || !IsInside(one) || Moved(earlier.Find(one.rank), one)) continue;
      const std::optional<int64_t> since = WaitsSince(one, view_.at_ns);
      if (!since) continue;
      held_up_.push_back(&one);
      since_ns_ = since_ns_ == 0 ? *since : std::min(since_ns_, *since);
    }
  }

  Verdict Judge() const {
    using Rule = std::optional<Verdict> (Judgement::*)() const;
    static constexpr std::array<Rule, 4> kCertain = {
        &Judgement::FindDeath, &Judgement::FindDifference, &Judgement::FindStopped,
        &Judgement::FindFailure};
    for (const Rule rule : kCertain)
      if (std::optional<Verdict> found = (this->*rule)()) return *std::move(found);
    return JudgeWaits();
  }

  bool any_held_up() const { return !held_up_.empty(); }

 private:
  std::string NameAll(const std::vector<int>& ranks) const {
    return observe::NameAll(ranks, view_.names);
  }
  std::string NameOf(int rank) const { return observe::NameOf(rank, view_.names); }

  Verdict Make(Finding finding, std::vector<int> culprits, std::string sentence) const {
    return {finding, std::move(culprits), std::move(sentence), since_ns_};
  }

  // Returns what the rank did, with what its process does in another communicator.
  std::string Doing(const RankView& one) const {
    if (!one.snapshot) return "gone";
    std::string text = ActivityOf(*one.snapshot);
    if (!one.elsewhere.empty()) text += ", and its process is " + one.elsewhere;
    return text;
  }

  // Names the ranks that are held up, and for how long.
  std::string Waiting() const {
    std::vector<int> ranks;
    for (const RankView* const one : held_up_) ranks.push_back(one->rank);
    return fmt::format("{} {} held up for {}", NameAll(ranks), ranks.size() == 1 ? "is" : "are",
                       Seconds(view_.at_ns - since_ns_));
  }

  std::optional<Verdict> FindDeath() const;
  std::optional<Verdict> FindDifference() const;
  std::optional<Verdict> FindStopped() const;
  std::optional<Verdict> FindFailure() const;
  Verdict JudgeWaits() const;
  Verdict JudgeMoving() const;
  std::optional<Verdict> FindMissingInCall() const;
  std::optional<Verdict> FindBehind() const;
  Verdict FollowWaits(const RankView& from) const;

  const CommunicatorView& earlier_;
  const CommunicatorView& view_;
  const int64_t patience_ns_;
  std::vector<const RankView*> held_up_;
  int64_t since_ns_ = 0;  // the earliest begin of a wait
};

// A rank that knew why the communicator stopped ended for that reason.
std::optional<Verdict> Judgement::FindDeath() const {
  std::vector<int> dead;
  const RankView* told = nullptr;
  for (const RankView& one : view_.ranks) {
    if (one.life != Life::kEnded) continue;
    if (one.snapshot && one.snapshot->phase == Phase::kStopped) continue;
    dead.push_back(one.rank);
    if (told == nullptr && one.snapshot) told = &one;
  }
  if (dead.empty()) return {};
  std::string sentence = fmt::format("{} {} ended without destroying the communicator",
                                     NameAll(dead), dead.size() == 1 ? "has" : "have");
  if (told != nullptr) sentence += fmt::format("; {} was {}", NameOf(told->rank), Doing(*told));
  return Make(Finding::kDead, std::move(dead), std::move(sentence));
}

// Finds the oldest collective in which the ranks differ. The fewer ranks are the culprits. Where no
// call has more ranks than each other call, all of these ranks are.
std::optional<Verdict> Judgement::FindDifference() const {
  std::set<uint64_t> numbers;
  for (const RankView& one : view_.ranks)
    if (one.snapshot)
      for (const OpSignature& signature : one.snapshot->recent) numbers.insert(signature.sequence);
  for (const uint64_t number : numbers) {
    std::vector<std::pair<const OpSignature*, std::vector<int>>> groups;
    for (const RankView& one : view_.ranks) {
      const OpSignature* const mine = one.snapshot ? one.snapshot->Find(number) : nullptr;
      if (mine == nullptr) continue;
      auto same = std::find_if(groups.begin(), groups.end(),
                               [&](const auto& group) { return *group.first == *mine; });
      if (same == groups.end()) same = groups.insert(groups.end(), {mine, {}});
      same->second.push_back(one.rank);
    }
    if (groups.size() < 2) continue;
    std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
      return a.second.size() > b.second.size();
    });
    std::vector<int> culprits;
    const bool tie = groups[0].second.size() == groups[1].second.size();
    for (size_t i = tie ? 0 : 1; i < groups.size(); ++i)
      culprits.insert(culprits.end(), groups[i].second.begin(), groups[i].second.end());
    return Make(Finding::kOtherSignature, std::move(culprits),
                fmt::format("as collective number {}, {} called {}, and {} called {}", number,
                            NameAll(groups[1].second), groups[1].first->Describe(),
                            NameAll(groups[0].second), groups[0].first->Describe()));
  }
  return {};
}

// Where all stand still, nobody is accused.
std::optional<Verdict> Judgement::FindStopped() const {
  std::vector<int> stopped;
  for (const RankView& one : view_.ranks)
    if (one.life == Life::kStopped) stopped.push_back(one.rank);
  if (stopped.empty()) return {};
  if (std::ssize(stopped) == view_.num_ranks)
    return Make(Finding::kStopped, {},
                "the processes of all ranks are stopped; kill -CONT lets them go on");
  const RankView& first = *view_.Find(stopped[0]);
  const std::string who = NameAll(stopped);
  return Make(
      Finding::kStopped, std::move(stopped),
      fmt::format("the process of {} is stopped, {}; kill -CONT lets it go on", who, Doing(first)));
}

std::optional<Verdict> Judgement::FindFailure() const {
  const RankView* first = nullptr;
  for (const RankView& one : view_.ranks) {
    if (!one.snapshot || one.snapshot->phase != Phase::kStopped) continue;
    if (first == nullptr || one.snapshot->phase_since_ns < first->snapshot->phase_since_ns)
      first = &one;
  }
  if (first == nullptr) return {};
  return Make(
      Finding::kFailed, {},
      fmt::format("the communicator stopped on {} {} ago: {}", NameOf(first->rank),
                  Seconds(view_.at_ns - first->snapshot->phase_since_ns), first->snapshot->reason));
}

Verdict Judgement::JudgeWaits() const {
  if (held_up_.empty() || view_.at_ns - since_ns_ < patience_ns_) return JudgeMoving();
  if (std::optional<Verdict> found = FindMissingInCall()) return *std::move(found);
  if (std::optional<Verdict> found = FindBehind()) return *std::move(found);
  return FollowWaits(*held_up_[0]);
}

// Looks for a rank that had waited for long in the earlier reading and has gone on since.
Verdict Judgement::JudgeMoving() const {
  const bool moved = std::any_of(view_.ranks.begin(), view_.ranks.end(), [&](const RankView& one) {
    return Lives(one) && Moved(earlier_.Find(one.rank), one);
  });
  if (const SlowSnapshot* const slow = view_.slow(); moved && slow != nullptr)
    return {Finding::kOnlySlow, slow->ranks,
            "operations go on, but " + Describe(*slow, view_.names), 0};
  int64_t longest_ns = 0;
  const RankView* waited = nullptr;
  for (const RankView& one : earlier_.ranks) {
    const WaitSnapshot* const wait = Lives(one) ? WaitOf(one, earlier_.at_ns) : nullptr;
    if (wait == nullptr || earlier_.at_ns - wait->since_ns <= longest_ns) continue;
    longest_ns = earlier_.at_ns - wait->since_ns;
    waited = &one;
  }
  if (waited != nullptr && longest_ns >= patience_ns_) {
    const std::vector<int>& ranks = waited->snapshot->wait->ranks;
    return {Finding::kOnlySlow, ranks,
            fmt::format("operations go on, but {} had waited {} for {}", NameOf(waited->rank),
                        Seconds(longest_ns), NameAll(ranks)),
            0};
  }
  const bool on_gpus = std::any_of(view_.ranks.begin(), view_.ranks.end(), [](const RankView& one) {
    return one.snapshot && one.snapshot->cuda_device >= 0;
  });
  return {Finding::kNothingWrong,
          {},
          on_gpus ? "nothing is wrong with the launches; the board does not show kernels"
                  : "nothing is wrong: no rank is held up",
          0};
}

// Ranks wait in a call that all ranks make together, or for the communicator to be made.
std::optional<Verdict> Judgement::FindMissingInCall() const {
  const RankView* inside = nullptr;
  for (const RankView* const one : held_up_) {
    const bool joint = WaitOf(*one, view_.at_ns) == nullptr;
    if (joint && inside == nullptr) inside = one;
  }
  if (inside == nullptr) return {};
  const auto in_same = [&](const CommunicatorSnapshot& one) {
    return one.phase == inside->snapshot->phase && one.step == inside->snapshot->step;
  };
  std::vector<int> outside, unseen;
  for (int rank = 0; rank < view_.num_ranks; ++rank) {
    const RankView* const one = view_.Find(rank);
    if (one == nullptr)
      unseen.push_back(rank);
    else if (one->snapshot && !in_same(*one->snapshot))
      outside.push_back(rank);
  }
  const std::string call = inside->snapshot->phase == Phase::kBeingMade
                               ? "ncclCommInitRank or the call that makes the communicator"
                               : fmt::format("the call \"{}\"", inside->snapshot->step);
  if (!outside.empty()) {
    const std::string doing = Doing(*view_.Find(outside[0]));
    std::string sentence = fmt::format("{} {} not entered {}, where {}; {} is {}", NameAll(outside),
                                       outside.size() == 1 ? "has" : "have", call, Waiting(),
                                       NameOf(outside[0]), doing);
    return Make(Finding::kNeverEntered, std::move(outside), std::move(sentence));
  }
  if (!unseen.empty()) {
    std::string sentence =
        fmt::format("{} cannot be seen on this machine and may not have entered {}, where {}",
                    NameAll(unseen), call, Waiting());
    return Make(Finding::kNeverEntered, std::move(unseen), std::move(sentence));
  }
  return Make(Finding::kNotMoved, {},
              fmt::format("all ranks are in {}, and wait for one another: {}", call, Waiting()));
}

// Ranks wait in a collective: the ranks with the lowest number hold them up.
std::optional<Verdict> Judgement::FindBehind() const {
  uint64_t highest = 0, lowest = UINT64_MAX;
  const RankView* ahead = nullptr;
  for (const RankView* const one : held_up_) {
    if (!one->snapshot->in_collective || one->snapshot->begun < highest) continue;
    highest = one->snapshot->begun;
    ahead = one;
  }
  if (ahead == nullptr) return {};
  for (const RankView& one : view_.ranks)
    if (one.snapshot) lowest = std::min(lowest, one.snapshot->begun);
  std::vector<int> behind;  // the ranks with the lowest number, if some ranks are ahead of them
  std::vector<int> inside;  // the ranks in the collective, if some ranks have left it
  for (const RankView& one : view_.ranks) {
    if (!one.snapshot) continue;
    if (one.snapshot->begun == lowest && lowest < highest) behind.push_back(one.rank);
    if (one.snapshot->begun == highest && one.snapshot->in_collective) inside.push_back(one.rank);
  }
  const OpSignature* const signature = ahead->snapshot->Find(highest);
  const std::string operation =
      fmt::format("collective number {}{}", highest,
                  signature != nullptr ? ", " + signature->Describe() : std::string());
  if (!behind.empty()) {
    const RankView& first = *view_.Find(behind[0]);
    // A rank behind that waits itself, for messages of a third rank, is not the reason.
    const bool in_messages = first.snapshot->messages_under_way > 0;
    if (in_messages && WaitOf(first, view_.at_ns) != nullptr) return FollowWaits(first);
    const bool entered = first.snapshot->in_collective;
    std::string sentence = fmt::format(
        "{} {} not {} {}, and {}; {} is {}", NameAll(behind), behind.size() == 1 ? "has" : "have",
        entered ? fmt::format("left collective number {} for", lowest) : "entered", operation,
        Waiting(), NameOf(first.rank), Doing(first));
    return Make(entered ? Finding::kNotLeft : Finding::kNeverEntered, std::move(behind),
                std::move(sentence));
  }
  const bool all_here = std::ssize(view_.ranks) == view_.num_ranks;
  if (all_here && std::ssize(inside) < view_.num_ranks) {
    std::string sentence =
        fmt::format("all ranks have entered {}, but {} {} not left: {}", operation, NameAll(inside),
                    inside.size() == 1 ? "has" : "have", Waiting());
    return Make(Finding::kNotLeft, std::move(inside), std::move(sentence));
  }
  return {};
}

// Follows the waits from rank to rank, to a rank that does not wait, is on another machine, or
// closes a circle.
Verdict Judgement::FollowWaits(const RankView& from) const {
  const RankView* at = &from;
  std::set<int> seen;
  while (seen.insert(at->rank).second) {
    const WaitSnapshot* const wait = WaitOf(*at, view_.at_ns);
    if (wait == nullptr) {
      return Make(at->snapshot && IsInside(*at) ? Finding::kNotLeft : Finding::kNeverEntered,
                  {at->rank},
                  fmt::format("{} waits for no rank and holds the others up, {}: {}",
                              NameOf(at->rank), Doing(*at), Waiting()));
    }
    const int next = wait->ranks[0];
    const RankView* const there = view_.Find(next);
    if (there == nullptr) {
      return Make(Finding::kNotMoved, {next},
                  fmt::format("{} waits for {}, which has no board here: run `tutti doctor` on the "
                              "host of this rank; {}",
                              NameOf(at->rank), NameOf(next), Waiting()));
    }
    at = there;
  }
  return Make(Finding::kNotMoved, {},
              fmt::format("data do not move: {} waits in a circle that comes back to it, {}; {}",
                          NameOf(at->rank), Doing(*at), Waiting()));
}

}  // namespace

std::string_view Name(Finding finding) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "nothing-wrong", "only-slow",     "dead",     "other-signature", "stopped",
      "failed",        "never-entered", "not-left", "not-moved"};
  return kNames[static_cast<size_t>(finding)];
}

Verdict Judge(const CommunicatorView& earlier, const CommunicatorView& now, int64_t patience_ns) {
  return Judgement(earlier, now, patience_ns).Judge();
}

bool AnyHeldUp(const CommunicatorView& earlier, const CommunicatorView& now) {
  return Judgement(earlier, now, 0).any_held_up();
}

}  // namespace tutti::observe
