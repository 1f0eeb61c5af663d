#pragma once

// How a host kernel waits: for a slot to fill, for room, for a round. One object per communicator,
// used by the one thread that executes its operations at the time.
//
// A wait spins, yields, then sleeps (base/wait.h). While it spins it polls the proxy connections of
// the operation, so that the waiting thread itself moves the bytes; before it sleeps it hands them
// to the proxy. It ends early when the communicator is stopped (abort, revoke, a lost peer), and
// from time to time asks the watcher whether to go on. The first failure sticks until Reset; every
// later wait returns false at once.

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

// What the communicator knows that a wait does not. Implemented by comm.
class WaitWatcher {
 public:
  virtual ~WaitWatcher() = default;
  // The wait for `peers` (ranks, at least one; several where any of them would do) has lasted
  // `waited_ns`. Not ok ends it. Called about every 20 ms.
  virtual Status OnLongWait(std::span<const int> peers, int64_t waited_ns) = 0;
  // Why the stop flag is up. Never ok.
  virtual Status StopReason() = 0;
  // A chunk from `peer` belongs to another operation than the one that runs here. Never ok.
  virtual Status OnForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) = 0;
};

class WaitContext {
 public:
  WaitContext(const std::atomic<bool>& stop, WaitPolicy policy, WaitWatcher& watcher)
      : stop_(stop), policy_(policy), watcher_(watcher) {}

  // Returns true once ready() does; false when waiting has ended for another reason, see status().
  // sleep(timeout_ns) sleeps until what ready() looks at may have changed. `peer`: the rank waited
  // for.
  template <class Ready, class Sleep>
  bool Wait(int peer, Ready ready, Sleep sleep) {
    if (ready()) [[likely]]
      return !failed_;
    return WaitForAny([&peer] { return std::span<const int>(&peer, 1); }, ready, sleep);
  }
  // The same where several peers may end the wait: peers() gives the ranks, as a range.
  template <class Peers, class Ready, class Sleep>
  bool WaitForAny(Peers peers, Ready ready, Sleep sleep) {
    Backoff backoff(policy_);
    wait_since_ns_ = 0;
    while (!failed_) {
      for (int i = 0; i < 16; ++i) {
        if (ready()) return true;
        PollConnections();
        if (!backoff.Pause()) {
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
};

}  // namespace tutti
