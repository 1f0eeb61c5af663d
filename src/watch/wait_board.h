#pragma once

// The waits of all communicators of a process. A rank that is idle in one communicator may wait in
// another. Two communicators in opposite order on two ranks hold each other up in this way, and
// only a sentence that shows both communicators explains the stall.
//
// The process owns the board. Any thread may call.

#include <cstdint>
#include <set>
#include <string>

#include "base/mutex.h"

namespace tutti {

class Watch;

class WaitBoard {
 public:
  void Add(const Watch& watch);
  // REQUIRES: called before the end of `watch`, without locks of the watch.
  void Remove(const Watch& watch);
  // Returns the waits of this process in communicators besides that of `asked`, such as ", and its
  // process waits in communicator 1f for rank 2 (…), in collective number 1, …". Returns an empty
  // text without such waits. REQUIRES: the caller holds no lock of a watch.
  std::string WaitsBeside(const Watch& asked) const;

 private:
  mutable Mutex mutex_;
  std::set<const Watch*> watches_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
