#pragma once

// A WaitContext waits for a host kernel: for a slot to fill, for room, or for a round. Each
// communicator has one object, and only the thread that executes the communicator's operations uses
// it.
//
// A wait spins, yields, then sleeps (base/wait.h). While the wait spins it polls the proxy
// connections of the operation, hence the waiting thread itself moves the bytes. A wait for a proxy
// connection sleeps on the connections' descriptors. A wait for memory that another rank of the
// machine writes hands the connections to the proxy before it sleeps.
//
// A wait ends early when the communicator is stopped (abort, revoke, a lost peer). From time to
// time a wait asks the watcher whether to go on. The first failure stays until Reset, and every
// later wait returns false at once.

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/long_wait.h"
#include "base/status.h"
#include "base/wait.h"
#include "connection/proxy_connection.h"

namespace tutti {

// Tells a wait about the state of the communicator. Implemented by the module watch.
class WaitWatcher {
 public:
  virtual ~WaitWatcher() = default;
  // Called about every 20 ms during `wait`, a wait for `peers`. `peers` has at least one rank; with
  // several ranks any of them can end the wait. A status that is not ok ends the wait.
  virtual Status OnLongWait(std::span<const int> peers, LongWait& wait) = 0;
  // Returns the reason for the raised stop flag. The status is never ok.
  virtual Status StopReason() = 0;
  // Called when a chunk from `peer` belongs to a different operation. The status is never ok.
  virtual Status OnForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) = 0;
};

// Paces a wait that polls proxy connections, until the wait sleeps. A poll of a connection is a
// system call, hence no pause is needed between two polls. A thread that shares its core yields
// after each poll.
class ConnectionBackoff {
 public:
  explicit ConnectionBackoff(const WaitPolicy& policy) : spin_ns_(policy.spin_ns) {}

  // Returns false when the time to poll again is over and the caller should sleep.
  bool Pause();
  // Returns the time of the first Pause; 0 before the first.
  int64_t start_ns() const { return start_ns_; }

 private:
  const int64_t spin_ns_;
  int yields_ = 0;
  int64_t start_ns_ = 0;
  int64_t counted_ns_ = 0;  // since when the time to poll counts
};

class WaitContext {
 public:
  WaitContext(const std::atomic<bool>& stop, WaitPolicy policy, WaitWatcher& watcher)
      : stop_(stop), policy_(policy), watcher_(watcher) {}

  // Returns true once ready() does, and false when waiting has ended for another reason (status()).
  // sleep(timeout_ns) sleeps until the result of ready() may have changed. `peer` is the awaited
  // rank. `remote` says that only the proxy connections of this object can make ready() true.
  template <class Ready, class Sleep>
  bool Wait(int peer, Ready ready, Sleep sleep, bool remote = false) {
    if (ready()) [[likely]]
      return !failed_;
    return WaitForAny([&peer] { return std::span<const int>(&peer, 1); }, ready, sleep, remote);
  }
  // As Wait, where several peers may end the wait: peers() gives the ranks, as a range.
  template <class Peers, class Ready, class Sleep>
  bool WaitForAny(Peers peers, Ready ready, Sleep sleep, bool remote = false) {
    wait_.End();
    if (remote) return WaitForConnections(peers, ready, sleep);
    Backoff backoff(policy_);
    ConnectionBackoff looking(policy_);
    const bool gives_core = policy_.spin_ns <= 0 && !connections_.empty();
    while (!failed_) {
      for (int i = 0; i < 16; ++i) {
        if (ready())
          return EndWait(gives_core          ? looking.start_ns()
                         : backoff.yielded() ? backoff.start_ns()
                                             : 0);
        PollConnections();
        if (!(gives_core ? looking.Pause() : backoff.Pause())) {
          SleepOnce(peers, sleep, gives_core ? looking.start_ns() : backoff.start_ns());
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

  // Adds a proxy connection whose chunks this operation needs. A second call for the same
  // connection has no further effect. Reset removes all connections.
  void AddConnection(ProxyConnection* proxy) {
    if (std::find(connections_.begin(), connections_.end(), proxy) == connections_.end())
      connections_.push_back(proxy);
  }
  // Begins an operation.
  void Reset() {
    failed_ = false;
    status_ = Status::Ok();
    connections_.clear();
    wait_.End();
    waited_ns_ = 0;
  }
  // Returns how long waits of at least kCountedNs have lasted since Reset, all together. Waits that
  // end while they spin are not among them.
  int64_t waited_ns() const { return waited_ns_; }
  // Ends an operation: hands unfinished transfers to the proxy.
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
  // Waits for data that only proxy connections can bring. This thread polls the connections and
  // sleeps on their descriptors itself, hence no other thread needs to drive them.
  template <class Peers, class Ready, class Sleep>
  bool WaitForConnections(Peers& peers, Ready& ready, Sleep& sleep) {
    ConnectionBackoff backoff(policy_);
    while (!failed_) {
      if (ready()) return EndWait(backoff.start_ns());
      if (!PollConnections() && !backoff.Pause()) {
        if (SleepOnConnections() == SleepAdvice::kHandOver)
          SleepOnce(peers, sleep, backoff.start_ns());
        else
          AfterShortSleep(peers, backoff.start_ns());
      }
      CheckStop();
    }
    return false;
  }
  SleepAdvice SleepOnConnections();
  // Asks the watcher once short sleeps together have lasted as long as an undisturbed sleep.
  template <class Peers>
  void AfterShortSleep(Peers& peers, int64_t began_ns) {
    if (!wait_.begun()) {
      wait_.Begin(began_ns);
      asked_ns_ = began_ns;
    }
    if (failed_ || NowNs() - asked_ns_ < kSleepNs) return;
    AfterSleep(peers(), began_ns);
    asked_ns_ = NowNs();
  }
  void CheckConnections();

  // Bounds how late a sleeper notices an abort, a lost peer or a broken connection.
  static constexpr int64_t kSleepNs = 20'000'000;
  // Shorter waits are the time of a message on its way.
  static constexpr int64_t kCountedNs = 50'000;

  template <class Peers, class Sleep>
  void SleepOnce(Peers& peers, Sleep& sleep, int64_t began_ns) {
    HandOverConnections();
    sleep(kSleepNs);
    AfterSleep(peers(), began_ns);
  }
  void AfterSleep(std::span<const int> peers, int64_t began_ns);
  // Adds the time of a wait that began at `began_ns`; 0: not worth a look at the clock. Returns
  // true.
  bool EndWait(int64_t began_ns) {
    if (began_ns == 0) [[likely]]
      return true;
    // A long wait knows whether this process stood still meanwhile.
    const int64_t waited_ns = NowNs() - (wait_.begun() ? wait_.since_ns() : began_ns);
    if (waited_ns >= kCountedNs) waited_ns_ += waited_ns;
    return true;
  }

  const std::atomic<bool>& stop_;
  const WaitPolicy policy_;
  WaitWatcher& watcher_;
  std::vector<ProxyConnection*> connections_;
  bool failed_ = false;
  Status status_;
  LongWait wait_;         // the present wait, if the wait has slept
  int64_t asked_ns_ = 0;  // the time of the last question to the watcher in this wait
  std::vector<pollfd> descriptors_;
  int64_t waited_ns_ = 0;  // see waited_ns()
};

}  // namespace tutti
