#pragma once

// Decides when ranks whose operations run on devices compare the operations they have begun
// (watch.h). Kernels that work in one another's windows carry no tags: when ranks call different
// operations, the kernels wait for ever, or compute nonsense.
//
// Every collective and message is noted as it is launched. When a rank has launched operations and
// then none for a moment (the rank is idle, or its GPU is stuck), the ranks compare. A call costs a
// few stores, and a moment without calls costs some messages off the data's path. Of a rank that
// launches more operations than OperationLog keeps before it pauses, only the last are compared.
//
// A rank that ends its communicator sends a leave notice (leave_notice.h). A rank that has gone
// further waits in vain, and is stopped. Where the leaving rank was cut short, this rank may be
// waiting in the same operation. Only the GPU knows, and is asked on a thread of its own, because
// the answer may take long.

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "plan/task.h"
#include "sys/event_loop.h"
#include "watch/watch.h"

namespace tutti {

class CallChecker {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 2;  // at least two
  };
  // `unfinished` returns whether the last launched operation is not done yet.
  CallChecker(EventLoop& loop, Watch& watch, const Options& options,
              std::function<bool()> unfinished);
  ~CallChecker();

  // Notes that the task was launched. `registered` and `advised` are the members of OpSignature. At
  // most one thread at a time.
  void Note(const Task& task, uint32_t registered = 0, uint32_t advised = 0);
  // Tells the others that this rank has ended its communicator. `finished`: see LeaveNotice.
  void SendLeaveNotice(bool finished) { watch_.SendLeaveNotice(finished); }

 private:
  void Wake();
  void Arm() TUTTI_EXCLUDES(mutex_);
  void Look() TUTTI_EXCLUDES(mutex_);  // Runs on the loop's thread.
  void CheckLeaveNotices() TUTTI_EXCLUDES(mutex_);
  void AskTheGpu() TUTTI_EXCLUDES(mutex_);

  EventLoop& loop_;
  Watch& watch_;
  const std::function<bool()> unfinished_;
  const int rank_;
  const int next_;  // the rank that collectives are shown to
  std::atomic<uint64_t> calls_ = 0;
  uint64_t seen_ = 0;                // value of calls_ at the last look; the loop's thread only
  std::atomic<bool> armed_ = false;  // the timer runs, or Look does

  Mutex mutex_;
  CondVar stops_;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  EventLoop::TimerId timer_ TUTTI_GUARDED_BY(mutex_) = 0;
  // Runs AskTheGpu while asking_now_; otherwise the thread has ended, or was never started.
  std::thread asking_ TUTTI_GUARDED_BY(mutex_);
  bool asking_now_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
