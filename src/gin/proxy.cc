#include "gin/proxy.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "grid/grid.h"

namespace tutti {
namespace {

// The time for which operations under way are left to the network before the progress thread looks
// at them. A kernel that waits for an operation looks itself.
constexpr int64_t kServeAgainNs = 500'000;
// The time for which the progress thread leaves a broken connection unreported, because other ranks
// may still be agreeing on the reason.
constexpr int64_t kReasonComesNs = 2'000'000'000;
// The sleep between two looks of Finish.
constexpr timespec kFinishNap{.tv_sec = 0, .tv_nsec = 100'000};

// The rounds of a wait that look at the network by a system call each: before the thread also
// yields the processor between two looks, and before it sleeps instead. On a busy machine a sleeper
// is woken sooner than a thread that yields.
constexpr uint32_t kLooks = 100;
constexpr uint32_t kLooksWithYields = 110;
// The most connections of one look. Looks take larger numbers of connections in turn.
constexpr size_t kAttendedAtOnce = 16;
// Data from the network ends a sleep, but stores of ranks of the LSA team do not. The first sleeps
// are therefore short.
constexpr int64_t kShortestSleepNs = 20'000;
constexpr int64_t kLongestSleepNs = 1'000'000;

}  // namespace

GinProxy::GinProxy(Parts parts)
    : parts_(std::move(parts)),
      executor_({.rank = parts_.rank,
                 .plan = parts_.plan,
                 .resource = parts_.resource,
                 .symmetric = parts_.symmetric},
                parts_.remote) {
  for (uint32_t queue = 0; queue < parts_.plan.num_queues; ++queue) {
    const int peer = executor_.PeerOf(queue);
    if (executor_.team().Has(peer)) continue;
    remotes_.emplace_back().rank = peer;
    connections_.push_back(&parts_.remote->connection(peer));
  }
}

Result<std::unique_ptr<GinProxy>> GinProxy::Create(Parts parts) {
  std::unique_ptr<GinProxy> proxy(new GinProxy(std::move(parts)));
  TUTTI_TRY(proxy->MakeContexts());
  return proxy;
}

// All contexts share one block of descriptors, and their records lie one behind another in the
// handle.
Status GinProxy::MakeContexts() {
  const auto contexts = static_cast<size_t>(parts_.plan.num_contexts);
  const size_t of_one = size_t{parts_.plan.num_queues} * parts_.plan.queue_depth;
  TUTTI_ASSIGN(descriptors_,
               GinMemory::Allocate(contexts * of_one * sizeof(device::GinDescriptor)));
  handle_ = std::make_unique<GinHandle<device::GinContext>>(this, contexts);
  handle_->ShowSignals(parts_.plan, parts_.remote == nullptr || parts_.remote->ProcessorsAdd());
  for (size_t i = 0; i < contexts; ++i) {
    contexts_.push_back(std::make_unique<GinQueues>(executor_, static_cast<uint32_t>(i),
                                                    descriptors_->data() + i * of_one));
    handle_->context(i) = contexts_[i]->record();
  }
  handle_->WriteRecords();
  return Status::Ok();
}

GinProxy::~GinProxy() {
  parts_.loop->RunSync([this] {
    const MutexLock lock(timer_mutex_);
    ended_ = true;
    if (timer_ != 0) parts_.loop->CancelTimer(timer_);
  });
  for (const auto& context : contexts_) context->Drop();
}

bool GinProxy::Do(uint32_t context, uint32_t queue, const uint64_t* words) {
  GinQueues::Driven driven;
  if (context >= contexts_.size()) {
    driven.failure = InvalidArgument("there is no context {}: the device communicator has {}",
                                     context, contexts_.size());
  } else if (!contexts_[context]->Do(queue, words, &driven)) {
    return false;
  }
  Refuse(std::move(driven));
  return true;
}

void GinProxy::NoteMissing(bool is_signal, uint32_t number) {
  GinQueues::Driven driven;
  driven.failure = NoSuchGinWord(parts_.plan, is_signal, number);
  Refuse(std::move(driven));
}

// Only signals of other hosts have a second word.
bool GinProxy::RefuseOldKernel() {
  if (connections_.empty()) return false;
  GinQueues::Driven driven;
  driven.failure = InvalidUsage(
      "the kernel was compiled with headers of an earlier version of Tutti, and would miss signals "
      "of other hosts: compile the program again");
  Refuse(std::move(driven));
  return true;
}

// Stops the communicator for an impossible operation, with the name of the kernel's thread.
void GinProxy::Refuse(GinQueues::Driven driven) {
  if (driven.failure.ok()) return;
  driven.failure = NameKernelThread(std::move(driven.failure));
  Conclude(driven);
}

void* GinProxy::handle() const { return handle_->get(); }

void GinProxy::RingDoorbell(uint32_t context, uint32_t queue) {
  if (context < contexts_.size()) Conclude(contexts_[context]->RingDoorbell(queue));
}

void GinProxy::Drive(uint32_t context) {
  if (context < contexts_.size()) Conclude(contexts_[context]->Drive());
}

void GinProxy::Wait(uint32_t context, uint32_t round) {
  Drive(context);
  StopIfAlone(*parts_.watch, round);
  if (connections_.empty()) return PauseInGrid(round);
  if (AttendToSome() || round < kLooks) return;
  if (round < kLooksWithYields) {
    sched_yield();
  } else if (connections_.size() <= kAttendedAtOnce) {
    const int64_t longer = (round - kLooksWithYields) * kShortestSleepNs / 8;
    RmaConnection::SleepOn(connections_, std::min(kShortestSleepNs + longer, kLongestSleepNs));
  } else {
    // The progress thread attends to connections that no waiting thread drives.
    PauseInGrid(round + kLooksWithYields);
  }
}

// Takes incoming data from other ranks. Returns whether any data has come.
bool GinProxy::AttendToSome() {
  const size_t count = std::min(connections_.size(), kAttendedAtOnce);
  size_t next = count == connections_.size() ? 0 : next_attended_.fetch_add(kAttendedAtOnce);
  bool moved = false;
  for (size_t i = 0; i < count; ++i, ++next) {
    const size_t place = next % connections_.size();
    if (remotes_[place].left.load(std::memory_order_relaxed)) continue;
    Result<bool> attended = connections_[place]->Attend();
    if (attended.ok())
      moved |= *attended;
    else
      OnBroken(remotes_[place], std::move(attended).status());
  }
  return moved;
}

// A kernel waits, and the connection to a rank is broken. A rank that has ended its communicator in
// order had completed its operations. In any other case the data that the kernel waits for may be
// lost.
void GinProxy::OnBroken(Remote& remote, Status failure) {
  if (parts_.watch->stopped()) return;
  failure = parts_.watch->FirstReason(std::move(failure), remote.rank);
  if (!parts_.watch->stopped() && parts_.watch->HasLeft(remote.rank)) {
    remote.left.store(true, std::memory_order_relaxed);
    return;
  }
  parts_.watch->Stop(std::move(failure).Annotate("a kernel's wait"), /*tell=*/true);
}

void GinProxy::Conclude(const GinQueues::Driven& driven) {
  if (!driven.failure.ok()) {
    Status failure = Status(driven.failure).Annotate("a kernel's operation on the network");
    // An operation with invalid operands is an error of this rank alone. The reason for a broken
    // connection may still be under way, and the progress thread must not wait for the reason.
    const bool of_network =
        failure.code() == Code::kRemoteError || failure.code() == Code::kSystemError;
    if (of_network && parts_.loop->OnLoopThread()) return StopLater(std::move(failure));
    if (of_network) failure = parts_.watch->FirstReason(std::move(failure), driven.peer);
    parts_.watch->Stop(failure, /*tell=*/true);
    return;
  }
  if (driven.under_way) ServeLater();
}

void GinProxy::ServeLater() {
  const MutexLock lock(timer_mutex_);
  if (timer_ == 0 && !ended_) timer_ = parts_.loop->AddTimer(kServeAgainNs, [this] { Serve(); });
}

// Leaves the decision to waiting kernels and to the reason that is under way. Without either, the
// communicator stops for the failure seen here.
void GinProxy::StopLater(Status failure) {
  const MutexLock lock(timer_mutex_);
  if (ended_) return;
  if (timer_ != 0) parts_.loop->CancelTimer(timer_);
  timer_ = parts_.loop->AddTimer(kReasonComesNs, [this, reason = std::move(failure)] {
    {
      const MutexLock timer_lock(timer_mutex_);
      timer_ = 0;
    }
    parts_.watch->Stop(reason, /*tell=*/true);
  });
}

void GinProxy::Serve() {
  {
    const MutexLock lock(timer_mutex_);
    timer_ = 0;
  }
  if (parts_.watch->stopped()) return;
  for (uint32_t i = 0; i < contexts_.size(); ++i) Drive(i);
}

bool GinProxy::Busy() const {
  return std::any_of(contexts_.begin(), contexts_.end(),
                     [](const auto& context) { return context->busy(); });
}

Status GinProxy::Finish(Deadline deadline) {
  while (Busy() && !parts_.watch->stopped()) {
    if (deadline.Passed()) return Timeout("other ranks do not take what kernels have put");
    for (uint32_t i = 0; i < contexts_.size(); ++i) Drive(i);
    nanosleep(&kFinishNap, nullptr);
  }
  return Status::Ok();
}

}  // namespace tutti
