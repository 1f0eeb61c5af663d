#pragma once

// One-sided calls of ranks on hosts: ncclPutSignal, ncclSignal and ncclWaitSignal.
//
// Every rank counts the signals of each rank. The counters lie in a window of their own, a cache
// line each, in the part of the waiting rank. A put to a rank of the LSA team copies the data there
// and adds to the counter with release order. A wait loads the counter with acquire order, and
// sleeps on the counter's futex. To ranks outside the team the network puts the data and adds to
// the counter (remote_windows.h). A wait for a rank outside the team drives the connection to the
// rank.
//
// The calls run one at a time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/host/wait_context.h"
#include "base/status.h"
#include "watch/watch.h"
#include "window/one_sided.h"
#include "window/remote_windows.h"
#include "window/window.h"

namespace tutti {

class HostOneSided final : public OneSided {
 public:
  struct Parts {
    int rank = 0;
    std::shared_ptr<const Window> signals;       // Has SignalBytes bytes of each rank.
    std::unique_ptr<RemoteWindows> remote = {};  // null where the LSA team is all ranks
    Watch* watch = nullptr;                      // outlives the object
    WaitPolicy wait_policy;
  };
  explicit HostOneSided(Parts parts);

  // Returns the size of a rank's counters in bytes.
  static uint64_t SignalBytes(int num_ranks);
  RemoteWindows* remote() override { return remote_.get(); }

  Result<std::shared_ptr<const OneSidedCall>> MakePut(Put put) override;
  std::shared_ptr<const OneSidedCall> MakeWait(std::vector<Awaited> awaited) override;
  void Finish() override;

 private:
  // A counter, and the number of threads that sleep until the counter changes.
  struct alignas(64) Counter {
    std::atomic<uint64_t> count;
    SleepFlag sleepers;
  };

  Counter& CounterAt(int place, int from) const;
  Status RunPut(const Put& put);
  Status PutInTeam(const Put& put);
  Status RunWait(std::span<const Awaited> awaited);
  bool Await(int peer, uint64_t until);

  const int rank_;
  const std::shared_ptr<const Window> signals_;
  const std::unique_ptr<RemoteWindows> remote_;
  Watch& watch_;
  WaitContext wait_;
  std::vector<uint64_t> taken_;  // The signals of each rank that waits have taken.
};

}  // namespace tutti
