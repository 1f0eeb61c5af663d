#pragma once

// Finds out ranks whose calls differ where nothing else would: kernels that work in one another's
// windows carry no tags, and wait for ever, or compute nonsense, when ranks call different things.
//
// Every collective and message is noted as it is launched (those of an AlltoAllV are messages too).
// When a rank has launched some and then none for a moment (it is idle, or its GPU is stuck), it
// shows the next rank its collectives, and the other ends of its messages these; the watch
// compares, and stops the communicator where they differ. A call costs a few stores, and a moment
// without calls some messages beside the data's path. Of a rank that went on to launch more than
// RecentCollectives keeps before it noticed, only the last are compared.
//
// A rank that ends its communicator says how far it has got (departures.h). Whoever has gone
// further waits in vain, and is stopped. Where the other was cut short, in an operation perhaps
// that this rank waits in, only the GPU knows: it is asked on a thread of its own, since it may
// hold up whoever asks.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

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
  // `unfinished` says whether what was launched last is not done yet.
  CallChecker(EventLoop& loop, Watch& watch, const Options& options,
              std::function<bool()> unfinished);
  ~CallChecker();

  // One thread at a time. `registered`: see OpSignature.
  void Note(const Task& task, uint32_t registered = 0);
  // Tells the others that this rank comes no more: all it has called is done (`finished`), or it
  // has been cut short.
  void SayGoodbye(bool finished);

 private:
  void NoteExchange(const Task& task);
  void Wake();
  void Arm();
  void Look();  // on the loop
  void LookForDepartures();
  void AskTheGpu();

  EventLoop& loop_;
  Watch& watch_;
  const std::function<bool()> unfinished_;
  const int rank_;
  const int num_ranks_;
  const int next_;  // the rank to compare collectives with
  uint64_t collectives_ = 0;
  std::atomic<uint64_t> calls_ = 0;
  uint64_t seen_ = 0;  // on the loop
  std::atomic<bool> armed_ = false;
  std::mutex mutex_;  // guards what follows
  bool stopping_ = false;
  EventLoop::TimerId timer_ = 0;
  std::condition_variable stops_;
  std::thread asking_;
  bool asking_now_ = false;  // whether it runs
};

}  // namespace tutti
