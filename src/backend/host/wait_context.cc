#include "backend/host/wait_context.h"

#include <sched.h>
#include <time.h>

namespace tutti {

namespace {

// How often a thread that shares its core gives it away before it sleeps. A yield is cheaper than a
// sleep and a wake-up; but it brings nothing where other programs want the core as well, and where
// the scheduler puts ranks into groups of their own. Of 0, 1, 2, 4, 10 and 1,000, this was the
// fastest with 4 ranks on 2 cores (bench/results/sockets.md).
constexpr int kMostYields = 1;

}  // namespace

bool ConnectionBackoff::Pause() {
  if (spin_ns_ <= 0) {
    if (++yields_ > kMostYields) return false;
    sched_yield();
    return true;
  }
  const int64_t now_ns = NowNs();
  if (start_ns_ == 0) start_ns_ = now_ns;
  return now_ns - start_ns_ < spin_ns_;
}

SleepAdvice WaitContext::SleepOnConnections() {
  descriptors_.clear();
  for (ProxyConnection* proxy : connections_) {
    const SleepAdvice advice = proxy->PrepareToSleep(descriptors_);
    if (advice == SleepAdvice::kGoOn) CheckConnections();
    if (advice != SleepAdvice::kSleep) return advice;
  }
  const timespec timeout = {0, kSleepNs};
  ppoll(descriptors_.data(), descriptors_.size(), &timeout, nullptr);
  return SleepAdvice::kSleep;
}

void WaitContext::CheckConnections() {
  for (ProxyConnection* proxy : connections_) {
    if (Status status = proxy->status(); !status.ok()) return Fail(std::move(status));
  }
}

void WaitContext::AfterSleep(std::span<const int> peers, int64_t before_ns) {
  if (wait_since_ns_ == 0) wait_since_ns_ = before_ns;
  CheckConnections();
  if (failed_) return;
  if (Status status = watcher_.OnLongWait(peers, NowNs() - wait_since_ns_); !status.ok())
    Fail(std::move(status));
}

}  // namespace tutti
