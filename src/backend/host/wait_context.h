#pragma once

// A WaitContext waits for a host kernel: for a slot to fill, for room, for a round. One object per
// communicator, used by the one thread that executes its operations at the time.
//
// A wait spins, yields, then sleeps (base/wait.h). While it spins it polls the proxy connections of
// the operation, so that the waiting thread itself moves the bytes. When it waits for what only a
// proxy connection can bring, it sleeps on the connections' descriptors; when it waits for memory
// that another rank of the machine writes, it hands the connections to the proxy before it sleeps.
// It ends early when the communicator is stopped (abort, revoke, a lost peer), and
// from time to time asks the watcher whether to go on. The first failure sticks until Reset; every
// later wait returns false at once.

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/wait.h"
#include "connection/proxy_connection.h"

namespace tutti {

// Knows of the communicator what a wait does not. Implemented by the module watch.
class WaitWatcher {
 public:
  virtual ~WaitWatcher() = default;
  // Called when the wait for `peers` (ranks, at least one; several where any of them would do) has
  // lasted `waited_ns`. Not ok ends it. Called about every 20 ms.
  virtual Status OnLongWait(std::span<const int> peers, int64_t waited_ns) = 0;
  // Returns why the stop flag is up; it is never ok.
  virtual Status StopReason() = 0;
  // Called when a chunk from `peer` belongs to another operation than the one that runs here. Never
  // ok.
  virtual Status OnForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) = 0;
};

// Says how a wait that looks at proxy connections goes on before it sleeps. A look at a connection
// is a system call, so that no pause need be between two, and a thread that shares its core gives
// it away after each.
class ConnectionBackoff {
 public:
  explicit ConnectionBackoff(const WaitPolicy& policy) : spin_ns_(policy.spin_ns) {}

  // Returns false when the time to look again is over and the caller should sleep.
  bool Pause();

 private:
  const int64_t spin_ns_;
  int yields_ = 0;
  int64_t start_ns_ = 0;
};

class WaitContext {
 public:
  WaitContext(const std::atomic<bool>& stop, WaitPolicy policy, WaitWatcher& watcher)
      : stop_(stop), policy_(policy), watcher_(watcher) {}

  // Returns true once ready() does; false when waiting has ended for another reason, see status().
  // sleep(timeout_ns) sleeps until what ready() looks at may have changed. `peer`: the rank waited
  // for. `remote`: only proxy connections named to this object can make it ready.
  template <class Ready, class Sleep>
  bool Wait(int peer, Ready ready, Sleep sleep, bool remote = false) {
    if (ready()) [[likely]]
      return !failed_;
    return WaitForAny([&peer] { return std::span<const int>(&peer, 1); }, ready, sleep, remote);
  }
  // Does the same where several peers may end the wait: peers() gives the ranks, as a range.
  template <class Peers, class Ready, class Sleep>
  bool WaitForAny(Peers peers, Ready ready, Sleep sleep, bool remote = false) {
    wait_since_ns_ = 0;
    if (remote) return WaitForConnections(peers, ready, sleep);
    Backoff backoff(policy_);
    ConnectionBackoff looking(policy_);
    const bool gives_core = policy_.spin_ns <= 0 && !connections_.empty();
    while (!failed_) {
      for (int i = 0; i < 16; ++i) {
        if (ready()) return true;
        PollConnections();
        if (!(gives_core ? looking.Pause() : backoff.Pause())) {
          SleepOnce(peers, sleep);
          break;
        }
      }
      CheckStop();
    }
    return false;
  }

  bool failed() const { return failed_; }
  const Status& status() const { return status_; }
  void Fail(Status status) {
    if (failed_) return;
    failed_ = true;
    status_ = std::move(status);
  }
  void FailForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) {
    if (!failed_) Fail(watcher_.OnForeignChunk(peer, expected_tag, found_tag));
  }
  void CheckStop() {
    if (stop_.load(std::memory_order_relaxed)) [[unlikely]]
      Fail(watcher_.StopReason());
  }

  // Names a proxy connection whose chunks this operation needs moved; naming one twice has no
  // further effect. Cleared by Reset.
  void AddConnection(ProxyConnection* proxy) {
    if (std::find(connections_.begin(), connections_.end(), proxy) == connections_.end())
      connections_.push_back(proxy);
  }
  // Begins an operation.
  void Reset() {
    failed_ = false;
    status_ = Status::Ok();
    connections_.clear();
    wait_since_ns_ = 0;
  }
  // Ends an operation: what is still on its way goes to the proxy.
  void HandOverConnections() {
    for (ProxyConnection* proxy : connections_) proxy->HandOver();
  }
  // Returns true when a connection moved something.
  bool PollConnections() {
    bool moved = false;
    for (ProxyConnection* proxy : connections_) moved |= proxy->Poll();
    return moved;
  }

 private:
  // Waits for what only proxy connections can bring. While this thread looks, nobody else needs to:
  // it sleeps on their descriptors itself.
  template <class Peers, class Ready, class Sleep>
  bool WaitForConnections(Peers& peers, Ready& ready, Sleep& sleep) {
    ConnectionBackoff backoff(policy_);
    while (!failed_) {
      if (ready()) return true;
      if (!PollConnections() && !backoff.Pause()) {
        const int64_t before_ns = NowNs();
        if (SleepOnConnections() == SleepAdvice::kHandOver)
          SleepOnce(peers, sleep);
        else
          AfterShortSleep(peers, before_ns);
      }
      CheckStop();
    }
    return false;
  }
  SleepAdvice SleepOnConnections();
  // Sleeps of one wait may be many and short: the watcher is asked when they have lasted as long as
  // one that nothing ends.
  template <class Peers>
  void AfterShortSleep(Peers& peers, int64_t before_ns) {
    if (wait_since_ns_ == 0) wait_since_ns_ = asked_ns_ = before_ns;
    if (failed_ || NowNs() - asked_ns_ < kSleepNs) return;
    AfterSleep(peers(), before_ns);
    asked_ns_ = NowNs();
  }
  void CheckConnections();

  // Bounds how late an abort, a lost peer or a broken connection is noticed by a sleeper.
  static constexpr int64_t kSleepNs = 20'000'000;

  template <class Peers, class Sleep>
  void SleepOnce(Peers& peers, Sleep& sleep) {
    const int64_t before_ns = NowNs();
    HandOverConnections();
    sleep(kSleepNs);
    AfterSleep(peers(), before_ns);
  }
  void AfterSleep(std::span<const int> peers, int64_t before_ns);

  const std::atomic<bool>& stop_;
  const WaitPolicy policy_;
  WaitWatcher& watcher_;
  std::vector<ProxyConnection*> connections_;
  bool failed_ = false;
  Status status_;
  int64_t wait_since_ns_ = 0;
  int64_t asked_ns_ = 0;  // When the watcher was last asked in this wait.
  std::vector<pollfd> descriptors_;
};

}  // namespace tutti
