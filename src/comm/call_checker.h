#pragma once

// Finds out ranks whose calls differ where nothing else would: kernels that work in one another's
// windows carry no tags, and wait for ever, or compute nonsense, when ranks call different things.
//
// Every collective and message is noted as it is launched. When a rank has launched some and then none
// for a moment (it is idle, or its GPU is stuck), it shows the next rank its collectives, and the other
// ends of its messages these; the watch compares, and stops the communicator where they differ. A call costs a few stores, and a moment
// without calls some messages beside the data's path. Of a rank that went on to launch more than
// RecentCollectives keeps before it noticed, only the last are compared.

#include <atomic>
#include <cstdint>
#include <mutex>

#include "comm/task.h"
#include "comm/watch.h"
#include "sys/event_loop.h"

namespace tutti {

class CallChecker {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 2;        // at least two
    bool collectives = true;  // or only messages
  };
  CallChecker(EventLoop& loop, Watch& watch, const Options& options);
  ~CallChecker();

  // One thread at a time.
  void Note(const Task& task);

 private:
  void Arm();
  void Look();  // on the loop

  EventLoop& loop_;
  Watch& watch_;
  const int rank_;
  const int next_;  // the rank to compare collectives with
  const bool collectives_too_;
  uint64_t collectives_ = 0;
  std::atomic<uint64_t> calls_ = 0;
  uint64_t seen_ = 0;  // on the loop
  std::atomic<bool> armed_ = false;
  std::mutex mutex_;  // guards what follows
  bool stopping_ = false;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace tutti
