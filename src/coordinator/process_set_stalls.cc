// What a process set says of work that does not get done: what is pending and for how long, who
// waits for it, and what the others do instead.

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/process_set.h"

namespace tutti::coordinator {
namespace {

// From the limit for stalls on, so long may it take to find the mistake that a stall is of, before
// the job ends for it. Some checks of all ranks, each within milliseconds where they have a core.
constexpr int64_t kLastCallNs = 5'000'000'000;

}  // namespace

// REQUIRES: mutex_. Whether something is pending here for a stall window since it was asked for, or
// reported.
bool ProcessSet::StallIsDue(int64_t now_ns) const {
  if (options_.stall_warn_ns == 0 || oldest_ns_ == 0) return false;
  if (now_ns - oldest_ns_ < options_.stall_warn_ns) return false;
  return std::any_of(names_.begin(), names_.end(), [&](const auto& entry) {
    const Tensor* const tensor = entry.second.pending;
    return tensor != nullptr && !tensor->ticket->dispatched &&
           now_ns - std::max(tensor->since_ns, entry.second.reported_ns) >= options_.stall_warn_ns;
  });
}

// REQUIRES: mutex_. The limit ends the job; but where ranks may have asked in different sets, that
// is looked for first, and ends only what was asked for.
void ProcessSet::LeaveWhenOverdue(int64_t now_ns, bool others) {
  const int64_t limit_ns = options_.stall_shutdown_ns;
  if (limit_ns == 0 || oldest_ns_ == 0 || now_ns - oldest_ns_ < limit_ns) {
    last_call_ns_ = 0;
    return;
  }
  if (last_call_ns_ == 0) last_call_ns_ = now_ns;
  if (leaving_ || (others && now_ns - last_call_ns_ < kLastCallNs)) return;
  leaving_ = OverdueText();
  if (hooks_.overdue) hooks_.overdue(*leaving_);
  AskForStallCheckLocked();
}

// REQUIRES: mutex_. Of what waits for longest; the last check knows who is missing.
std::string ProcessSet::OverdueText() const {
  const Tensor* oldest = nullptr;
  for (const auto& [name, home] : names_) {
    const Tensor* const tensor = home.pending;
    if (tensor == nullptr || tensor->ticket->dispatched) continue;
    if (oldest == nullptr || tensor->since_ns < oldest->since_ns) oldest = tensor;
  }
  const double limit_s = static_cast<double>(options_.stall_shutdown_ns) / 1e9;
  if (oldest == nullptr) return fmt::format("an operation was stalled for {} s", limit_s);
  std::string missing;
  for (const Stall& stall : last_stalls_)
    if (stall.name == oldest->name)
      missing = fmt::format(" for want of {}", Globally(stall.missing).Describe());
  return fmt::format("\"{}\" was stalled for {} s{}, the limit that is set", oldest->name, limit_s,
                     missing);
}

RankSet ProcessSet::Globally(const RankSet& ranks) const {
  RankSet global;
  for (const int r : ranks.ToVector()) global.Add(options_.members[static_cast<size_t>(r)]);
  return global;
}

bool ProcessSet::Tick(bool others) {
  const Lock lock(mutex_);
  const int64_t now_ns = NowNs();
  if (has_ended_) return false;
  // A collective that makes no progress for too long fails; called in, the others end the round,
  // and since it brings nothing new, this rank waits outside from then on.
  if (in_round_ && now_ns - round_began_ns_ > options_.longest_round_ns) RingDoorbell(next_round_);
  LeaveWhenOverdue(now_ns, others);
  const bool due = StallIsDue(now_ns);
  if (due) AskForStallCheckLocked();
  return due || last_call_ns_ != 0;
}

void ProcessSet::AskForStallCheck() {
  const Lock lock(mutex_);
  if (!has_ended_) AskForStallCheckLocked();
}

void ProcessSet::AskForStallCheckLocked() {
  stall_check_ = true;
  RingDoorbell(in_round_ ? next_round_ + 1 : next_round_);
  loop_wakes_.notify_one();
}

// REQUIRES: mutex_.
std::string ProcessSet::PendingTextLocked() const {
  std::vector<const Tensor*> waiting;
  for (const auto& [name, home] : names_) {
    if (home.pending != nullptr && !home.pending->ticket->dispatched)
      waiting.push_back(home.pending);
  }
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
  const Lock lock(mutex_);
  return PendingTextLocked();
}

std::string ProcessSet::Activity() const {
  // Asked first: what other sets hold, no lock of this one may be held for.
  const std::string elsewhere = hooks_.other_sets ? hooks_.other_sets() : "";
  const std::string ending = elsewhere.empty() ? "" : " and " + elsewhere;
  const Lock lock(mutex_);
  if (std::string pending = PendingTextLocked(); !pending.empty()) return pending + ending;
  if (join_) return "has joined" + ending;
  if (last_finished_.empty()) {
    return elsewhere.empty() ? "has asked for nothing yet" : elsewhere;
  }
  return fmt::format("has nothing pending{} since it finished \"{}\" {:.1f} s ago{}",
                     elsewhere.empty() ? "" : " here", last_finished_,
                     static_cast<double>(NowNs() - last_finished_ns_) / 1e9, ending);
}

// REQUIRES: mutex_. Everybody knows; the lowest of the ranks that wait says it, once a window.
void ProcessSet::ReportStalls(const RoundResult& result) {
  last_stalls_ = result.stalls;
  const int64_t now_ns = NowNs();
  for (const Stall& stall : result.stalls) {
    const auto home = names_.find(stall.name);
    if (home == names_.end() || !stall.have.Contains(options_.rank)) continue;
    // Windows of different ranks begin at different times, and each asks for a check in its own.
    if (now_ns - home->second.reported_ns < options_.stall_warn_ns / 10 * 9) continue;
    home->second.reported_ns = now_ns;
    if (stall.have.lowest() != options_.rank) continue;
    std::string doing;
    for (const int r : stall.missing.ToVector()) {
      const auto found = result.activities.find(r);
      if (found == result.activities.end()) continue;
      doing += fmt::format("; rank {} {}", options_.members[static_cast<size_t>(r)], found->second);
    }
    TUTTI_WARN("\"{}\" has waited for more than {} s: {} asked for it, missing {}{}.", stall.name,
               static_cast<double>(options_.stall_warn_ns) / 1e9, Globally(stall.have).Describe(),
               Globally(stall.missing).Describe(), doing);
  }
}

ProcessSet::Waits ProcessSet::waits() const {
  const Lock lock(mutex_);
  Waits waits;
  const int64_t now_ns = NowNs();
  // A tensor whose failure is pending may be gone when the others hear of it.
  const bool in_doubt = !pending_failures_.empty() || failing_in_round_;
  for (const auto& [name, home] : names_) {
    if (home.pending == nullptr || home.pending->ticket->dispatched) continue;
    Waits::Waiting waiting;
    waiting.name = name;
    waiting.order = home.pending->order;
    const int64_t age_ns = now_ns - home.pending->since_ns;
    const int64_t limit_ns = options_.stall_shutdown_ns;
    const int64_t window_ns = options_.stall_warn_ns > 0 ? options_.stall_warn_ns : limit_ns;
    waiting.late = !in_doubt && window_ns > 0 && age_ns >= window_ns;
    waiting.overdue = !in_doubt && limit_ns > 0 && age_ns >= limit_ns;
    const Ticket* const ticket = home.pending->ticket.get();
    waiting.blocked = std::any_of(blocked_.begin(), blocked_.end(),
                                  [&](const Blocked& b) { return b.ticket == ticket; });
    waits.tensors.push_back(std::move(waiting));
  }
  std::sort(waits.tensors.begin(), waits.tensors.end(),
            [](const auto& a, const auto& b) { return a.order < b.order; });
  if (!incoming_.empty()) waits.round = in_round_ ? next_round_ + 1 : next_round_;
  waits.askers = askers_;
  for (const Blocked& b : blocked_) waits.blocked.insert(b.thread);
  const auto known = std::count_if(waits.tensors.begin(), waits.tensors.end(),
                                   [](const auto& waiting) { return waiting.blocked; });
  // Several threads may wait for one tensor, which is rare and taken for a wait of another kind.
  waits.others = in_doubt || static_cast<size_t>(known) != blocked_.size();
  return waits;
}

bool ProcessSet::MayBeStuck() const {
  const Lock lock(mutex_);
  return !has_ended_ && oldest_ns_ != 0 && !blocked_.empty();
}

void ProcessSet::AddPendingFailure(const std::string& name, PendingFailure failure,
                                   uint64_t round) {
  RankSet ranks;  // in the set
  for (size_t i = 0; i < options_.members.size(); ++i) {
    if (failure.ranks.Contains(options_.members[i])) ranks.Add(static_cast<int>(i));
  }
  failure.ranks = ranks;
  const Lock lock(mutex_);
  if (has_ended_) return;
  // Rounds take all ranks: when this was looked at, no rank was further than two from here.
  round = std::min(round, next_round_ + 2);
  pending_failures_[name] = {std::move(failure), round};
  // Members that wait for nothing here must come as well.
  RingDoorbell(std::max(round, in_round_ ? next_round_ + 1 : next_round_));
  loop_wakes_.notify_one();
  if (waiters_ > 0) progress_.notify_all();
}

void ProcessSet::Decided(uint64_t check) {
  const Lock lock(mutex_);
  decided_ = check;
  if (held_.empty()) return;
  FinishHeld(check);
  if (waiters_ > 0) progress_.notify_all();
}

std::vector<Stall> ProcessSet::last_stalls() const {
  const Lock lock(mutex_);
  return last_stalls_;
}

}  // namespace tutti::coordinator
