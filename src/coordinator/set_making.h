#pragma once

// The making of one process set on one rank, from its first collective call until the set is
// entered into the coordinator's table. Everything in it may wait for other ranks, so no lock of
// the coordinator is held meanwhile, and the making can be ended from any thread: when a rank dies,
// when the set of all ranks fails, and at shutdown.
//
//   from     event       to        action
//   kMaking  Break       kBroken   communicators that were adopted are revoked, Run returns
//   kMaking  Adopt       kMaking   the communicators are revoked by a later Break
//   kBroken  Adopt       kBroken   the communicators are revoked at once
//   kBroken  Run         kBroken   returns the reason, without a call
//   kBroken  Break       kBroken   the first reason stays
//
// A making that is done needs no state of its own: the set's owner drops it when the set is in the
// table, and from then on failures reach the set itself.
//
// Threads: Break from any thread; everything else from the thread that makes the set.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/operations.h"

namespace tutti::coordinator {

class SetMaking {
 public:
  // Ends waits in what the making has adopted. Called once; must not block.
  using BreakOff = std::function<void()>;
  using Opened = Result<std::unique_ptr<Operations>>;

  // Has Break call `break_off`, or calls it at once if the making is broken.
  void Adopt(BreakOff break_off);
  // Calls `open`, which may block for any time, on a thread of its own, and returns what it
  // returned. Returns the reason of Break as soon as the making is broken; the call then goes on
  // without anybody who waits for it, and its result is dropped. So `open` must own all that it
  // uses. SystemError when the system grants no thread.
  Opened Run(std::function<Opened()> open);
  // Ends the making with this reason.
  void Break(const Status& reason);

 private:
  enum class State { kMaking, kBroken };
  struct Shared {
    Mutex mutex;
    CondVar changed;
    State state TUTTI_GUARDED_BY(mutex) = State::kMaking;
    Status reason TUTTI_GUARDED_BY(mutex);
    std::vector<BreakOff> adopted TUTTI_GUARDED_BY(mutex);
    // Holds what the call of Run returned. There is one call at a time, and none after one that was
    // left to itself.
    std::optional<Opened> returned TUTTI_GUARDED_BY(mutex);
  };

  // Threads that were left to themselves hold it too.
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace tutti::coordinator
