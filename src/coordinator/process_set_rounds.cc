// The rounds of a process set: its own thread, the thread that drives, and the handling of the
// results.

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "coordinator/process_set.h"

namespace tutti::coordinator {
namespace {

// The pause in arrivals by which a burst is taken to be over. The kernel's timer slack of 50 us
// makes shorter sleeps no shorter.
constexpr int64_t kGapNs = 50'000;
// For this time after the last work the loop looks by itself, in gaps that double, and the asking
// thread needs no system call to wake the loop. A look costs some 5 us of a core that another rank
// may need: with a fixed gap of 50 us four ranks on two cores would lose a fifth of their cores.
constexpr int64_t kHotNs = 2'000'000;
constexpr int64_t kLongestGapNs = 400'000;

bool ChangesProcessSets(const Response& response) {
  const OpKind kind = response.agreement().request.kind;
  return kind == OpKind::kAddSet || kind == OpKind::kRemoveSet;
}

}  // namespace

bool ProcessSet::RoundIsDue() const {
  return driver_.IsDue(/*has_news=*/!queue_.empty() || failures_.waiting());
}

// Runs on the set's own thread, which drives when no thread waits for a ticket.
void ProcessSet::Loop() {
  log::SetThreadRank(options_.members[static_cast<size_t>(options_.rank)]);
  MutexLock lock(mutex_);
  int64_t busy_until_ns = 0;
  int64_t gap_ns = kGapNs;
  while (!driver_.has_ended()) {
    if (driver_.driving() || !RoundIsDue()) {
      SleepUntilDue(lock, busy_until_ns, gap_ns);
      continue;
    }
    AwaitMore(lock);
    gap_ns = kGapNs;
    if (!driver_.driving() && RoundIsDue()) Drive(lock);
    MoveElsewhere();
    busy_until_ns = NowNs() + kHotNs;
  }
}

// Sleeps once: for a gap while work was seen just now, else until the thread is woken.
void ProcessSet::SleepUntilDue(MutexLock& lock, int64_t busy_until_ns, int64_t& gap_ns) {
  if (NowNs() < busy_until_ns) {
    loop_wakes_.WaitFor(lock, std::chrono::nanoseconds(gap_ns));
    gap_ns = std::min(2 * gap_ns, kLongestGapNs);
    return;
  }
  loop_asleep_ = true;
  loop_wakes_.Wait(lock);
  loop_asleep_ = false;
}

// Lets a window pass in which more may arrive, unless a thread waits for a queued tensor.
void ProcessSet::AwaitMore(MutexLock& lock) {
  const int64_t window_end_ns = NowNs() + tuning_.window_ns;
  size_t seen = queue_.size();
  int64_t gap_ns = std::min(kGapNs, tuning_.window_ns);
  while (!driver_.has_ended() && !driver_.driving() && waiters_ == 0 && !queue_.empty() &&
         !driver_.leaving() && NowNs() < window_end_ns) {
    loop_wakes_.WaitFor(lock, std::chrono::nanoseconds(gap_ns));
    if (queue_.size() == seen) return;
    seen = queue_.size();
    gap_ns = std::min({2 * gap_ns, kLongestGapNs, tuning_.window_ns});
  }
}

// Runs one round. REQUIRES: a round is due and nobody drives.
void ProcessSet::Drive(MutexLock& lock) {
  // An exception must not leave the set without a driver, and ends the set.
  try {
    Result<RoundResult> result = Negotiate();
    driver_.Advance(Event::kExchanged);
    ++counters_.rounds;
    if (result.ok()) {
      HandOver(lock, std::move(*result));
    } else {
      // Work queued on GPUs may wait for the rank that is missing here.
      FailLocked(result.status());
    }
  } catch (...) {
    FailLocked(StatusOfException());
  }
  if (driver_.state() == State::kEnding) End(driver_.ended());
  driver_.Advance(Event::kDispatched);
  if (waiters_ > 0) progress_.NotifyAll();
  if (loop_asleep_ && (RoundIsDue() || driver_.has_ended())) loop_wakes_.NotifyOne();
}

// Collects the input of this rank under the lock, and runs the round without the lock.
Result<RoundResult> ProcessSet::Negotiate() {
  driver_.Advance(Event::kBegin);
  round_began_ns_ = CoarseNowNs();
  if (driver_.CallsOthers()) CallOthers(driver_.next_round());
  queue_.Take(input_.news);
  driver_.FillInput(input_);
  if (input_.stall_check) input_.late_before_ns = stalls_.LateBefore(CoarseNowNs());
  input_.pending_failures.clear();
  failures_.BeginRound(driver_.next_round(), input_.pending_failures);
  const MutexUnlock unlock(mutex_);
  return controller_.Round(input_);
}

// The order matters: tuning applies to the batches of this round, and a rank that leaves ends the
// set only after the batches of the round.
void ProcessSet::HandOver(MutexLock& lock, RoundResult result) {
  failures_.EndRound();
  NoteRound(result);
  if (result.tuning) Adopt(lock, *result.tuning);
  if (result.stall_checked) stalls_.Report(result, queue_.names());
  if (result.set_waits && hooks_.waits_collected) hooks_.waits_collected(*result.set_waits);
  const bool news = result.news;
  const std::map<int, std::string> leaving = std::move(result.leaving);
  const std::optional<int> last_joined = result.last_joined;
  Dispatch(lock, std::move(result));
  if (driver_.has_ended()) return;
  driver_.Settle(news, controller_);
  stalls_.SetOldest(controller_.HasPending() ? controller_.OldestPendingNs()
                    : queue_.empty()         ? 0
                                             : queue_.at(0).since_ns);
  if (last_joined) {
    FinishJoin(Status::Ok(), options_.members[static_cast<size_t>(*last_joined)]);
  }
  if (leaving.empty()) return;
  const auto& [rank, reason] = *leaving.begin();
  DrainMover(lock);
  End(RemoteError("rank {} has shut down{}{}", options_.members[static_cast<size_t>(rank)],
                  reason.empty() ? "" : ": ", reason));
}

void ProcessSet::NoteRound(RoundResult& result) {
  if (result.negotiated) ++counters_.negotiated_rounds;
  if (!timeline_->is_open()) return;
  for (auto& [name, ranks] : result.newly_ready) ranks = ranks.Global(options_.members);
  timeline_->Round(options_.id, driver_.next_round() - 1, result);
}

void ProcessSet::Adopt(MutexLock& lock, const Tuning& tuning) {
  // Batches that wait to be moved were agreed on before this tuning, and all ranks move them under
  // the old one.
  if (tuning.hierarchical_allreduce != tuning_.hierarchical_allreduce ||
      tuning.hierarchical_allgather != tuning_.hierarchical_allgather) {
    DrainMover(lock);
    if (hooks_.tuned) hooks_.tuned(tuning);
  }
  tuning_ = tuning;
}

// Finishes responses that need no data, and hands the rest to the mover: a single tensor straight,
// several by the planner.
void ProcessSet::Dispatch(MutexLock& lock, RoundResult result) {
  std::vector<Response>& responses = result.responses;
  for (size_t i = 0; i < responses.size(); ++i) {
    Response& response = responses[i];
    PrefetchAhead(responses, i);
    // From here on the owner waits for the mover and not for a round.
    if (response.pending) response.pending->ticket->dispatched = true;
    if (!response.error.empty()) FailOrHold(response);
    if (response.moved_inline) {
      ++counters_.moved_inline;
      // Nothing is left but to store the result.
      const Status status = DeliverInlineData(response);
      NoteFinished(response);
      Finish(response, status);
    }
    if (response.cached) ++counters_.cached;
    ++counters_.tensors;
  }
  if (responses.empty() || (responses.size() == 1 && responses[0].moved_inline)) return;
  if (responses.size() == 1 && responses[0].pending && !ChangesProcessSets(responses[0])) {
    const int64_t bytes = responses[0].agreement().bytes();
    Run(std::move(responses), bytes);
    return;
  }
  DispatchFused(lock, result);
}

void ProcessSet::DispatchFused(MutexLock& lock, RoundResult& result) {
  std::vector<Response>& responses = result.responses;
  const BatchPlanner::Plan& plan =
      planner_.Make(responses, result.sequence, {tuning_.fusion_threshold, options_.fuse_groups});
  for (size_t b = 0; b < plan.batches.size(); ++b) {
    Batch batch;
    if (plan.all_in_order) {
      batch = std::exchange(responses, {});
    } else {
      for (const size_t i : plan.batches[b]) batch.push_back(std::move(responses[i]));
    }
    if (ChangesProcessSets(batch.front())) {
      ChangeSets(lock, std::move(batch.front()));
    } else {
      Run(std::move(batch), plan.bytes[b]);
    }
  }
}

// A change of sets uses this set's communicators, and nothing else may use the communicators
// meanwhile.
void ProcessSet::ChangeSets(MutexLock& lock, Response response) {
  DrainMover(lock);
  Result<int> number = -1;
  {
    const MutexUnlock unlock(mutex_);
    number = hooks_.change_sets(response.agreement());
  }
  if (response.pending && number.ok()) response.pending->ticket->number = *number;
  // The reason for the set's failure tells more than the error of the change.
  const bool failed = !number.ok() && driver_.has_ended();
  Finish(response, failed ? driver_.ended() : number.status());
}

// REQUIRES: the response has an error.
void ProcessSet::FailOrHold(Response& response) {
  if (!response.pending) return;
  if (failures_.IsDecided(response.check)) {
    return Finish(response, InvalidUsage("{}", response.error));
  }
  Response held;
  held.error = response.error;
  held.check = response.check;
  held.pending = std::move(response.pending);
  failures_.Hold(std::move(held));
}

// Finishes the held failures whose check is decided, or all of them at the end of the set.
void ProcessSet::FinishDecided(bool all) {
  for (Response& response : failures_.TakeDecided(all)) {
    Finish(response, InvalidUsage("{}", response.error));
  }
}

void ProcessSet::Decided(uint64_t check) {
  const MutexLock lock(mutex_);
  failures_.Decide(check);
  FinishDecided(/*all=*/false);
  if (waiters_ > 0) progress_.NotifyAll();
}

void ProcessSet::FinishJoin(const Status& status, int last) {
  if (!driver_.joining()) return;
  const TicketHold ticket = driver_.EndJoin();
  ticket->number = last;
  ticket->status = status;
  ticket->done.store(true, std::memory_order_release);
}

void ProcessSet::NoteFinished(const Response& response) {
  if (!response.pending) return;
  last_finished_ = response.pending->name;
  last_finished_ns_ = CoarseNowNs();
}

void ProcessSet::Finish(Response& response, const Status& status) {
  if (!response.pending) return;
  timeline_->End(options_.id, response.pending->name);
  const TicketHold ticket = queue_.Return(std::move(response.pending));
  ticket->status = status;
  ticket->done.store(true, std::memory_order_release);
}

// Fails everything that is pending. REQUIRES: this thread drives, or nobody does.
void ProcessSet::End(const Status& reason) {
  // Tensors lie in the queue, in the controller, and in held failures; tensors that are being moved
  // fail in the mover.
  driver_.Advance(Event::kEnd, reason);
  const Status& ended = driver_.ended();
  if (hooks_.ended) hooks_.ended(ended);
  std::vector<std::unique_ptr<Tensor>> all = controller_.TakeAll();
  std::vector<std::unique_ptr<Tensor>> queued;
  queue_.Take(queued);
  for (auto* const tensors : {&queued, &all}) {
    for (auto& tensor : *tensors) {
      Response response;
      response.pending = std::move(tensor);
      Finish(response, ended);
    }
  }
  FinishDecided(/*all=*/true);
  FinishJoin(ended, -1);
  progress_.NotifyAll();
  loop_wakes_.NotifyAll();
  mover_wakes_.NotifyAll();
}

}  // namespace tutti::coordinator
