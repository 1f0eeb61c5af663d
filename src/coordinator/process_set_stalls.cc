// Texts of a process set about work that does not get done: the pending tensors and their ages, the
// threads that wait, and the activity of the ranks that are missing.

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "coordinator/process_set.h"

namespace tutti::coordinator {

bool ProcessSet::Tick(bool others) {
  const MutexLock lock(mutex_);
  if (driver_.has_ended()) return false;
  const int64_t now_ns = NowNs();
  // A collective that makes no progress for too long fails. A round call makes the others end the
  // round; because the round brings nothing new, this rank waits outside from then on.
  if (driver_.in_round() && now_ns - round_began_ns_ > options_.longest_round_ns) {
    CallOthers(driver_.next_round());
  }
  const auto state = stalls_.Advance(now_ns, others);
  if (state == StallTracker::State::kOverdue && !driver_.leaving()) {
    const std::string reason = stalls_.OverdueText(queue_.names());
    driver_.Leave(reason);
    if (hooks_.overdue) hooks_.overdue(reason);
    AskForStallCheckLocked();
  }
  const bool due = stalls_.CheckIsDue(now_ns, queue_.names());
  if (due) AskForStallCheckLocked();
  return due || state != StallTracker::State::kWithinLimit;
}

void ProcessSet::AskForStallCheck() {
  const MutexLock lock(mutex_);
  if (!driver_.has_ended()) AskForStallCheckLocked();
}

void ProcessSet::AskForStallCheckLocked() {
  driver_.AskForStallCheck();
  CallOthers(driver_.first_open_round());
  loop_wakes_.NotifyOne();
}

// Names the first three tensors in the order of asking, because a model may have thousands.
std::string ProcessSet::PendingTextLocked() const {
  std::vector<const Tensor*> waiting;
  queue_.names().ForEachWaiting([&](const TensorHome& home) { waiting.push_back(home.pending); });
  if (waiting.empty()) return "";
  constexpr size_t kMost = 3;
  const auto some = waiting.begin() + static_cast<ptrdiff_t>(std::min(kMost, waiting.size()));
  std::partial_sort(waiting.begin(), some, waiting.end(),
                    [](const Tensor* a, const Tensor* b) { return a->order < b->order; });
  std::string names;
  for (auto tensor = waiting.begin(); tensor != some; ++tensor) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", (*tensor)->name);
  }
  return fmt::format(
      "waits for {}{}", names,
      waiting.size() > kMost ? fmt::format(" and {} more", waiting.size() - kMost) : "");
}

std::string ProcessSet::PendingText() const {
  const MutexLock lock(mutex_);
  return PendingTextLocked();
}

std::string ProcessSet::Activity() const {
  // The hook is called first because other sets take their own locks, and no lock of this set may
  // be held then.
  const std::string elsewhere = hooks_.other_sets ? hooks_.other_sets() : "";
  const std::string ending = elsewhere.empty() ? "" : " and " + elsewhere;
  const MutexLock lock(mutex_);
  if (std::string pending = PendingTextLocked(); !pending.empty()) return pending + ending;
  if (driver_.joining()) return "has joined" + ending;
  if (last_finished_.empty()) {
    return elsewhere.empty() ? "has asked for nothing yet" : elsewhere;
  }
  return fmt::format("has nothing pending{} since it finished \"{}\" {:.1f} s ago{}",
                     elsewhere.empty() ? "" : " here", last_finished_,
                     static_cast<double>(NowNs() - last_finished_ns_) / 1e9, ending);
}

// A failure in doubt makes all tensors count as neither late nor overdue: the tensors may be gone
// when the other ranks hear of them.
ProcessSet::Waits ProcessSet::waits() const {
  const MutexLock lock(mutex_);
  Waits waits;
  const int64_t now_ns = NowNs();
  const bool in_doubt = failures_.in_doubt();
  std::vector<const Tensor*> waiting;
  queue_.names().ForEachWaiting([&](const TensorHome& home) { waiting.push_back(home.pending); });
  std::sort(waiting.begin(), waiting.end(),
            [](const Tensor* a, const Tensor* b) { return a->order < b->order; });
  size_t awaited = 0;
  for (const Tensor* const tensor : waiting) {
    const int64_t age_ns = now_ns - tensor->since_ns;
    const bool blocked = threads_.IsAwaited(*tensor->ticket);
    if (blocked) ++awaited;
    waits.tensors.push_back({tensor->name, tensor->order, blocked,
                             !in_doubt && stalls_.IsLate(age_ns),
                             !in_doubt && stalls_.IsOverdue(age_ns)});
  }
  if (!queue_.empty()) waits.round = driver_.first_open_round();
  waits.askers = threads_.askers();
  waits.blocked = threads_.Blocked();
  // Several threads may wait for the same tensor. Such a rare case counts as a wait of another
  // kind.
  waits.others = in_doubt || awaited != threads_.num_waits();
  return waits;
}

bool ProcessSet::MayBeStuck() const {
  const MutexLock lock(mutex_);
  return !driver_.has_ended() && stalls_.something_waits() && threads_.num_waits() > 0;
}

void ProcessSet::AddPendingFailure(const std::string& name, PendingFailure failure,
                                   uint64_t round) {
  // Failures name ranks of the job; rounds name places in the set.
  RankSet places;
  for (size_t i = 0; i < options_.members.size(); ++i) {
    if (failure.ranks.Contains(options_.members[i])) places.Add(static_cast<int>(i));
  }
  failure.ranks = places;
  const MutexLock lock(mutex_);
  if (driver_.has_ended()) return;
  // Rounds take all ranks: at the time of the check no rank was further than two rounds from here.
  round = std::min(round, driver_.next_round() + 2);
  failures_.Add(name, std::move(failure), round);
  // Members that wait for nothing here must come as well.
  CallOthers(std::max(round, driver_.first_open_round()));
  WakeDrivers();
}

std::vector<Stall> ProcessSet::last_stalls() const {
  const MutexLock lock(mutex_);
  return stalls_.last_stalls();
}

}  // namespace tutti::coordinator
