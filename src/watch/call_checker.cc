#include "watch/call_checker.h"

#include <chrono>
#include <utility>

#include "sys/thread.h"

namespace tutti {
namespace {

// Between steps of a job there are pauses of this length at most now and then, and somebody who
// looks for the reason of a stuck job has not yet begun to.
constexpr int64_t kLookEveryNs = 200'000'000;
// What a rank that was cut short had finished nevertheless ends here within this.
constexpr auto kCutGrace = std::chrono::seconds(1);

}  // namespace

CallChecker::CallChecker(EventLoop& loop, Watch& watch, const Options& options,
                         std::function<bool()> unfinished)
    : loop_(loop),
      watch_(watch),
      unfinished_(std::move(unfinished)),
      rank_(options.rank),
      num_ranks_(options.num_ranks),
      next_((options.rank + 1) % options.num_ranks) {
  watch_.SetDepartureHook([this] { Wake(); });
}

CallChecker::~CallChecker() {
  watch_.SetDepartureHook(nullptr);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (timer_ != 0) loop_.CancelTimer(timer_);
  }
  stops_.notify_all();
  loop_.RunSync([] {});  // a look that was under way is over
  if (asking_.joinable()) asking_.join();
}

void CallChecker::Note(const Task& task, uint32_t registered) {
  const bool exchanges = task.collective == Collective::kAlltoAllV;
  if (task.collective == Collective::kSendRecv) {
    if (task.root == rank_) return;  // both ends are in one call, which has looked
    watch_.NoteMessage(SignatureOf(task, 0), task.is_send);
  } else {
    OpSignature signature = SignatureOf(task, ++collectives_);
    signature.registered = registered;
    watch_.NoteCall(signature);
  }
  if (exchanges) NoteExchange(task);
  calls_.fetch_add(1, std::memory_order_seq_cst);
  Wake();
}

// Which two ranks alone can compare.
void CallChecker::NoteExchange(const Task& task) {
  OpSignature message;
  message.collective = Collective::kSendRecv;
  message.type = task.type;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    const auto at = static_cast<size_t>(peer);
    message.root = peer;
    message.count = task.parts->send_counts[at];
    watch_.NoteMessage(message, /*is_send=*/true);
    message.count = task.parts->recv_counts[at];
    watch_.NoteMessage(message, /*is_send=*/false);
  }
}

void CallChecker::SayGoodbye(bool finished) { watch_.SayLeaving(finished); }

void CallChecker::Wake() {
  if (!armed_.load(std::memory_order_seq_cst) && !armed_.exchange(true)) Arm();
}

void CallChecker::Arm() {
  const std::lock_guard lock(mutex_);
  if (!stopping_) timer_ = loop_.AddTimer(kLookEveryNs, [this] { Look(); });
}

void CallChecker::Look() {
  if (watch_.stopped()) return;
  LookForDepartures();
  const uint64_t calls = calls_.load();
  if (calls != seen_) {
    seen_ = calls;
    Arm();
    return;
  }
  watch_.CompareCalls(next_);
  watch_.CompareMessages();
  armed_.store(false);
  // A call that came meanwhile has seen the flag up.
  if (calls_.load() != seen_ && !armed_.exchange(true)) Arm();
}

void CallChecker::LookForDepartures() {
  bool cut_short = false;
  if (Status gone = watch_.CheckDepartures(&cut_short); !gone.ok()) {
    watch_.Stop(gone, /*tell=*/true);
    return;
  }
  if (!cut_short) return;
  const std::lock_guard lock(mutex_);
  if (stopping_ || asking_now_) return;
  if (asking_.joinable()) asking_.join();  // it has ended
  asking_now_ = true;
  Result<std::thread> asking = StartThread("tutti-look", [this] { AskTheGpu(); });
  asking_now_ = asking.ok();
  if (asking.ok()) asking_ = std::move(asking).value();
}

void CallChecker::AskTheGpu() {
  const uint64_t calls = calls_.load();
  std::unique_lock lock(mutex_);
  if (stops_.wait_for(lock, kCutGrace, [this] { return stopping_; })) return;
  lock.unlock();
  if (!watch_.stopped() && unfinished_()) watch_.Stop(watch_.CutShort(), /*tell=*/true);
  // What has been called since may wait for who is gone, too.
  if (calls_.load() != calls) Wake();
  lock.lock();
  asking_now_ = false;
}

}  // namespace tutti
