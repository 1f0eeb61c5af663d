#include "watch/call_checker.h"

#include <chrono>
#include <utility>

#include "sys/thread.h"

namespace tutti {
namespace {

// Longer than most pauses between the steps of a job, and short enough that a person who looks for
// the reason of a stall finds the answer in the log.
constexpr int64_t kLookEveryNs = 200'000'000;
// Operations launched before a rank was cut short end here within this time, if they can.
constexpr auto kCutGrace = std::chrono::seconds(1);

}  // namespace

CallChecker::CallChecker(EventLoop& loop, Watch& watch, const Options& options,
                         std::function<bool()> unfinished)
    : loop_(loop),
      watch_(watch),
      unfinished_(std::move(unfinished)),
      rank_(options.rank),
      next_((options.rank + 1) % options.num_ranks) {
  watch_.SetLeaveHook([this] { Wake(); });
}

// The timer ends before the thread, because a look may start the thread.
CallChecker::~CallChecker() {
  watch_.SetLeaveHook(nullptr);
  std::thread asking;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    if (timer_ != 0) loop_.CancelTimer(timer_);
    stops_.NotifyAll();
  }
  loop_.RunSync([] {});  // A look that was under way is over.
  {
    const MutexLock lock(mutex_);
    asking = std::move(asking_);
  }
  if (asking.joinable()) asking.join();
}

void CallChecker::Note(const Task& task, uint32_t registered, uint32_t advised) {
  if (const auto* const message = std::get_if<MessageTask>(&task)) {
    if (message->peer == rank_) return;  // Both ends are in one call, which has compared them.
    MessageCall call = {SignatureOf(*message), message->is_send};
    const Watch::Operation begun(watch_, std::span(&call, 1));
  } else {
    const auto& collective = std::get<CollectiveTask>(task);
    OpSignature signature = SignatureOf(collective);
    signature.registered = registered;
    signature.advised = advised;
    const Watch::Operation begun(watch_, signature, collective.parts);
  }
  calls_.fetch_add(1, std::memory_order_seq_cst);
  Wake();
}

void CallChecker::Wake() {
  if (!armed_.load(std::memory_order_seq_cst) && !armed_.exchange(true)) Arm();
}

void CallChecker::Arm() {
  const MutexLock lock(mutex_);
  if (!stopping_) timer_ = loop_.AddTimer(kLookEveryNs, [this] { Look(); });
}

// While calls go on, the ranks have nothing to compare; the comparison comes with the first look
// that finds no new call.
void CallChecker::Look() {
  if (watch_.stopped()) return;
  CheckLeaveNotices();
  const uint64_t calls = calls_.load();
  if (calls != seen_) {
    seen_ = calls;
    Arm();
    return;
  }
  watch_.CompareRecent(next_);
  armed_.store(false);
  // A call in the meantime has found the flag up, and has not armed the timer.
  if (calls_.load() != seen_ && !armed_.exchange(true)) Arm();
}

// Whether an operation hangs on a rank that was cut short is known to the GPU alone. The question
// may block, so a thread of its own asks.
void CallChecker::CheckLeaveNotices() {
  if (Status gone = watch_.CheckLeaveNotices(); !gone.ok()) {
    watch_.Stop(gone, /*tell=*/true);
    return;
  }
  if (!watch_.CutShort()) return;
  const MutexLock lock(mutex_);
  if (stopping_ || asking_now_) return;
  if (asking_.joinable()) asking_.join();  // The thread has ended, so join does not wait.
  Result<std::thread> asking = StartThread("tutti-look", [this] { AskTheGpu(); });
  asking_now_ = asking.ok();
  if (asking.ok()) asking_ = std::move(asking).value();
}

// An operation that had all its data may still end by itself, so the question comes after a grace.
void CallChecker::AskTheGpu() {
  const uint64_t calls = calls_.load();
  const auto until = std::chrono::steady_clock::now() + kCutGrace;
  MutexLock lock(mutex_);
  while (!stopping_ && stops_.WaitUntil(lock, until)) {
  }
  if (stopping_) return;
  lock.Unlock();
  if (!watch_.stopped() && unfinished_())
    if (const std::optional<Status> reason = watch_.CutShort()) watch_.Stop(*reason, /*tell=*/true);
  // Later calls may also wait for the rank that is gone.
  if (calls_.load() != calls) Wake();
  lock.Lock();
  asking_now_ = false;
}

}  // namespace tutti
