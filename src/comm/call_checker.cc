#include "comm/call_checker.h"

#include "comm/executor.h"

namespace tutti {
namespace {

// Between steps of a job there are pauses of this length at most now and then, and somebody who looks
// for the reason of a stuck job has not yet begun to.
constexpr int64_t kLookEveryNs = 200'000'000;

}  // namespace

CallChecker::CallChecker(EventLoop& loop, Watch& watch, const Options& options)
    : loop_(loop),
      watch_(watch),
      rank_(options.rank),
      next_((options.rank + 1) % options.num_ranks),
      collectives_too_(options.collectives) {}

CallChecker::~CallChecker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (timer_ != 0) loop_.CancelTimer(timer_);
  }
  loop_.RunSync([] {});  // a look that was under way is over
}

void CallChecker::Note(const Task& task) {
  if (task.collective == Collective::kSendRecv) {
    if (task.root == rank_) return;  // both ends are in one call, which has looked
    watch_.NoteMessage(SignatureOf(task, 0), task.is_send);
  } else {
    if (!collectives_too_) return;
    watch_.NoteCall(SignatureOf(task, ++collectives_));
  }
  calls_.fetch_add(1, std::memory_order_seq_cst);
  if (!armed_.load(std::memory_order_seq_cst) && !armed_.exchange(true)) Arm();
}

void CallChecker::Arm() {
  const std::lock_guard lock(mutex_);
  if (!stopping_) timer_ = loop_.AddTimer(kLookEveryNs, [this] { Look(); });
}

void CallChecker::Look() {
  if (watch_.stopped()) return;
  const uint64_t calls = calls_.load();
  if (calls != seen_) {
    seen_ = calls;
    Arm();
    return;
  }
  if (collectives_too_) watch_.CompareCalls(next_);
  watch_.CompareMessages();
  armed_.store(false);
  // A call that came meanwhile has seen the flag up.
  if (calls_.load() != seen_ && !armed_.exchange(true)) Arm();
}

}  // namespace tutti
