#include "coordinator/stall_tracker.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace tutti::coordinator {
namespace {

// How long the mistake that may have caused a stall is looked for, from the limit for stalls on,
// before the job ends. The search takes some checks of all ranks, each of milliseconds where they
// have a core.
constexpr int64_t kLastCallNs = 5'000'000'000;

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

StallTracker::State StallTracker::Advance(int64_t now_ns, bool in_other_sets) {
  // The table in the header. A rank in a single set passes through kLastCall at once.
  const bool over =
      options_.shutdown_ns > 0 && oldest_ns_ != 0 && now_ns - oldest_ns_ >= options_.shutdown_ns;
  if (!over) return state_ = State::kWithinLimit;
  if (state_ == State::kWithinLimit) {
    state_ = State::kLastCall;
    last_call_ns_ = now_ns;
  }
  if (!in_other_sets || now_ns - last_call_ns_ >= kLastCallNs) state_ = State::kOverdue;
  return state_;
}

bool StallTracker::CheckIsDue(int64_t now_ns, const NameTable& names) const {
  if (options_.warn_ns == 0 || oldest_ns_ == 0) return false;
  if (now_ns - oldest_ns_ < options_.warn_ns) return false;
  // The oldest tensor may have been reported in this window; then another tensor must be due.
  bool due = false;
  names.ForEachWaiting([&](const TensorHome& home) {
    due = due || now_ns - std::max(home.pending->since_ns, home.reported_ns) >= options_.warn_ns;
  });
  return due;
}

bool StallTracker::IsLate(int64_t age_ns) const {
  const int64_t window_ns = options_.warn_ns > 0 ? options_.warn_ns : options_.shutdown_ns;
  return window_ns > 0 && age_ns >= window_ns;
}

bool StallTracker::IsOverdue(int64_t age_ns) const {
  return options_.shutdown_ns > 0 && age_ns >= options_.shutdown_ns;
}

std::string StallTracker::OverdueText(const NameTable& names) const {
  const Tensor* oldest = nullptr;
  names.ForEachWaiting([&](const TensorHome& home) {
    if (oldest == nullptr || home.pending->since_ns < oldest->since_ns) oldest = home.pending;
  });
  const double limit_s = Seconds(options_.shutdown_ns);
  if (oldest == nullptr) return fmt::format("an operation was stalled for {} s", limit_s);
  std::string missing;
  for (const Stall& stall : last_stalls_) {
    if (stall.name == oldest->name)
      missing = fmt::format(" for want of {}", stall.missing.Global(members_).Describe());
  }
  return fmt::format("\"{}\" was stalled for {} s{}, the limit that is set", oldest->name, limit_s,
                     missing);
}

void StallTracker::Report(const RoundResult& result, NameTable& names) {
  last_stalls_ = result.stalls;
  const int64_t now_ns = NowNs();
  for (const Stall& stall : result.stalls) {
    TensorHome* const home = names.Find(stall.name);
    if (home == nullptr || !stall.have.Contains(rank_)) continue;
    // Windows of different ranks begin at different times, and each rank asks for a check in its
    // own.
    if (now_ns - home->reported_ns < options_.warn_ns / 10 * 9) continue;
    home->reported_ns = now_ns;
    // All ranks of `have` note the report, and only the lowest logs the text.
    if (stall.have.lowest() != rank_) continue;
    std::string doing;
    for (const int r : stall.missing.ToVector()) {
      const auto found = result.activities.find(r);
      if (found == result.activities.end()) continue;
      doing += fmt::format("; rank {} {}", members_[static_cast<size_t>(r)], found->second);
    }
    TUTTI_WARN("\"{}\" has waited for more than {} s: {} asked for it, missing {}{}.", stall.name,
               Seconds(options_.warn_ns), stall.have.Global(members_).Describe(),
               stall.missing.Global(members_).Describe(), doing);
  }
}

}  // namespace tutti::coordinator
