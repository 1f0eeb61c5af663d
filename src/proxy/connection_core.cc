#include "proxy/connection_core.h"

#include <sys/epoll.h>

#include <utility>

#include "base/log.h"

namespace tutti {
namespace {

// The interval at which the progress thread looks at a connection that was handed over while a
// kernel still polls. The connection's descriptors are not armed meanwhile, because each chunk
// would wake the progress thread for nothing.
constexpr int64_t kLookAgainNs = 1'000'000;

// The delay after which an idle connection is driven again at its comm's wish.
constexpr int64_t kTendSoonNs = 10'000'000;
constexpr int64_t kTendSeldomNs = 1'000'000'000;

// After this many moves in a row the progress thread gives way to other connections.
constexpr int kMovesInARow = 16;

std::string_view Remedy(Code code) {
  switch (code) {
    case Code::kRemoteError:
      return "; the peer's process has probably ended or its host is out of reach: its own log "
             "tells more";
    case Code::kSystemError:
      return "; this host refused: check its memory, its limits (ulimit) and its network interface";
    default:
      return "";
  }
}

}  // namespace

ConnectionCore::ConnectionCore(EventLoop& loop, FifoMemory memory, NetComm& comm, std::string doing,
                               std::string peer)
    : loop_(loop),
      memory_(std::move(memory)),
      comm_(comm),
      doing_(std::move(doing)),
      peer_(std::move(peer)) {
  std::vector<int> fds;
  comm_.AppendFds(fds);
  for (const int fd : fds) {
    watches_.push_back(std::make_unique<Watch>());
    watches_.back()->fd = fd;
  }
}

void ConnectionCore::Begin(uint64_t chunks, uint32_t op_tag) {
  if (ops_.Add(chunks, op_tag)) return;
  Close(InternalError("more than {} operations were begun {} {}", OpPool::kOps, doing_, peer_));
}

// A look at an idle connection would be a system call for nothing.
bool ConnectionCore::Poll() { return !Settled() && Look(); }

bool ConnectionCore::Look() {
  if (failed_.load(std::memory_order_relaxed) || !driver_.TryTake()) return false;
  ++kernel_polls_;
  const bool moved = Drive();
  if (state_ == State::kProgress) Arm();
  if (Settled()) WatchIdle();
  driver_.Give();
  ServeRequests();
  return moved;
}

std::optional<size_t> ConnectionCore::Undelivered() {
  if (!driver_.TryTake()) return std::nullopt;
  const size_t left = CountUndelivered();
  driver_.Give();
  ServeRequests();
  return left;
}

// Drives once more before the descriptors are named: bytes that the comm has read already make no
// descriptor ready.
SleepAdvice ConnectionCore::PrepareToSleep(std::vector<pollfd>& descriptors) {
  if (failed_.load(std::memory_order_acquire)) return SleepAdvice::kGoOn;
  if (Settled()) return SleepAdvice::kSleep;
  if (!driver_.TryTake()) return SleepAdvice::kGoOn;
  ++kernel_polls_;
  SleepAdvice advice = SleepAdvice::kGoOn;
  if (!Drive() && !failed_.load(std::memory_order_acquire)) {
    TakeBack();
    waits_.clear();
    const NetIdle idle = comm_.PrepareToWait(waits_);
    for (const NetWait& wait : waits_)
      descriptors.push_back({wait.fd, static_cast<short>(wait.events), 0});
    if (idle == NetIdle::kWait) advice = SleepAdvice::kSleep;
    if (idle == NetIdle::kPoll) advice = SleepAdvice::kHandOver;
  } else if (Settled()) {
    WatchIdle();
  }
  driver_.Give();
  ServeRequests();
  return advice;
}

// Callbacks that come later find the connection with the kernel and leave the connection alone.
void ConnectionCore::TakeBack() {
  if (state_ == State::kKernel) return;
  Advance(Event::kTakenBack);
  for (const auto& watch : watches_)
    if (watch->armed.value_or(0) != 0) ArmWatch(*watch, 0);
}

void ConnectionCore::HandOver() {
  if (failed_.load(std::memory_order_relaxed) || Settled()) return;
  Request(kHandOver);
}

// The only function that changes the state.
void ConnectionCore::Advance(Event event) {
  if (state_ == State::kStopped) return;
  switch (event) {
    case Event::kHandedOver:
      state_ = State::kProgress;
      break;
    case Event::kTakenBack:
    case Event::kSettled:
      state_ = State::kKernel;
      break;
    case Event::kTimerSet:
      state_ = State::kTimer;
      break;
    case Event::kTimerFired:
      if (state_ == State::kTimer) state_ = State::kProgress;
      break;
    case Event::kStop:
      state_ = State::kStopped;
      break;
  }
}

void ConnectionCore::Request(Wish wish) {
  wishes_.fetch_or(wish, std::memory_order_seq_cst);
  ServeRequests();
}

void ConnectionCore::ServeRequests() {
  // Sequentially consistent with the store of the request: either this thread gets the connection,
  // or the thread that has the connection sees the request after its Give.
  while (wishes_.load(std::memory_order_seq_cst) != 0) {
    if (!driver_.TryTake()) return;
    if (const uint32_t wishes = wishes_.exchange(0, std::memory_order_seq_cst)) Serve(wishes);
    driver_.Give();
  }
}

bool ConnectionCore::Drive() {
  if (failed_.load(std::memory_order_acquire) || state_ == State::kStopped) return false;
  Result<bool> moved = Move();
  ops_.Retire(done());
  if (!moved.ok()) {
    Fail(std::move(moved).status());
    return false;
  }
  return moved.value();
}

// While a kernel still polls, the progress thread only looks now and then, because the two threads
// would only hold each other up.
void ConnectionCore::Serve(uint32_t wishes) {
  const bool given = (wishes & kHandOver) != 0;
  if (given) Advance(Event::kHandedOver);
  const bool fired = CollectFired(wishes);
  if (state_ == State::kStopped) return;
  if (state_ == State::kKernel) {
    if ((fired || (wishes & kTendTimerFired) != 0) && Settled()) Tend(fired);
    return;
  }
  int moves = 0;
  while (moves < kMovesInARow && Drive()) ++moves;
  if (!given && kernel_polls_ != kernel_polls_before_) {
    if (!Settled() && !failed_.load(std::memory_order_acquire)) {
      LookAgainLater();
      return;
    }
  }
  kernel_polls_before_ = kernel_polls_;
  if (state_ == State::kProgress) Arm();
  if (moves == kMovesInARow) LookAgainSoon();
}

// EPOLLONESHOT has disarmed the descriptors that fired.
bool ConnectionCore::CollectFired(uint32_t wishes) {
  bool fired = false;
  for (const auto& watch : watches_) {
    if (!watch->fired.exchange(false, std::memory_order_acquire)) continue;
    watch->armed.reset();
    fired = true;
  }
  if ((wishes & kTendTimerFired) != 0) tend_timer_ = 0;
  if ((wishes & kTimerFired) != 0) {
    timer_ = 0;
    Advance(Event::kTimerFired);
  }
  return fired;
}

void ConnectionCore::WatchIdle() {
  if (failed_.load(std::memory_order_relaxed)) return;
  const NetCare care = comm_.Care();
  if (care == NetCare::kNone) {
    for (const auto& watch : watches_)
      if (!watch->armed) ArmWatch(*watch, 0);
    return;
  }
  TendAfter(care == NetCare::kSoon ? kTendSoonNs : kTendSeldomNs);
}

void ConnectionCore::TendAfter(int64_t after_ns) {
  if (tend_timer_ == 0)
    tend_timer_ = loop_.AddTimer(after_ns, [this] { Request(kTendTimerFired); });
}

// A failure is kept for the next operation. A comm that waits for nothing may leave an error in its
// socket. The descriptor would report the error again at once, and is therefore armed after a
// pause.
void ConnectionCore::Tend(bool fired) {
  comm_.LookClosely();
  Drive();
  const bool left = fired && comm_.Care() == NetCare::kNone;
  if (left && !failed_.load(std::memory_order_relaxed)) return TendAfter(kTendSeldomNs);
  WatchIdle();
}

// Arms the events that could let the operations begun so far go on; none once these operations are
// done.
void ConnectionCore::Arm() {
  waits_.clear();
  NetIdle idle = NetIdle::kWait;
  const bool settled = Settled() || failed_.load(std::memory_order_acquire);
  if (settled)
    Advance(Event::kSettled);
  else
    idle = comm_.PrepareToWait(waits_);
  for (const auto& watch : watches_) {
    uint32_t events = 0;
    for (const NetWait& wait : waits_) {
      if (wait.fd == watch->fd) events |= wait.events;
    }
    if (events != watch->armed.value_or(0)) ArmWatch(*watch, events);
  }
  if (settled) WatchIdle();
  if (idle == NetIdle::kProgress) LookAgainSoon();
  if (idle == NetIdle::kPoll) LookAgainLater();
}

void ConnectionCore::ArmWatch(Watch& watch, uint32_t events) {
  Status status;
  if (watch.added) {
    status = loop_.ModifyFd(watch.fd, events | EPOLLONESHOT);
  } else {
    watch.added = true;
    status = loop_.AddFd(watch.fd, events | EPOLLONESHOT, [this, &watch](uint32_t) {
      watch.fired.store(true, std::memory_order_release);
      Request(kLook);
    });
  }
  watch.armed = events;
  if (!status.ok()) Fail(std::move(status));
}

void ConnectionCore::LookAgainSoon() {
  loop_.Post([this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) Request(kLook);
  });
}

void ConnectionCore::LookAgainLater() {
  kernel_polls_before_ = kernel_polls_;
  Advance(Event::kTimerSet);
  if (timer_ != 0) return;
  timer_ = loop_.AddTimer(kLookAgainNs, [this] { Request(kTimerFired); });
}

// The sentence is made here, where the operation is still known. Sleeping kernels are woken, since
// no data will wake them.
void ConnectionCore::Fail(const Status& status) {
  const uint64_t chunk = done();
  const ProxyOp op = ops_.Find(chunk);
  std::string what =
      op.chunks > 0 ? fmt::format("{} chunk {} of {} of operation {:#x} {}", doing_,
                                  chunk - op.first_chunk + 1, op.chunks, op.op_tag, peer_)
                    : fmt::format("{} chunk {} of the connection {}", doing_, chunk + 1, peer_);
  const Code code = status.code();
  Status full(code,
              fmt::format("{} ({}): {}{}", what, comm_.peer(), status.message(), Remedy(code)));
  {
    const MutexLock lock(failure_mutex_);
    if (failure_.ok()) {
      TUTTI_INFO(kLogProxy | kLogNet, "{}", full.message());
      failure_ = std::move(full);
    }
  }
  failed_.store(true, std::memory_order_release);
  WakeAll();
}

// Threads may sleep on the head or on any slot, at either end.
void ConnectionCore::WakeAll() {
  const FifoView view = memory_.view();
  FutexWakeAll(view.control().head);
  for (uint64_t slot = 0; slot < kFifoSlots; ++slot) FutexWakeAll(view.header(slot).seq);
}

Status ConnectionCore::status() const {
  // A peer whose operations are all done may close the connection: the end matters to the next
  // operation only.
  if (!failed_.load(std::memory_order_acquire) || Settled()) return Status::Ok();
  const MutexLock lock(failure_mutex_);
  return failure_;
}

// Does not wait for the driving thread, which sees the failure at its next step.
void ConnectionCore::Close(Status reason) {
  {
    const MutexLock lock(failure_mutex_);
    if (failure_.ok()) failure_ = std::move(reason);
  }
  failed_.store(true, std::memory_order_release);
  comm_.Shutdown();
  WakeAll();
}

std::string ConnectionCore::Describe() const {
  const uint64_t chunk = done_.load(std::memory_order_relaxed);
  const uint64_t posted = posted_.load(std::memory_order_relaxed);
  const ProxyOp op = ops_.Find(chunk);
  if (op.chunks == 0) return fmt::format("{} {}: nothing under way", doing_, peer_);
  return fmt::format("{} {}: operation {:#x}, {} of {} chunks done, {} posted", doing_, peer_,
                     op.op_tag, chunk - op.first_chunk, op.chunks, posted - chunk);
}

void ConnectionCore::Stop() {
  // On the loop's thread no callback runs at the same time; later ones find the connection stopped.
  loop_.RunSync([this] {
    while (!driver_.TryTake()) CpuPause();
    Advance(Event::kStop);
    alive_.reset();
    if (timer_ != 0) loop_.CancelTimer(timer_);
    if (tend_timer_ != 0) loop_.CancelTimer(tend_timer_);
    for (const auto& watch : watches_) {
      if (watch->added) loop_.RemoveFd(watch->fd);
    }
    driver_.Give();
  });
}

}  // namespace tutti
