#include "backend/host/wait_context.h"

#include <sched.h>
#include <time.h>

namespace tutti {

namespace {

// A thread that shares its core yields at least kFewestYields times, and for at least
// kFewestYieldNs, before it sleeps. A yield gives the core to the awaited rank. A sleep lets the
// core become idle, and the wake-up then takes longer than the message; the other ranks then wait
// longer and sleep as well. A rank therefore sleeps only where it waits for more than a message on
// its way. A count alone would be over in a moment on an idle core, and a time alone after one time
// slice of another program (bench/results/sockets.md).
constexpr int kFewestYields = 100;
constexpr int64_t kFewestYieldNs = 1'000'000;

}  // namespace

bool ConnectionBackoff::Pause() {
  if (start_ns_ == 0) start_ns_ = NowNs();
  if (spin_ns_ <= 0) {
    sched_yield();
    if (++yields_ < kFewestYields) return true;
  }
  const int64_t now_ns = NowNs();
  if (counted_ns_ == 0) counted_ns_ = now_ns;
  return now_ns - counted_ns_ < (spin_ns_ > 0 ? spin_ns_ : kFewestYieldNs);
}

// Sleeps until a descriptor of a connection is ready, or for kSleepNs. Every connection may veto
// the sleep: a connection that can go on at once, and a connection that another thread drives, for
// which the caller must sleep in another way.
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

// A broken connection ends the wait even when the awaited chunk would come by another connection.
void WaitContext::CheckConnections() {
  for (ProxyConnection* proxy : connections_) {
    if (Status status = proxy->status(); !status.ok()) return Fail(std::move(status));
  }
}

// Notices a connection that broke during the sleep, and asks the watcher whether to go on.
void WaitContext::AfterSleep(std::span<const int> peers, int64_t began_ns) {
  if (!wait_.begun()) wait_.Begin(began_ns);
  CheckConnections();
  if (failed_) return;
  if (Status status = watcher_.OnLongWait(peers, wait_); !status.ok()) Fail(std::move(status));
}

}  // namespace tutti
