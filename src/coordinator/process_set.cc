#include "coordinator/process_set.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "coordinator/checks.h"
#include "sys/thread.h"

namespace tutti::coordinator {
namespace {

// From this size on a batch is worth handing to the other thread, which costs two changes of thread
// (some 20 us): about what moving this much takes.
constexpr int64_t kMoveElsewhereBytes = 64 << 10;
// The pause in arrivals by which a burst is taken to be over. Shorter sleeps are no shorter: the
// kernel's timer slack is 50 us.
constexpr int64_t kGapNs = 50'000;
// So long after the last work the loop looks by itself, in gaps that double, and needs no system
// call of the asking thread to wake it. Looking costs some 5 us of a core that another rank may
// need: with a fixed gap of 50 us four ranks on two cores would lose a fifth of them.
constexpr int64_t kHotNs = 2'000'000;
constexpr int64_t kLongestGapNs = 400'000;

// Rounds take all ranks, so none is further ahead than a few; early rings of a new set are.
constexpr uint64_t kMostAhead = 1024;

std::chrono::nanoseconds Nanoseconds(int64_t ns) { return std::chrono::nanoseconds(ns); }

// For ages of seconds: a tick of the kernel, for a fifth of the cost.
int64_t RoughlyNowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool ChangesSets(OpKind kind) { return kind == OpKind::kAddSet || kind == OpKind::kRemoveSet; }

// Moving a large batch drives what belongs to its tensors out of the nearer caches, and a walk over
// a thousand of them would wait for each: asks for the tensor two steps and the ticket one step
// ahead.
constexpr size_t kStep = 8;
void FetchAhead(const std::vector<Response>& batch, size_t i) {
  if (i + 2 * kStep < batch.size() && batch[i + 2 * kStep].pending) {
    const auto* const tensor = reinterpret_cast<const char*>(batch[i + 2 * kStep].pending.get());
    for (size_t line = 0; line < sizeof(Tensor); line += 64) __builtin_prefetch(tensor + line);
  }
  if (i + kStep < batch.size() && batch[i + kStep].pending) {
    const auto& tensor = static_cast<const Tensor&>(*batch[i + kStep].pending);
    __builtin_prefetch(tensor.ticket.get(), 1);
    __builtin_prefetch(tensor.home, 1);
  }
}

// The number of this thread. `anew`: asks the system even if it was known, since the thread that
// forked a process has another number there.
pid_t ThisThread(bool anew = false) {
  thread_local pid_t number = 0;
  if (number == 0 || anew) number = gettid();
  return number;
}

Ticket& TicketOf(Pending& pending) { return *static_cast<Tensor&>(pending).ticket; }

}  // namespace

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
      gpu_performer_(performer_, options_.rank, options_.members, TellTimeline(), hooks_.gpu),
      tuning_(options_.tuning) {
  input_.activity = [this] { return Activity(); };
  input_.collect_waits = hooks_.collect_waits;
}

Performer::Activity ProcessSet::TellTimeline() {
  return [this](const std::vector<Response>& batch, std::string_view activity) {
    if (!timeline_->is_open()) return;
    for (const Response& response : batch) {
      if (response.pending) timeline_->Begin(options_.id, response.agreement().name, activity);
    }
  };
}

Status ProcessSet::Start() {
  TUTTI_ASSIGN(loop_, StartThread("tutti-coord", [this] { Loop(); }));
  return Status::Ok();
}

ProcessSet::~ProcessSet() {
  Fail(InternalError("the coordinator was destroyed without a shutdown"));
  if (loop_.joinable()) loop_.join();
  if (mover_.joinable()) mover_.join();
}

Status ProcessSet::CheckNews(const Ask& ask, const Request& request) const {
  TUTTI_TRY(CheckRequest(std::string(ask.name), request, options_.members));
  const bool has_input = request.kind != OpKind::kBarrier && request.bytes() > 0;
  const bool needs_input = request.kind != OpKind::kAddSet && request.kind != OpKind::kRemoveSet;
  if (has_input && needs_input && ask.input == nullptr && ask.output == nullptr) {
    return InvalidArgument("{} \"{}\": the tensor is null", Name(request.kind), ask.name);
  }
  if (request.kind != OpKind::kAlltoall) return Status::Ok();
  const auto n = options_.members.size();
  if (ask.splits.size() != n ||
      std::any_of(ask.splits.begin(), ask.splits.end(), [](int64_t s) { return s < 0; })) {
    return InvalidArgument("alltoall \"{}\": there must be {} splits, none below 0", ask.name, n);
  }
  const int64_t rows = std::accumulate(ask.splits.begin(), ask.splits.end(), int64_t{0});
  if (rows > request.first_dim()) {  // rows beyond the splits go nowhere
    return InvalidArgument("alltoall \"{}\": the splits add up to {} rows, but the tensor has {}",
                           ask.name, rows, request.first_dim());
  }
  return Status::Ok();
}

// What is known of a name. REQUIRES: mutex_.
TensorHome& ProcessSet::HomeOf(std::string_view name) {
  TensorHome* home = nullptr;
  TensorHome* const before = last_home_;
  if (before != nullptr && before->version == names_version_ && before->next != nullptr &&
      before->next->name == name) {
    home = before->next;
  } else {
    auto known = names_.find(name);
    if (known == names_.end()) {
      known = names_.try_emplace(std::string(name)).first;
      known->second.name = known->first;
    }
    home = &known->second;
    if (before != nullptr) {
      before->next = home;
      before->version = names_version_;
    }
  }
  last_home_ = home;
  // The next call is likely to be for the next one.
  if (home->version == names_version_ && home->next != nullptr) {
    if (const Tensor* const next = home->next->spare.get()) {
      const auto* const at = reinterpret_cast<const char*>(next);
      for (size_t line = 0; line < sizeof(Tensor); line += 64) __builtin_prefetch(at + line, 1);
    }
    __builtin_prefetch(home->next->next, 1);
  }
  return *home;
}

void ProcessSet::ForgetName(std::string_view name) {
  names_.erase(names_.find(name));
  last_home_ = nullptr;
  ++names_version_;
}

// Names that never come again must not pile up. All at once: those that do are known again after
// their next turn, and one at a time it would be they who are forgotten, each time. REQUIRES:
// mutex_.
void ProcessSet::ForgetIdleNames() {
  std::erase_if(names_, [](const auto& entry) { return !entry.second.busy; });
  last_home_ = nullptr;
  ++names_version_;
}

// Puts one tensor into the queue. REQUIRES: mutex_.
Status ProcessSet::Enter(Ask& ask, int64_t now_ns) {
  TensorHome& home = HomeOf(ask.name);
  if (home.busy) {
    return InvalidUsage(
        "a tensor named \"{}\" is still pending: give each operation a name of its own, or wait "
        "for "
        "the first",
        ask.name);
  }
  std::unique_ptr<Tensor> tensor = std::move(home.spare);
  if (!tensor) {
    tensor = std::make_unique<Tensor>();
    tensor->name = ask.name;
    tensor->home = &home;
  }
  Request& request = tensor->request;
  // What was asked for before in just this way has been checked.
  const bool same =
      tensor->input != nullptr && ask.input != nullptr && ask.splits.empty() &&
      ask.fields == request && request.group == ask.group &&
      std::equal(ask.shape.begin(), ask.shape.end(), request.shape.begin(), request.shape.end());
  if (!same) {
    tensor->known.reset();
    static_cast<RequestFields&>(request) = ask.fields;
    request.shape.assign(ask.shape.begin(), ask.shape.end());
    request.group = ask.group;
    if (Status status = CheckNews(ask, request); !status.ok()) {
      ForgetName(ask.name);
      return status;
    }
    tensor->splits.assign(ask.splits.begin(), ask.splits.end());
  }
  if (ask.device >= 0) {
    auto ready = gpu_performer_.Admit(ask);
    if (!ready.ok()) {
      ForgetName(ask.name);
      return std::move(ready).status().Annotate(
          fmt::format("{} \"{}\" on GPU {}", Name(request.kind), ask.name, ask.device));
    }
    tensor->ready = std::move(*ready);
  }
  home.busy = true;
  home.pending = tensor.get();
  home.reported_ns = 0;
  tensor->input = ask.input;
  tensor->output = ask.output;
  tensor->ticket = std::move(ask.ticket);
  tensor->sent = false;
  tensor->order = order_++;
  tensor->since_ns = now_ns;
  incoming_.push_back(std::move(tensor));
  return Status::Ok();
}

// REQUIRES: mutex_. Threads that have ended are forgotten whenever there are twice as many as were
// left.
void ProcessSet::NoteAsker(pid_t thread) {
  askers_.insert(thread);
  if (askers_.size() < most_askers_) return;
  std::erase_if(askers_, [](pid_t asker) {
    return access(fmt::format("/proc/self/task/{}", asker).c_str(), F_OK) != 0;
  });
  most_askers_ = std::max(kFewAskers, 2 * askers_.size());
}

Status ProcessSet::Enqueue(std::span<Ask> asks) {
  const Lock lock(mutex_);
  if (has_ended_) return ended_;
  if (ThisThread() != last_asker_) {
    last_asker_ = ThisThread(/*anew=*/true);
    NoteAsker(last_asker_);
  }
  // Ages of seconds: what comes in one burst, which the loop ends soon, is of one age.
  const bool burst = !incoming_.empty() && !in_round_;
  const int64_t now_ns = burst ? incoming_.back()->since_ns : RoughlyNowNs();
  const size_t before = incoming_.size();
  for (Ask& ask : asks) {
    Status status = Enter(ask, now_ns);
    if (status.ok()) continue;
    for (size_t i = before; i < incoming_.size(); ++i) {
      ForgetName(incoming_[i]->name);
    }
    incoming_.resize(before);
    return status;
  }
  for (size_t i = before; i < incoming_.size(); ++i) {
    timeline_->Asked(options_.id, incoming_[i]->name, incoming_[i]->request.kind);
  }
  if (oldest_ns_ == 0) oldest_ns_ = now_ns;
  // Once: until it has a core, more calls would tell it the same.
  if (std::exchange(loop_asleep_, false)) loop_wakes_.notify_one();
  return Status::Ok();
}

Status ProcessSet::Join(TicketHold ticket) {
  const Lock lock(mutex_);
  if (has_ended_) return ended_;
  if (join_) return InvalidUsage("this rank has joined already");
  join_ = std::move(ticket);
  join_announced_ = false;
  if (loop_asleep_) loop_wakes_.notify_one();
  return Status::Ok();
}

// REQUIRES: mutex_, in all that follow up to Wait.
bool ProcessSet::RoundIsDue() const {
  if (has_ended_) return false;
  return !incoming_.empty() || unsent_ || (join_ && !join_announced_) || leaving_ || stall_check_ ||
         new_tuning_ || !pending_failures_.empty() || called_round_ > next_round_ ||
         (standing_ && !quiet_);
}

void ProcessSet::RingDoorbell(uint64_t round) {
  if (passed_on_ > round) return;
  passed_on_ = round + 1;
  ++counters_.doorbells;
  hooks_.ring_doorbell(round);
}

void ProcessSet::TakeInput() {
  input_.news.swap(incoming_);
  input_.leaving = leaving_;
  input_.joining = join_ && !join_announced_;
  if (input_.joining) join_announced_ = true;
  input_.stall_check = std::exchange(stall_check_, false);
  if (input_.stall_check) {
    input_.late_before_ns =
        options_.stall_warn_ns > 0 ? RoughlyNowNs() - options_.stall_warn_ns : 0;
  }
  input_.tuning = std::exchange(new_tuning_, std::nullopt);
  input_.pending_failures.clear();
  std::erase_if(pending_failures_, [&](auto& entry) {
    auto& [name, due] = entry;
    if (due.round > next_round_) return false;
    input_.pending_failures.emplace(name, std::move(due.failure));
    return true;
  });
  failing_in_round_ = !input_.pending_failures.empty();
}

// Runs one round. REQUIRES: a round is due and nobody drives.
void ProcessSet::Drive(Lock& lock) {
  driving_ = true;
  in_round_ = true;
  round_began_ns_ = RoughlyNowNs();
  if (quiet_) RingDoorbell(next_round_);
  TakeInput();
  lock.unlock();
  Result<RoundResult> result = controller_.Round(input_);
  lock.lock();
  in_round_ = false;
  ++next_round_;
  ++counters_.rounds;
  After(lock, std::move(result));
  driving_ = false;
  if (waiters_ > 0) progress_.notify_all();
  if (loop_asleep_ && (RoundIsDue() || has_ended_)) loop_wakes_.notify_one();
}

void ProcessSet::After(Lock& lock, Result<RoundResult> result) {
  if (!result.ok()) {
    // What was queued on GPUs may wait for the rank that is missing here.
    if (!has_ended_) hooks_.break_off();
    End(has_ended_ ? ended_ : result.status());
    return;
  }
  failing_in_round_ = false;
  quiet_ = !result->news;
  if (result->negotiated) ++counters_.negotiated_rounds;
  if (timeline_->is_open()) {
    for (auto& [name, ranks] : result->newly_ready) ranks = Globally(ranks);
    timeline_->Round(options_.id, next_round_ - 1, *result);
  }
  if (result->tuning) {
    // What waits to be moved was agreed on before, and all ranks move it as it was.
    if (result->tuning->hierarchical != tuning_.hierarchical) DrainMover(lock);
    tuning_ = *result->tuning;
    if (hooks_.tuned) hooks_.tuned(tuning_);
  }
  if (result->stall_checked) ReportStalls(*result);
  if (result->set_waits && hooks_.waits_collected) {
    hooks_.waits_collected(*result->set_waits);
  }
  const std::map<int, std::string> leaving = result->leaving;
  const std::optional<int> last_joined = result->last_joined;
  Dispatch(lock, std::move(*result));
  if (has_ended_) {
    End(ended_);
    return;
  }
  standing_ = controller_.HasPending() || controller_.joined();
  unsent_ = controller_.HasUnsent();
  oldest_ns_ = incoming_.empty() ? 0 : incoming_.front()->since_ns;
  if (controller_.HasPending()) {
    oldest_ns_ = controller_.OldestPendingNs();
  }
  if (last_joined) FinishJoin(*last_joined);
  if (!leaving.empty()) {
    const auto& [rank, reason] = *leaving.begin();
    DrainMover(lock);
    End(RemoteError("rank {} has shut down{}{}", options_.members[static_cast<size_t>(rank)],
                    reason.empty() ? "" : ": ", reason));
  }
}

void ProcessSet::Dispatch(Lock& lock, RoundResult result) {
  if (result.responses.empty()) return;
  for (size_t i = 0; i < result.responses.size(); ++i) {
    Response& response = result.responses[i];
    FetchAhead(result.responses, i);
    if (response.pending) TicketOf(*response.pending).dispatched = true;
    if (!response.error.empty()) FailOrHold(response);
    if (response.moved_inline) {
      ++counters_.moved_inline;
      FinishInline(response);
    }
    if (response.cached) ++counters_.cached;
    ++counters_.tensors;
  }
  if (result.responses.size() == 1 && result.responses[0].moved_inline) return;
  if (result.responses.size() == 1 && result.responses[0].pending &&
      !ChangesSets(result.responses[0].agreement().request.kind)) {
    const int64_t bytes = result.responses[0].agreement().bytes();
    Run(lock, std::move(result.responses), bytes);
    return;
  }
  DispatchFused(lock, result);
}

void ProcessSet::DispatchFused(Lock& lock, RoundResult& result) {
  std::vector<Response>& responses = result.responses;
  if (result.sequence == 0 || result.sequence != fused_.sequence ||
      tuning_.fusion_threshold != fused_.threshold) {
    fused_ = {result.sequence, tuning_.fusion_threshold, {}, {}, false};
    fused_.batches = Fuse(responses, {tuning_.fusion_threshold, options_.fuse_groups});
    for (const std::vector<size_t>& indices : fused_.batches) {
      int64_t bytes = 0;
      for (const size_t i : indices) bytes += responses[i].agreement().bytes();
      fused_.bytes.push_back(bytes);
    }
    fused_.all_in_order = fused_.batches.size() == 1 &&
                          fused_.batches[0].size() == responses.size() &&
                          std::is_sorted(fused_.batches[0].begin(), fused_.batches[0].end());
  }
  for (size_t b = 0; b < fused_.batches.size(); ++b) {
    Batch batch;
    if (fused_.all_in_order) {
      batch = std::exchange(responses, {});
    } else {
      for (const size_t i : fused_.batches[b]) batch.push_back(std::move(responses[i]));
    }
    if (ChangesSets(batch.front().agreement().request.kind)) {
      ChangeSets(lock, std::move(batch.front()));
    } else {
      Run(lock, std::move(batch), fused_.bytes[b]);
    }
  }
}

void ProcessSet::Run(Lock& lock, Batch batch, int64_t bytes) {
  ++counters_.batches;
  if (moving_.empty() && !mover_busy_ && bytes < kMoveElsewhereBytes) {
    Perform(batch, lock);
    return;
  }
  moving_.push_back(std::move(batch));
}

void ProcessSet::MoveOne(Lock& lock) {
  Batch batch = std::move(moving_.front());
  moving_.pop_front();
  mover_busy_ = true;
  Perform(batch, lock);
  mover_busy_ = false;
  progress_.notify_all();
}

// Hands what is left in moving_ to the other thread.
void ProcessSet::MoveElsewhere(Lock& lock) {
  if (moving_.empty() || mover_busy_) return;
  if (StartMover()) {
    mover_wakes_.notify_one();
    return;
  }
  while (!moving_.empty() && !mover_busy_) MoveOne(lock);
}

// False where the system grants no thread: the driver then moves everything itself.
bool ProcessSet::StartMover() {
  if (mover_.joinable()) return true;
  Result<std::thread> thread = StartThread("tutti-move", [this] { MoverLoop(); });
  if (thread.ok()) mover_ = std::move(*thread);
  return mover_.joinable();
}

void ProcessSet::Perform(Batch& batch, Lock& lock) {
  Status broken = has_ended_ ? ended_ : Status::Ok();
  if (broken.ok()) {
    lock.unlock();
    Status status = PerformOn(batch);
    // What is queued on a GPU takes a time that nobody here knows.
    const bool timed = batch.front().agreement().request.device < 0;
    if (autotune_ && timed && status.ok()) {
      int64_t bytes = 0;
      for (const Response& response : batch) bytes += response.agreement().bytes();
      autotune_->Moved(batch.front().agreement().name, bytes, NowNs());
    }
    lock.lock();
    broken = has_ended_ && !status.ok() ? ended_ : std::move(status);
  }
  if (!batch.empty()) NoteFinished(batch.back());
  for (size_t i = 0; i < batch.size(); ++i) {
    FetchAhead(batch, i);
    Finish(batch[i], broken);
  }
  if (waiters_ > 0) progress_.notify_all();
  if (!broken.ok() && !has_ended_) {
    // An operation that failed leaves its communicator unusable.
    ended_ = broken;
    has_ended_ = true;
    hooks_.break_off();
    if (!driving_) End(broken);
    loop_wakes_.notify_all();
  }
  if (autotune_ && !new_tuning_ && !has_ended_) new_tuning_ = autotune_->TakeNext(tuning_);
}

Status ProcessSet::PerformOn(Batch& batch) {
  if (batch.front().agreement().request.device < 0) return performer_.Perform(batch);
  return gpu_performer_.Perform(batch);
}

void ProcessSet::MoverLoop() {
  log::SetThreadRank(options_.members[static_cast<size_t>(options_.rank)]);
  Lock lock(mutex_);
  for (;;) {
    mover_wakes_.wait(lock, [&] { return moving_.empty() ? has_ended_ : !mover_busy_; });
    if (moving_.empty()) return;
    ++counters_.handed_over;
    MoveOne(lock);
  }
}

void ProcessSet::DrainMover(Lock& lock) {
  MoveElsewhere(lock);
  ++waiters_;
  progress_.wait(lock, [&] { return moving_.empty() && !mover_busy_; });
  --waiters_;
}

// Whoever adds or removes sets uses this set's communicators, so nothing else may.
void ProcessSet::ChangeSets(Lock& lock, Response response) {
  DrainMover(lock);
  lock.unlock();
  const Result<int> number = hooks_.change_sets(response.agreement());
  lock.lock();
  if (response.pending && number.ok()) TicketOf(*response.pending).number = *number;
  Finish(response, number.ok() ? Status::Ok() : number.status());
}

// The data came with the states: nothing is left but to hand the result over.
void ProcessSet::FinishInline(Response& response) {
  Status status = DeliverInlineData(response);
  NoteFinished(response);
  Finish(response, status);
}

void ProcessSet::NoteFinished(const Response& response) {
  if (!response.pending) return;
  last_finished_ = response.pending->name;
  last_finished_ns_ = RoughlyNowNs();
}

void ProcessSet::Finish(Response& response, const Status& status) {
  if (!response.pending) return;
  std::unique_ptr<Tensor> tensor(static_cast<Tensor*>(response.pending.release()));
  timeline_->End(options_.id, tensor->name);
  const TicketHold ticket = std::move(tensor->ticket);
  TensorHome& home = *tensor->home;
  home.busy = false;
  home.pending = nullptr;
  home.spare = std::move(tensor);
  if (names_.size() > forget_above_) {
    ForgetIdleNames();
    forget_above_ = std::max(kMaxRememberedNames, 2 * names_.size());  // the rest are all pending
  }
  ticket->status = status;
  ticket->done.store(true, std::memory_order_release);
}

// REQUIRES: the response has an error.
void ProcessSet::FailOrHold(Response& response) {
  if (response.check <= decided_) return Finish(response, InvalidUsage("{}", response.error));
  if (!response.pending) return;
  Response& held = held_.emplace_back();
  held.error = response.error;
  held.check = response.check;
  held.pending = std::move(response.pending);
}

void ProcessSet::FinishHeld(uint64_t check) {
  std::erase_if(held_, [&](Response& response) {
    if (response.check > check) return false;
    Finish(response, InvalidUsage("{}", response.error));
    return true;
  });
}

void ProcessSet::FinishJoin(int last) {
  if (!join_) return;
  join_->number = options_.members[static_cast<size_t>(last)];
  join_->done.store(true, std::memory_order_release);
  join_.Drop();
}

// Fails everything that is pending. REQUIRES: this thread drives, or nobody does.
void ProcessSet::End(const Status& reason) {
  if (!has_ended_) ended_ = reason;
  has_ended_ = true;
  if (hooks_.ended && !std::exchange(end_told_, true)) hooks_.ended(ended_);
  for (auto& tensor : controller_.TakeAll()) incoming_.push_back(std::move(tensor));
  for (auto& tensor : std::exchange(incoming_, {})) {
    Response response;
    response.pending = std::move(tensor);
    Finish(response, ended_);
  }
  FinishHeld(UINT64_MAX);
  if (join_) {
    join_->status = ended_;
    join_->done.store(true, std::memory_order_release);
    join_.Drop();
  }
  progress_.notify_all();
  loop_wakes_.notify_all();
  mover_wakes_.notify_all();
}

bool ProcessSet::Wait(Ticket& ticket, Deadline deadline) {
  if (ticket.done.load(std::memory_order_acquire)) return true;
  Lock lock(mutex_);
  const bool may_drive = deadline.at_ns() == Deadline::Never().at_ns();
  if (may_drive) blocked_.push_back({ThisThread(), &ticket});
  while (!ticket.done.load(std::memory_order_acquire)) {
    if (may_drive && ticket.dispatched && !moving_.empty() && !mover_busy_) {
      MoveOne(lock);
      continue;
    }
    MoveElsewhere(lock);
    if (may_drive && !driving_ && !ticket.dispatched && RoundIsDue()) {
      Drive(lock);
      continue;
    }
    if (deadline.Passed()) return false;
    ++waiters_;
    if (loop_asleep_ && RoundIsDue()) loop_wakes_.notify_one();
    if (may_drive) {
      progress_.wait(lock);
    } else {
      progress_.wait_for(lock, std::chrono::milliseconds(deadline.RemainingMs(1000)));
    }
    --waiters_;
  }
  if (may_drive) {
    blocked_.erase(std::find_if(blocked_.begin(), blocked_.end(), [&](const Blocked& b) {
      return b.ticket == &ticket && b.thread == ThisThread();
    }));
  }
  MoveElsewhere(lock);
  return true;
}

void ProcessSet::Loop() {
  log::SetThreadRank(options_.members[static_cast<size_t>(options_.rank)]);
  Lock lock(mutex_);
  int64_t busy_until_ns = 0;
  int64_t gap_ns = kGapNs;
  while (!has_ended_) {
    if (driving_ || !RoundIsDue()) {
      if (NowNs() < busy_until_ns) {
        loop_wakes_.wait_for(lock, Nanoseconds(gap_ns));
        gap_ns = std::min(2 * gap_ns, kLongestGapNs);
      } else {
        loop_asleep_ = true;
        loop_wakes_.wait(lock);
        loop_asleep_ = false;
      }
      continue;
    }
    // More may come, unless somebody waits for what is here.
    const int64_t window_end_ns = NowNs() + tuning_.window_ns;
    size_t seen = incoming_.size();
    gap_ns = std::min(kGapNs, tuning_.window_ns);
    while (!has_ended_ && !driving_ && waiters_ == 0 && !incoming_.empty() && !leaving_ &&
           NowNs() < window_end_ns) {
      loop_wakes_.wait_for(lock, Nanoseconds(gap_ns));
      if (incoming_.size() == seen) break;
      seen = incoming_.size();
      gap_ns = std::min({2 * gap_ns, kLongestGapNs, tuning_.window_ns});
    }
    gap_ns = kGapNs;
    if (!has_ended_ && !driving_ && RoundIsDue()) Drive(lock);
    MoveElsewhere(lock);
    busy_until_ns = NowNs() + kHotNs;
  }
}

void ProcessSet::OnDoorbell(uint64_t round) {
  const Lock lock(mutex_);
  // Ranks are never far apart: such a ring is no rank's, and would keep all in rounds for ever.
  if (has_ended_ || round > next_round_ + kMostAhead) return;
  called_round_ = std::max(called_round_, round + 1);
  RingDoorbell(round);
  loop_wakes_.notify_one();
  if (waiters_ > 0) progress_.notify_all();
}

void ProcessSet::Leave(const std::string& reason) {
  const Lock lock(mutex_);
  if (has_ended_ || leaving_) return;
  leaving_ = reason;
  RingDoorbell(in_round_ ? next_round_ + 1 : next_round_);
  loop_wakes_.notify_one();
  if (waiters_ > 0) progress_.notify_all();
}

bool ProcessSet::AwaitEnd(Deadline deadline) {
  Lock lock(mutex_);
  while (!has_ended_ || driving_) {
    if (deadline.Passed()) return false;
    ++waiters_;
    progress_.wait_for(lock, std::chrono::milliseconds(deadline.RemainingMs(1000)));
    --waiters_;
  }
  return true;
}

void ProcessSet::Fail(const Status& reason) {
  const Lock lock(mutex_);
  if (has_ended_) return;
  ended_ = reason;
  has_ended_ = true;
  hooks_.break_off();
  // A driver comes out of its round with an error and ends the rest.
  if (!driving_) End(reason);
  loop_wakes_.notify_all();
  mover_wakes_.notify_all();
}

Status ProcessSet::ended() const {
  const Lock lock(mutex_);
  return has_ended_ ? ended_ : Status::Ok();
}

ProcessSet::Counters ProcessSet::counters() const {
  const Lock lock(mutex_);
  Counters counters = counters_;
  counters.names = names_.size();
  return counters;
}

}  // namespace tutti::coordinator
