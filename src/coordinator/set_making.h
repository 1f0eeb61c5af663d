#pragma once

// The making of one process set on one rank, from its first collective call until the set is
// entered into the coordinator's table. Every step may wait for other ranks. Therefore no lock of
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
// A finished making needs no state of its own: the set's owner drops the making when the set is in
// the table, and from then on failures reach the set itself.
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
  // Ends waits in the adopted communicators. Called once; must not block.
  using BreakOff = std::function<void()>;
  using Opened = Result<std::unique_ptr<Operations>>;

  // Has Break call `break_off`, or calls `break_off` at once after Break.
  void Adopt(BreakOff break_off);
  // Calls `open`, which may block for any time, on a thread of its own, and returns the result.
  // After Break returns the reason of Break at once; the call then goes on alone, and its result is
  // dropped. Therefore `open` must own all the objects in use. SystemError when the system grants
  // no thread.
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
    // Holds the result of the call of Run. At most one call runs at a time, and none after a call
    // that was left to itself.
    std::optional<Opened> returned TUTTI_GUARDED_BY(mutex);
  };

  // Threads that were left to themselves hold the state too.
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace tutti::coordinator
