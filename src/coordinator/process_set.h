#pragma once

// A process set on one rank: the queue of requested tensors, the rounds that negotiate them, and
// the threads that move the data. Sets share nothing, and no set waits for another.
//
// The set holds the lock and the threads. Decisions under the lock are made in its parts:
//
//   TensorQueue      tensors that no round has taken yet (tensor_queue.h, name_table.h)
//   RoundDriver      when a round begins, and where the set stands: its states (round_driver.h)
//   BatchPlanner     which tensors of a round are moved together (fusion.h)
//   Mover            batches that wait to be moved (mover.h)
//   StallTracker     what has waited for too long (stall_tracker.h)
//   PendingFailures  failures that were decided in other sets (pending_failures.h)
//   AskingThreads    which of the program's threads wait (asking_threads.h)
//
// Who runs a round. A thread that waits for a ticket runs rounds itself, because a tensor that is
// asked for and waited for then costs no change of thread. Otherwise the set's own thread runs
// rounds: woken by work, the thread lets a short window pass in which more may arrive, and sleeps
// without a time-out when all is done. One thread at a time drives (process_set_rounds.cc).
//
// When a round begins. A round takes all ranks, and blocks until all have come. A rank comes when
// the rank has something new, or when something still waits here for other ranks (the rank then
// waits inside the round). After a round without news nothing can change before a rank has news:
// ranks stay out, and a rank with news calls the others in (Hooks::call_to_round). Leaving and
// stall checks call the others as well. While nothing is pending, nothing is sent.
//
// Large batches are moved by a second thread while the next are negotiated; small batches by the
// driver, when the second thread has nothing to do. Either way batches run in the same order
// (process_set_moving.cc).
//
// Tensors on GPUs are agreed on like all others, and done when their operations are queued
// (gpu_performer.h).
//
// Threads: everything is safe from any thread. mutex_ guards the parts; the thread that drives owns
// the controller, and the thread that moves a batch owns the performers.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/asking_threads.h"
#include "coordinator/autotune.h"
#include "coordinator/controller.h"
#include "coordinator/fusion.h"
#include "coordinator/gpu_performer.h"
#include "coordinator/mover.h"
#include "coordinator/pending_failures.h"
#include "coordinator/performer.h"
#include "coordinator/round_driver.h"
#include "coordinator/stall_tracker.h"
#include "coordinator/tensor.h"
#include "coordinator/tensor_queue.h"
#include "coordinator/timeline.h"

namespace tutti::coordinator {

class ProcessSet {
 public:
  struct Options {
    int id = 0;
    int rank = 0;              // this rank's place in `members`
    std::vector<int> members;  // the ranks of the set, as those of the job
    size_t cache_capacity = 1024;
    Tuning tuning;
    bool fuse_groups = true;
    int64_t stall_warn_ns = 60'000'000'000;  // 0: never
    int64_t stall_shutdown_ns = 0;           // 0: never
    // How long a rank waits inside a round before the rank calls the others in. The time is shorter
    // than the times after which communicators fail, and after which they log waits of their own,
    // because the latter mean nothing to users.
    int64_t longest_round_ns = 5'000'000'000;
  };
  struct Hooks {
    // Makes the other ranks of the set come to round `round` (OnRoundCall on their side). Must not
    // block.
    std::function<void(uint64_t round)> call_to_round;
    // Carries out an agreed change of the process sets, with all ranks. Returns the set's number.
    std::function<Result<int>(const Agreement& agreement)> change_sets;
    // Ends every wait in the exchange, the operations and change_sets. Called from any thread, with
    // locks held: must not block or call back.
    std::function<void()> break_off;
    // Called when hierarchical operations are switched on or off, while nothing is being moved.
    // May be null.
    std::function<void(const Tuning& tuning)> tuned;
    GpuPerformer::Hooks gpu;  // empty where there is no GPU
    // Told once, with locks held: must not call back or block. May be null.
    std::function<void(const Status& reason)> ended;
    // Told, with locks held, that a tensor has waited for longer than the job may: must not call
    // back or block. Null in the set of all ranks, which ends the job itself.
    std::function<void(const std::string& reason)> overdue;
    // Returns the activity of this rank in its other sets: "" or a clause. May be null.
    std::function<std::string()> other_sets;
    // Serve RoundInput: the first returns the waits of this rank; the second is told, with locks
    // held, the waits of all ranks, and must not call back or block. Null but in the set of all
    // ranks.
    std::function<SetWaits()> collect_waits;
    std::function<void(const SetWaits& waits)> waits_collected;
  };
  // `timeline` outlives the set. `autotune` may be null.
  ProcessSet(Options options, std::unique_ptr<Exchange> exchange,
             std::vector<std::unique_ptr<Operations>> operations, Hooks hooks, Timeline* timeline,
             std::unique_ptr<Autotune> autotune);
  // Starts the set's thread. Called before anything else. SystemError where the system grants none.
  Status Start();
  // REQUIRES: the set has ended (Leave and AwaitEnd, or Fail).
  ~ProcessSet();
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;

  int id() const { return options_.id; }
  int rank() const { return options_.rank; }
  const std::vector<int>& members() const { return options_.members; }

  // Puts all tensors into the queue, or none of them (TensorQueue::Add). After the end of the set,
  // returns the reason for the end.
  Status Enqueue(std::span<const tuttiTensor_t> tensors, const char* group,
                 std::span<TicketHold> tickets);
  // This rank brings nothing more until all ranks have joined; the ticket is done then.
  Status Join(TicketHold ticket);
  // Returns when the ticket is done. False at the deadline.
  bool Wait(Ticket& ticket, Deadline deadline = Deadline::Never());

  // Another rank calls all ranks into round `round`.
  void OnRoundCall(uint64_t round);
  // Called from time to time: asks for a stall check when something is pending for too long, and
  // returns whether a check was asked for. `others`: this rank is in several sets.
  bool Tick(bool others);
  // Asks all ranks to tell their waits in the next round.
  void AskForStallCheck();
  // Ends the set on all ranks, with the reason; all pending work fails with the same reason.
  void Leave(const std::string& reason);
  // Returns when the set has ended; false at the deadline.
  bool AwaitEnd(Deadline deadline);
  // Ends the set on this rank: the others cannot be reached.
  void Fail(const Status& reason);
  // Returns why the set has ended, or ok.
  Status ended() const;
  // Waits, after the end, until the GPU has done its queued work.
  void SettleGpu() { gpu_performer_.Settle(); }

  // Says which tensors are pending here, and which of this rank's threads ask and wait
  // (set_mismatch.h).
  struct Waits {
    struct Waiting {
      std::string name;
      uint64_t order = 0;
      bool blocked = false;
      bool late = false;
      bool overdue = false;
    };
    std::vector<Waiting> tensors;  // The tensors stand in the order in which they were asked for.
    std::set<pid_t> askers;        // all threads that ever asked for something
    std::set<pid_t> blocked;       // the threads in a wait without an end
    bool others = false;           // some blocked threads wait for nothing that is pending
    uint64_t round =
        0;  // From this round on the other ranks know the pending tensors of this rank.
  };
  Waits waits() const;
  // Returns whether a thread waits here for a pending tensor; cheaper than waits().
  bool MayBeStuck() const;
  // Returns 'waits for "a", "b" and 2 more', or "".
  std::string PendingText() const;
  // Fails the tensor `name` on the named ranks of the job, because they can never complete the
  // tensor. Called on all ranks of the set, with the same arguments. `round` is the latest round in
  // the Waits of these ranks.
  void AddPendingFailure(const std::string& name, PendingFailure failure, uint64_t round);
  // Notes that all sets of this rank have been told the outcome of every check up to this number.
  // Failures of later checks are held until then (pending_failures.h).
  void Decided(uint64_t check);

  // Counts of events, for tests and benchmarks.
  struct Counters {
    uint64_t rounds = 0;
    uint64_t negotiated_rounds = 0;
    uint64_t round_calls = 0;
    uint64_t batches = 0;
    uint64_t tensors = 0;
    uint64_t cached = 0;
    uint64_t moved_inline = 0;  // tensors whose data came with the states
    uint64_t handed_over = 0;   // batches moved by the second thread
    uint64_t names = 0;         // names that are known now
  };
  Counters counters() const;
  std::vector<Stall> last_stalls() const;

 private:
  using Batch = Mover::Batch;
  using State = RoundDriver::State;
  using Event = RoundDriver::Event;

  // Rounds and their results (process_set_rounds.cc).
  bool RoundIsDue() const TUTTI_REQUIRES(mutex_);
  void Loop();
  void SleepUntilDue(MutexLock& lock, int64_t busy_until_ns, int64_t& gap_ns)
      TUTTI_REQUIRES(mutex_);
  void AwaitMore(MutexLock& lock) TUTTI_REQUIRES(mutex_);
  void Drive(MutexLock& lock) TUTTI_REQUIRES(mutex_);
  Result<RoundResult> Negotiate() TUTTI_REQUIRES(mutex_);
  void HandOver(MutexLock& lock, RoundResult result) TUTTI_REQUIRES(mutex_);
  void NoteRound(RoundResult& result) TUTTI_REQUIRES(mutex_);
  void Adopt(MutexLock& lock, const Tuning& tuning) TUTTI_REQUIRES(mutex_);
  void Dispatch(MutexLock& lock, RoundResult result) TUTTI_REQUIRES(mutex_);
  void DispatchFused(MutexLock& lock, RoundResult& result) TUTTI_REQUIRES(mutex_);
  void ChangeSets(MutexLock& lock, Response response) TUTTI_REQUIRES(mutex_);
  void FailOrHold(Response& response) TUTTI_REQUIRES(mutex_);
  void FinishDecided(bool all) TUTTI_REQUIRES(mutex_);
  void FinishJoin(const Status& status, int last) TUTTI_REQUIRES(mutex_);
  void Finish(Response& response, const Status& status) TUTTI_REQUIRES(mutex_);
  void NoteFinished(const Response& response) TUTTI_REQUIRES(mutex_);
  void FailLocked(const Status& reason) TUTTI_REQUIRES(mutex_);
  void End(const Status& reason) TUTTI_REQUIRES(mutex_);
  void CallOthers(uint64_t round) TUTTI_REQUIRES(mutex_);
  void WakeDrivers() TUTTI_REQUIRES(mutex_);

  // Moving the data (process_set_moving.cc).
  void Run(Batch batch, int64_t bytes) TUTTI_REQUIRES(mutex_);
  void MoveOne() TUTTI_REQUIRES(mutex_);
  void MoveElsewhere() TUTTI_REQUIRES(mutex_);
  void DrainMover(MutexLock& lock) TUTTI_REQUIRES(mutex_);
  bool StartMover() TUTTI_REQUIRES(mutex_);
  void Perform(Batch& batch) TUTTI_REQUIRES(mutex_);
  Status MoveData(Batch& batch);
  void MoverLoop();
  Performer::Activity TellTimeline();
  GpuTrace::Hooks TraceHooks();

  // Make the texts about waits (process_set_stalls.cc).
  std::string Activity() const TUTTI_EXCLUDES(mutex_);
  std::string PendingTextLocked() const TUTTI_REQUIRES(mutex_);
  void AskForStallCheckLocked() TUTTI_REQUIRES(mutex_);

  const Options options_;
  const Hooks hooks_;
  Timeline* const timeline_;
  const std::unique_ptr<Exchange> exchange_;
  const std::unique_ptr<Autotune> autotune_;
  // Owned by the thread that drives, like `input_`, whose memory is used again in every round.
  Controller controller_;
  RoundInput input_;
  // Owned by the thread that moves a batch.
  Performer performer_;
  GpuPerformer gpu_performer_;

  mutable Mutex mutex_;
  CondVar loop_wakes_;
  CondVar progress_;  // tickets done, the driver gone, the set ended
  CondVar mover_wakes_;
  TensorQueue queue_ TUTTI_GUARDED_BY(mutex_);
  RoundDriver driver_ TUTTI_GUARDED_BY(mutex_);
  BatchPlanner planner_ TUTTI_GUARDED_BY(mutex_);
  Mover mover_ TUTTI_GUARDED_BY(mutex_);
  StallTracker stalls_ TUTTI_GUARDED_BY(mutex_);
  PendingFailures failures_ TUTTI_GUARDED_BY(mutex_);
  AskingThreads threads_ TUTTI_GUARDED_BY(mutex_);
  Tuning tuning_ TUTTI_GUARDED_BY(mutex_);
  int64_t round_began_ns_ TUTTI_GUARDED_BY(mutex_) = 0;
  // Says whether the set's thread sleeps without a time-out and must be woken.
  bool loop_asleep_ TUTTI_GUARDED_BY(mutex_) = false;
  int waiters_ TUTTI_GUARDED_BY(mutex_) = 0;  // threads in a wait for progress_
  std::string last_finished_ TUTTI_GUARDED_BY(mutex_);
  int64_t last_finished_ns_ TUTTI_GUARDED_BY(mutex_) = 0;
  Counters counters_ TUTTI_GUARDED_BY(mutex_);

  std::thread mover_thread_ TUTTI_GUARDED_BY(mutex_);
  std::thread loop_;
};

}  // namespace tutti::coordinator
