#pragma once

// Helper threads that drive the lanes of connections (NCCL_SOCKET_NTHREADS), for links that one
// thread cannot fill. They are shared by all connections of a network and sleep in poll(2) when no
// lane has work.
//
// Threads: all calls from any thread.

#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/net/socket/lane.h"

namespace tutti {

class LaneHelpers {
 public:
  // Starts `threads` threads, and fails when the system grants fewer; with 0 whoever drives a
  // connection drives its lanes.
  static Result<std::shared_ptr<LaneHelpers>> Create(int threads);
  ~LaneHelpers();  // REQUIRES: no lane is attached

  bool any() const { return !threads_.empty(); }
  // From now on thread `index` (modulo their number) drives `lane`.
  void Attach(Lane& lane, int index);
  // After return no helper touches `lane`.
  void Detach(Lane& lane, int index);
  // A piece was pushed to a lane of thread `index`.
  void Wake(int index);

 private:
  class Thread;
  LaneHelpers();
  Thread& Of(int index) const;

  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace tutti
