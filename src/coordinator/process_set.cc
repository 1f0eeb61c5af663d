#include "coordinator/process_set.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "sys/thread.h"

namespace tutti::coordinator {

ProcessSet::ProcessSet(Options options, std::unique_ptr<Exchange> exchange,
                       std::vector<std::unique_ptr<Operations>> operations, Hooks hooks,
                       Timeline* timeline, std::unique_ptr<Autotune> autotune)
    : options_(std::move(options)),
      hooks_(std::move(hooks)),
      timeline_(timeline),
      exchange_(std::move(exchange)),
      autotune_(std::move(autotune)),
      controller_(*exchange_, options_.members, options_.cache_capacity),
      performer_(std::move(operations), options_.rank, options_.members, TellTimeline()),
      gpu_performer_(performer_, options_.rank, options_.members, TellTimeline(), hooks_.gpu,
                     TraceHooks()),
      queue_(options_.members, gpu_performer_),
      stalls_({options_.stall_warn_ns, options_.stall_shutdown_ns}, options_.rank,
              options_.members),
      tuning_(options_.tuning) {
  input_.activity = [this] { return Activity(); };
  input_.collect_waits = hooks_.collect_waits;
}

Status ProcessSet::Start() {
  TUTTI_ASSIGN(loop_, StartThread("tutti-coord", [this] { Loop(); }));
  return Status::Ok();
}

ProcessSet::~ProcessSet() {
  Fail(InternalError("the coordinator was destroyed without a shutdown"));
  if (loop_.joinable()) loop_.join();
  std::thread mover;
  {
    const MutexLock lock(mutex_);
    mover.swap(mover_thread_);
  }
  if (mover.joinable()) mover.join();
}

Status ProcessSet::Enqueue(std::span<const tuttiTensor_t> tensors, const char* group,
                           std::span<TicketHold> tickets) {
  const MutexLock lock(mutex_);
  if (driver_.has_ended()) return driver_.ended();
  threads_.NoteAsking();
  // Ages are counted in seconds: all tensors of a burst, which the loop ends soon, have the same
  // age.
  const size_t before = queue_.size();
  const bool burst = before > 0 && !driver_.in_round();
  const int64_t now_ns = burst ? queue_.at(before - 1).since_ns : CoarseNowNs();
  TUTTI_TRY(queue_.Add(tensors, group, tickets, now_ns));
  for (size_t i = before; i < queue_.size(); ++i) {
    timeline_->Asked(options_.id, queue_.at(i).name, queue_.at(i).request.kind);
  }
  stalls_.NoteAsked(now_ns);
  // The loop is woken once, because further calls before the loop gets a core would tell nothing
  // new.
  if (std::exchange(loop_asleep_, false)) loop_wakes_.NotifyOne();
  return Status::Ok();
}

Status ProcessSet::Join(TicketHold ticket) {
  const MutexLock lock(mutex_);
  if (driver_.has_ended()) return driver_.ended();
  if (driver_.joining()) return InvalidUsage("this rank has joined already");
  driver_.Join(std::move(ticket));
  if (loop_asleep_) loop_wakes_.NotifyOne();
  return Status::Ok();
}

// A thread that waits without an end moves batches and drives rounds itself. A thread with a
// deadline only waits, because a round may block for longer.
bool ProcessSet::Wait(Ticket& ticket, Deadline deadline) {
  if (ticket.done.load(std::memory_order_acquire)) return true;
  MutexLock lock(mutex_);
  const bool may_drive = deadline.at_ns() == Deadline::Never().at_ns();
  if (may_drive) threads_.BeginWait(ticket);
  while (!ticket.done.load(std::memory_order_acquire)) {
    if (may_drive && ticket.dispatched && mover_.can_begin()) {
      MoveOne();
      continue;
    }
    MoveElsewhere();
    if (may_drive && !driver_.driving() && !ticket.dispatched && RoundIsDue()) {
      Drive(lock);
      continue;
    }
    // The loop may sleep while a round is due, when this thread does not drive.
    if (deadline.Passed()) return false;
    ++waiters_;
    if (loop_asleep_ && RoundIsDue()) loop_wakes_.NotifyOne();
    if (may_drive) {
      progress_.Wait(lock);
    } else {
      progress_.WaitFor(lock, std::chrono::milliseconds(deadline.RemainingMs(1000)));
    }
    --waiters_;
  }
  if (may_drive) threads_.EndWait(ticket);
  MoveElsewhere();
  return true;
}

void ProcessSet::WakeDrivers() {
  loop_wakes_.NotifyOne();
  if (waiters_ > 0) progress_.NotifyAll();
}

// Calls the other ranks into the round, once.
void ProcessSet::CallOthers(uint64_t round) {
  if (!driver_.MustCall(round)) return;
  ++counters_.round_calls;
  hooks_.call_to_round(round);
}

void ProcessSet::OnRoundCall(uint64_t round) {
  const MutexLock lock(mutex_);
  if (!driver_.OnRoundCall(round)) return;
  CallOthers(round);  // The call is passed on.
  WakeDrivers();
}

// The reason goes to all ranks with the next round, which ends the set.
void ProcessSet::Leave(const std::string& reason) {
  const MutexLock lock(mutex_);
  if (driver_.has_ended() || driver_.leaving()) return;
  driver_.Leave(reason);
  CallOthers(driver_.first_open_round());
  WakeDrivers();
}

bool ProcessSet::AwaitEnd(Deadline deadline) {
  MutexLock lock(mutex_);
  while (driver_.state() != State::kEnded) {
    if (deadline.Passed()) return false;
    ++waiters_;
    progress_.WaitFor(lock, std::chrono::milliseconds(deadline.RemainingMs(1000)));
    --waiters_;
  }
  return true;
}

void ProcessSet::Fail(const Status& reason) {
  const MutexLock lock(mutex_);
  FailLocked(reason);
}

// Ends the set at once where nobody drives. Otherwise the driver comes out of its round with an
// error and ends the set.
void ProcessSet::FailLocked(const Status& reason) {
  if (driver_.has_ended()) return;
  const State state = driver_.Advance(Event::kFail, reason);
  hooks_.break_off();
  if (state == State::kEnded) End(reason);
  loop_wakes_.NotifyAll();
  mover_wakes_.NotifyAll();
}

Status ProcessSet::ended() const {
  const MutexLock lock(mutex_);
  return driver_.has_ended() ? driver_.ended() : Status::Ok();
}

ProcessSet::Counters ProcessSet::counters() const {
  const MutexLock lock(mutex_);
  Counters counters = counters_;
  counters.names = queue_.names().size();
  return counters;
}

}  // namespace tutti::coordinator
