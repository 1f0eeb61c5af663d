#include "coordinator/set_mismatch_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/log.h"

namespace tutti::coordinator {
namespace {

// Gaps between checks of a rank that remains stuck double up to this many ticks.
constexpr int64_t kLongestGapTicks = 64;

bool IsPowerOfTwo(int64_t n) { return (n & (n - 1)) == 0; }

// Returns whether all threads that ever asked, and live, are blocked.
bool AllBlocked(const std::set<pid_t>& askers, const std::set<pid_t>& blocked) {
  return std::all_of(askers.begin(), askers.end(), [&](pid_t thread) {
    return blocked.count(thread) > 0 || !ThreadLives(thread);
  });
}

}  // namespace

// Looks into the sets one after another. A change meanwhile shows as a difference between two
// statements of this rank, which then prove nothing.
SetMismatchWatch::Look SetMismatchWatch::LookNow() const {
  Look look;
  std::set<pid_t> askers, blocked;
  bool elsewhere = false;  // some thread waits for something that no other rank can bring
  for (const auto& set : sets_()) {
    const ProcessSet::Waits waits = set->waits();
    RankSet members;
    for (const int rank : set->members()) members.Add(rank);
    for (const auto& tensor : waits.tensors) {
      SetWaits::Place& place = look.waits.places[tensor.name][set->id()];
      place.members = members;
      place.have.Add(rank_);
      place.round = waits.round;
      if (tensor.blocked) place.blocked.Add(rank_);
      if (tensor.late) place.late.Add(rank_);
      if (tensor.overdue) place.overdue.Add(rank_);
      look.tensors[{set->id(), tensor.name}] = {tensor.order, tensor.blocked};
      if (tensor.blocked && set->id() != 0) look.in_other_set = true;
    }
    askers.insert(waits.askers.begin(), waits.askers.end());
    blocked.insert(waits.blocked.begin(), waits.blocked.end());
    elsewhere = elsewhere || waits.others;
  }
  look.stuck = !blocked.empty() && !elsewhere && AllBlocked(askers, blocked);
  if (look.stuck) look.waits.stuck.Add(rank_);
  return look;
}

// Removes everything from the statement that a conclusion could rest on.
void SetMismatchWatch::Look::ProveNothing() {
  stuck = false;
  waits.stuck = RankSet();
  for (auto& [name, places] : waits.places) {
    for (auto& [set, place] : places) place.late = place.overdue = RankSet();
  }
}

SetWaits SetMismatchWatch::CollectWaits() {
  // A rank that has yet to decide a check may be about to fail tensors that seem to wait.
  bool behind = false;
  {
    const MutexLock lock(mutex_);
    behind = said_++ > decided_;
  }
  if (!others_()) return {};
  Look look = LookNow();
  if (behind) look.ProveNothing();
  const MutexLock lock(mutex_);
  if (look.SameAs(last_said_)) look.waits.same.Add(rank_);
  last_said_ = look;
  return look.waits;
}

void SetMismatchWatch::Decide(const SetWaits& waits) {
  uint64_t check = 0;
  {
    const MutexLock lock(mutex_);
    check = decided_ + 1;
  }
  for (const SetMismatch& mismatch : FindSetMismatches(waits)) {
    switch (mismatch.outcome) {
      case SetMismatch::Outcome::kPossible:
        Warn(mismatch);
        break;
      case SetMismatch::Outcome::kUnproven: {
        const MutexLock lock(mutex_);
        recheck_ = true;
        break;
      }
      case SetMismatch::Outcome::kMistake:
        AddPendingFailure(mismatch, check);
        break;
    }
  }
  // The sets are told in this order, because a thread that sees this check decided must find all
  // sets told.
  for (const auto& set : sets_()) set->Decided(check);
  const MutexLock lock(mutex_);
  decided_ = check;
}

void SetMismatchWatch::AddPendingFailure(const SetMismatch& mismatch, uint64_t check) {
  for (const auto& set : sets_()) {
    const auto found = mismatch.sets.find(set->id());
    if (found == mismatch.sets.end()) continue;
    const SetWaits::Place& place = found->second;
    set->AddPendingFailure(mismatch.name, {check, place.have, mismatch.sentence}, place.round);
  }
}

// Warns once a window.
void SetMismatchWatch::Warn(const SetMismatch& mismatch) {
  const int64_t now_ns = NowNs();
  const auto window_ns = static_cast<int64_t>(window_s_ * 0.9e9);
  {
    const MutexLock lock(mutex_);
    std::erase_if(warned_ns_,
                  [&](const auto& warned) { return now_ns - warned.second > window_ns; });
    if (!warned_ns_.emplace(mismatch.name, now_ns).second) return;
  }
  TUTTI_WARN("{} They have waited for more than {} s.", mismatch.sentence, window_s_);
}

// Returns whether this rank has been stuck, in a set apart from the set of all ranks, for a tick,
// or two, or four, ...
bool SetMismatchWatch::Suspects() {
  const auto sets = sets_();
  const bool may_be = std::any_of(sets.begin(), sets.end(), [](const auto& set) {
    return set->id() != 0 && set->MayBeStuck();
  });
  Look look;
  if (may_be) look = LookNow();
  const MutexLock lock(mutex_);
  const bool same = look.SameAs(last_tick_);
  last_tick_ = std::move(look);
  ticks_ = same && last_tick_.stuck && last_tick_.in_other_set ? ticks_ + 1 : 0;
  return ticks_ > 0 && (IsPowerOfTwo(ticks_) || ticks_ % kLongestGapTicks == 0);
}

// Checks run in the set of all ranks, because the ranks concerned may share no smaller set.
void SetMismatchWatch::Tick(bool due) {
  if (!others_()) return;
  bool ask = Suspects() || due;
  {
    const MutexLock lock(mutex_);
    ask = std::exchange(recheck_, false) || ask;
  }
  if (!ask) return;
  for (const auto& set : sets_()) {
    if (set->id() == 0) set->AskForStallCheck();
  }
}

std::string SetMismatchWatch::DescribeOtherSets(int set) const {
  std::string text;
  for (const auto& other : sets_()) {
    if (other->id() == set) continue;
    const std::string pending = other->PendingText();
    if (pending.empty()) continue;
    RankSet members;
    for (const int rank : other->members()) members.Add(rank);
    text += fmt::format("{}{} in process set {} of {}", text.empty() ? "" : " and ", pending,
                        other->id(), members.Describe());
  }
  return text;
}

}  // namespace tutti::coordinator
