#include "run/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tutti::tools {
namespace {

// Newcomers that boot at the same time should come with a single notice.
constexpr int64_t kGatherNs = 10'000'000'000;
// A dismissed worker has this long to end by itself.
constexpr int64_t kDismissedNs = 30'000'000'000;

int64_t ToNs(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

int Membership::Count(Stage stage) const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second.stage == stage;
  }));
}

int Membership::CountOn(const std::string& host) const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second.host == host && !entry.second.surplus;
  }));
}

int Membership::SlotsOf(const std::string& host) const {
  for (const HostSlots& known : hosts_) {
    if (known.host == host) return known.slots;
  }
  return 0;
}

// A maximum of 0 means that a host with a failure is never used again.
bool Membership::CoolsDown(const std::string& host, int64_t now_ns) const {
  const auto found = cooling_.find(host);
  if (found == cooling_.end()) return false;
  return options_.cooldown_max_s <= 0 || now_ns < found->second.until_ns;
}

void Membership::Move(Worker& worker, Stage stage, int64_t now_ns) {
  worker.stage = stage;
  worker.since_ns = now_ns;
}

void Membership::WorkerReady(int worker, uint64_t left, int64_t now_ns) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.stage == Stage::kDismissed) return;
  // A member's request for its present generation was made before the generation was formed.
  if (found->second.stage == Stage::kMember && left < generation_) return;
  if (found->second.stage != Stage::kReady) Move(found->second, Stage::kReady, now_ns);
}

// A failed worker's host cools down, and a failed member breaks its generation. A surplus worker
// outside the generation may end in any way.
void Membership::WorkerExited(int worker, int status, int64_t now_ns) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  const Worker gone = found->second;
  workers_.erase(found);
  if (gone.stage == Stage::kDismissed) return;
  if (status == 0) {
    if (!gone.surplus) ++completed_;
    return;
  }
  if (gone.surplus && gone.stage != Stage::kMember) return;
  last_failure_ = status;
  Cooling& cooling = cooling_[gone.host];
  const double cooldown_s = std::min(
      options_.cooldown_max_s, std::ldexp(options_.cooldown_min_s, std::min(cooling.failures, 30)));
  cooling.until_ns = now_ns + ToNs(cooldown_s);
  ++cooling.failures;
  for (auto& [id, other] : workers_) {
    if (options_.end_failed_hosts && other.host == gone.host) other.surplus = true;
  }
  if (gone.stage != Stage::kMember) return;
  failed_status_ = status;
  actions_.push_back({Action::Kind::kBroken, -1, "", std::to_string(generation_), 0});
}

// Finds all orders that the present state calls for, so a call at any time is harmless.
std::vector<Action> Membership::Advance(int64_t now_ns) {
  if (!finished_) {
    if (StateIsLost()) {
      Finish(last_failure_, "all workers of a generation failed, and the job's state with them");
      return std::exchange(actions_, {});
    }
    if (completed_ == 0) {
      MarkSurplus();
      StartWorkers(now_ns);
    }
    EndSurplus(now_ns);
    Notify(now_ns);
    PressLaggards(now_ns);
    FormGeneration(now_ns);
    FinishWhenEmpty();
  }
  return std::exchange(actions_, {});
}

// The members of a generation hold the state in their memory.
bool Membership::StateIsLost() const {
  return generation_ > 0 && completed_ == 0 &&
         std::none_of(workers_.begin(), workers_.end(), [](const auto& entry) {
           return entry.second.rank >= 0 && entry.second.stage != Stage::kDismissed;
         });
}

// Workers beyond their host's slots: the newest go first.
void Membership::MarkSurplus() {
  for (auto it = workers_.rbegin(); it != workers_.rend(); ++it) {
    Worker& worker = it->second;
    if (!worker.surplus && CountOn(worker.host) > SlotsOf(worker.host)) worker.surplus = true;
  }
}

// Fills the hosts in the order of the list, up to max_workers.
void Membership::StartWorkers(int64_t now_ns) {
  int running = 0;
  for (const auto& [id, worker] : workers_) running += !worker.surplus;
  for (const HostSlots& host : hosts_) {
    if (CoolsDown(host.host, now_ns)) continue;
    for (int used = CountOn(host.host); used < host.slots && running < options_.max_workers;
         ++used, ++running) {
      const int id = next_worker_++;
      workers_[id] = {host.host, Stage::kBooting, -1, false, now_ns};
      actions_.push_back({Action::Kind::kStart, id, host.host, "", 0});
    }
  }
}

// Workers outside a generation can go at once; members go when they have left theirs.
void Membership::EndSurplus(int64_t now_ns) {
  for (auto& [id, worker] : workers_) {
    const bool newcomer = worker.rank < 0 && worker.stage != Stage::kDismissed;
    if (newcomer && (worker.surplus || (completed_ > 0 && generation_ > 0))) {
      worker.surplus = true;
      Move(worker, Stage::kDismissed, now_ns);
      actions_.push_back({Action::Kind::kTerminate, id, "", "", 0});
    } else if (worker.stage == Stage::kDismissed && now_ns - worker.since_ns > kDismissedNs) {
      Move(worker, Stage::kDismissed, now_ns);
      actions_.push_back({Action::Kind::kKill, id, "", "", 0});
    }
  }
}

// A single notice is outstanding at a time, because a notice makes every member leave its
// generation.
void Membership::Notify(int64_t now_ns) {
  if (notice_outstanding_ || generation_ == 0 || completed_ > 0) return;
  const bool booting = Count(Stage::kBooting) > 0;
  const bool due = std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const Worker& worker = entry.second;
    if (worker.stage == Stage::kMember) return worker.surplus;
    return worker.stage == Stage::kReady && worker.rank < 0 &&
           (!booting || now_ns - worker.since_ns > kGatherNs);
  });
  if (!due || Count(Stage::kMember) == 0) return;
  notice_outstanding_ = true;
  actions_.push_back({Action::Kind::kNotice, -1, "", std::to_string(++notice_), 0});
}

// A member is stuck when it does not leave a generation that others have left.
void Membership::PressLaggards(int64_t now_ns) {
  int64_t first_ns = now_ns;
  bool left = false;
  for (const auto& [id, worker] : workers_) {
    if (worker.stage != Stage::kReady || worker.rank < 0) continue;
    first_ns = std::min(first_ns, worker.since_ns);
    left = true;
  }
  if (!left || now_ns - first_ns <= ToNs(options_.timeout_s)) return;
  for (const auto& [id, worker] : workers_) {
    if (worker.stage == Stage::kMember) {
      actions_.push_back({Action::Kind::kKill, id, "", "", 0});
    }
  }
}

// The first generation waits for all booting workers, within the timeout; later generations do not,
// because members are waiting.
bool Membership::MayForm(int64_t now_ns) {
  int ready = 0;
  int survivors = 0;
  for (const auto& [id, worker] : workers_) {
    if (worker.stage == Stage::kMember) return false;
    if (worker.stage != Stage::kReady || worker.surplus) continue;
    ++ready;
    survivors += worker.rank >= 0;
  }
  // Workers whose program came to its end need no replacement.
  if (completed_ > 0) {
    return survivors > 0 || (generation_ == 0 && ready > 0 && Count(Stage::kBooting) == 0);
  }
  const bool enough = ready >= options_.min_workers && (generation_ == 0 || survivors > 0);
  if (!enough) {
    if (short_since_ns_ == 0) short_since_ns_ = std::max<int64_t>(now_ns, 1);
    if (now_ns - short_since_ns_ > ToNs(options_.timeout_s)) {
      Finish(last_failure_ ? last_failure_ : 1,
             fmt::format("only {} of at least {} workers could be had within {} s", ready,
                         options_.min_workers, options_.timeout_s));
    }
    return false;
  }
  short_since_ns_ = 0;
  if (generation_ > 0 || Count(Stage::kBooting) == 0) return true;
  return now_ns - started_ns_ > ToNs(options_.timeout_s);
}

void Membership::FormGeneration(int64_t now_ns) {
  if (finished_ || !MayForm(now_ns)) return;
  if (options_.reset_limit >= 0 && generation_ > static_cast<uint64_t>(options_.reset_limit)) {
    return Finish(last_failure_ ? last_failure_ : 1,
                  fmt::format("the job began anew {} times, which is its limit (--reset-limit)",
                              options_.reset_limit));
  }
  Publish(now_ns);
}

// The text has the numbers of the generation and of the last notice, then a line for each rank,
// "<worker> <host>", then "dismissed <worker>" for each worker that goes.
void Membership::Publish(int64_t now_ns) {
  std::vector<std::pair<int, int>> order;  // former rank, or past all of them; worker
  std::string dismissed;
  for (auto& [id, worker] : workers_) {
    if (worker.stage != Stage::kReady) continue;
    if (worker.surplus) {
      dismissed += fmt::format("dismissed {}\n", id);
      Move(worker, Stage::kDismissed, now_ns);
      continue;
    }
    order.emplace_back(worker.rank >= 0 ? worker.rank : next_worker_, id);
  }
  std::sort(order.begin(), order.end());
  ++generation_;
  std::string text = fmt::format("{} {}\n", generation_, notice_);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    Worker& worker = workers_[order[rank].second];
    worker.rank = static_cast<int>(rank);
    Move(worker, Stage::kMember, now_ns);
    text += fmt::format("{} {}\n", order[rank].second, worker.host);
  }
  notice_outstanding_ = false;
  failed_status_ = 0;
  generation_size_ = static_cast<int>(order.size());
  actions_.push_back({Action::Kind::kPublish, -1, "", text + dismissed, 0});
}

void Membership::FinishWhenEmpty() {
  if (finished_ || !workers_.empty() || next_worker_ == 0) return;
  if (completed_ > 0) return Finish(failed_status_, failed_status_ ? "a worker failed" : "");
  Finish(last_failure_ ? last_failure_ : 1, "no worker is left");
}

void Membership::Finish(int status, std::string why) {
  finished_ = true;
  actions_.push_back({Action::Kind::kFinish, -1, "", std::move(why), status});
}

}  // namespace tutti::tools
