#pragma once

// A process set on one rank: the queue of what the user asked for, the loop that negotiates it, and
// the threads that move the data. Sets share nothing, so that none waits for another.
//
// Who runs a round. A thread that waits for a ticket runs rounds itself, so that a tensor asked for
// and waited for costs no change of thread. Otherwise the set's own thread does: woken by work, it
// lets a short window pass in which more may arrive, and when all is done it sleeps without a
// time-out. One thread at a time drives.
//
// When a round begins. A round takes all ranks, and blocks until all have come. A rank comes when
// it has something new, or something still waits here for other ranks (it then waits inside the
// round). After a round in which nobody had anything new, nothing can change before somebody has:
// ranks stay out, and a rank that has something new calls the others in (Hooks::ring_doorbell).
// Leaving and stall checks call them as well. While nothing is pending, nothing is sent.
//
// Large batches are moved by a second thread while the next are negotiated; small ones by the
// driver, when the second thread has nothing to do. Either way batches run in one order.
//
// Tensors on GPUs are agreed on like all others, and done when they are queued (gpu_performer.h).
//
// Threads: everything is safe from any thread; mutex_ guards what is shared, the driver owns the
// controller, whoever performs owns the performer.

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "coordinator/autotune.h"
#include "coordinator/controller.h"
#include "coordinator/fusion.h"
#include "coordinator/gpu_performer.h"
#include "coordinator/performer.h"
#include "coordinator/tensor.h"
#include "coordinator/timeline.h"

namespace tutti::coordinator {

class ProcessSet {
 public:
  struct Options {
    int id = 0;
    int rank = 0;              // in the set
    std::vector<int> members;  // global ranks
    size_t cache_capacity = 1024;
    Tuning tuning;
    bool fuse_groups = true;
    int64_t stall_warn_ns = 60'000'000'000;  // 0: never
    int64_t stall_shutdown_ns = 0;           // 0: never
    // How long a rank waits inside a round before it calls the others in. Below the time after
    // which communicators log waits of their own, which mean nothing to users, and after which they
    // fail.
    int64_t longest_round_ns = 5'000'000'000;
  };
  struct Hooks {
    // Makes the other ranks of the set come to round `round` (Ring on their side). Must not block.
    std::function<void(uint64_t round)> ring_doorbell;
    // Carries out an agreed change of the process sets, with all ranks; gives the new set's number.
    std::function<Result<int>(const Agreement& agreement)> change_sets;
    // Ends every wait in the exchange and the operations. Any thread.
    std::function<void()> break_off;
    std::function<void(const Tuning& tuning)> tuned;  // may be null
    GpuPerformer::Hooks gpu;                          // may be empty: there is no GPU then
    // Told once, with locks held: must not call back or block. May be null.
    std::function<void(const Status& reason)> ended;
    // Told, with locks held, that something has waited for longer than the job may: must not call
    // back or block. Null in the set of all ranks, which ends the job itself.
    std::function<void(const std::string& reason)> overdue;
    // What this rank does in its other sets: "" or a clause. May be null.
    std::function<std::string()> other_sets;
    // For RoundInput; what came of it is told with locks held: must not call back or block. Both
    // null but in the set of all ranks.
    std::function<SetWaits()> collect_waits;
    std::function<void(const SetWaits& waits)> waits_collected;
  };
  // `timeline` outlives the set. `autotune` may be null.
  ProcessSet(Options options, std::unique_ptr<Exchange> exchange,
             std::vector<std::unique_ptr<Operations>> operations, Hooks hooks, Timeline* timeline,
             std::unique_ptr<Autotune> autotune);
  // Starts the set's thread; before anything else. SystemError where the system grants none.
  Status Start();
  // REQUIRES: the set has ended (Leave and AwaitEnd, or Fail).
  ~ProcessSet();
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;

  int id() const { return options_.id; }
  int rank() const { return options_.rank; }
  const std::vector<int>& members() const { return options_.members; }

  // All of them enter the queue, or none. InvalidArgument for what is wrong by itself, InvalidUsage
  // for a name that is still pending, and what ended the set when it has ended.
  // Their tickets are moved from where they entered.
  Status Enqueue(std::span<Ask> asks);
  // This rank brings nothing more until all ranks have joined; the ticket is done then.
  Status Join(TicketHold ticket);
  // Returns when the ticket is done. False at the deadline.
  bool Wait(Ticket& ticket, Deadline deadline = Deadline::Never());

  // Another rank wants everybody in round `round`.
  void OnDoorbell(uint64_t round);
  // Called from time to time: asks for a stall check when something is pending for too long, and
  // says so. With `others`, this rank is in other sets as well.
  bool Tick(bool others);
  // Asks all ranks to say what they wait for, in the next round.
  void AskForStallCheck();
  // Ends the set on all ranks, with the reason; pending work everywhere fails with it.
  void Leave(const std::string& reason);
  // Until the set has ended; false at the deadline.
  bool AwaitEnd(Deadline deadline);
  // Ends the set on this rank: the others cannot be reached.
  void Fail(const Status& reason);
  Status ended() const;
  // After the end: waits until a GPU has done what it was given.
  void SettleGpu() { gpu_performer_.Settle(); }

  // What is pending here, and which of this rank's threads ask and wait (set_mismatch.h).
  struct Waits {
    struct Waiting {
      std::string name;
      uint64_t order = 0;
      bool blocked = false;
      bool late = false;
      bool overdue = false;
    };
    std::vector<Waiting> tensors;  // by order
    std::set<pid_t> askers;        // all threads that ever asked for something
    std::set<pid_t> blocked;       // those in a wait without an end
    bool others = false;           // some of which are for nothing that is pending
    uint64_t round = 0;            // by this one the other ranks know what is pending here
  };
  Waits waits() const;
  // Whether a thread waits here for what is pending; a look.
  bool MayBeStuck() const;
  // 'waits for "a", "b" and 2 more', or "".
  std::string PendingText() const;
  // The tensor `name` can never be completed where the ranks of the job that are named have it: it
  // fails there. Called on all ranks of the set, with the same arguments. `round`: as in Waits, of
  // those ranks.
  void AddPendingFailure(const std::string& name, PendingFailure failure, uint64_t round);
  // What came of all checks up to this one has been told to all sets of this rank. What falls by a
  // later one is kept back until then: whoever learns that it failed may ask for it again, in any
  // set, and must not meet there what has yet to fail.
  void Decided(uint64_t check);

  // What happened, for tests and benchmarks.
  struct Counters {
    uint64_t rounds = 0;
    uint64_t negotiated_rounds = 0;
    uint64_t doorbells = 0;
    uint64_t batches = 0;
    uint64_t tensors = 0;
    uint64_t cached = 0;
    uint64_t moved_inline = 0;  // whose data came with the states
    uint64_t handed_over = 0;   // batches moved by the second thread
    uint64_t names = 0;         // that are known now
  };
  Counters counters() const;
  std::vector<Stall> last_stalls() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Batch = std::vector<Response>;

  Status CheckNews(const Ask& ask, const Request& request) const;
  Status Enter(Ask& ask, int64_t now_ns);
  void NoteAsker(pid_t thread);
  bool RoundIsDue() const;
  void Drive(Lock& lock);
  void TakeInput();
  void After(Lock& lock, Result<RoundResult> result);
  void Dispatch(Lock& lock, RoundResult result);
  void DispatchFused(Lock& lock, RoundResult& result);
  void Run(Lock& lock, Batch batch, int64_t bytes);
  TensorHome& HomeOf(std::string_view name);
  void ForgetName(std::string_view name);
  void ForgetIdleNames();
  bool StartMover();
  void Perform(Batch& batch, Lock& lock);
  Status PerformOn(Batch& batch);
  Performer::Activity TellTimeline();
  void ChangeSets(Lock& lock, Response response);
  void Finish(Response& response, const Status& status);
  void FailOrHold(Response& response);
  void FinishHeld(uint64_t check);
  void FinishInline(Response& response);
  void NoteFinished(const Response& response);
  void FinishJoin(int last);
  void ReportStalls(const RoundResult& result);
  std::string Activity() const;
  std::string PendingTextLocked() const;
  void AskForStallCheckLocked();
  bool StallIsDue(int64_t now_ns) const;
  void LeaveWhenOverdue(int64_t now_ns, bool others);
  std::string OverdueText() const;
  // Ranks of the set as those of the job.
  RankSet Globally(const RankSet& ranks) const;
  void End(const Status& reason);
  void RingDoorbell(uint64_t round);
  void DrainMover(Lock& lock);
  void Loop();
  void MoveOne(Lock& lock);
  void MoveElsewhere(Lock& lock);
  void MoverLoop();

  const Options options_;
  const Hooks hooks_;
  Timeline* const timeline_;
  const std::unique_ptr<Exchange> exchange_;
  const std::unique_ptr<Autotune> autotune_;
  Controller controller_;
  Performer performer_;
  GpuPerformer gpu_performer_;

  mutable std::mutex mutex_;
  std::condition_variable loop_wakes_;
  std::condition_variable progress_;  // tickets done, driver gone, set ended
  std::condition_variable mover_wakes_;
  std::vector<std::unique_ptr<Pending>> incoming_;
  RoundInput input_;  // the driver's, kept for its memory
  struct HashText {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, TensorHome, HashText, std::equal_to<>> names_;
  // Names of tensors that are not pending are kept, up to so many: they usually come again. Some
  // 0.6 KB each; more than models have tensors.
  static constexpr size_t kMaxRememberedNames = 16384;
  size_t forget_above_ = kMaxRememberedNames;
  // Names are asked for in the same order again and again: each leads to the one after it.
  TensorHome* last_home_ = nullptr;
  uint64_t names_version_ = 0;  // changes when homes go, which others may lead to
  // How what came with a sequence number was fused.
  struct Fused {
    uint64_t sequence = 0;
    int64_t threshold = 0;
    std::vector<std::vector<size_t>> batches;
    std::vector<int64_t> bytes;
    bool all_in_order = false;  // one batch, of all responses in their order
  };
  Fused fused_;
  uint64_t order_ = 0;
  Tuning tuning_;
  bool driving_ = false;
  bool in_round_ = false;
  int64_t round_began_ns_ = 0;
  bool loop_asleep_ = false;
  int waiters_ = 0;
  uint64_t next_round_ = 0;
  uint64_t called_round_ = 0;  // all rounds below this are asked for
  uint64_t passed_on_ = 0;     // what was last asked of others
  bool quiet_ = false;         // nobody had anything new in the last round
  bool standing_ = false;      // something here waits for other ranks
  bool unsent_ = false;
  TicketHold join_;
  bool join_announced_ = false;
  std::optional<std::string> leaving_;
  bool stall_check_ = false;
  int64_t last_call_ns_ = 0;  // when the limit for stalls passed; 0: it has not
  struct DueFailure {
    PendingFailure failure;
    uint64_t round = 0;  // not to be brought to one before
  };
  std::map<std::string, DueFailure> pending_failures_;
  bool failing_in_round_ = false;  // the round under way has some of them
  uint64_t decided_ = 0;           // the last check
  std::vector<Response> held_;     // that fell by later checks
  std::set<pid_t> askers_;
  static constexpr size_t kFewAskers = 64;
  size_t most_askers_ = kFewAskers;  // from so many on, the dead are looked for
  pid_t last_asker_ = 0;
  struct Blocked {
    pid_t thread = 0;
    const Ticket* ticket = nullptr;
  };
  std::vector<Blocked> blocked_;
  int64_t oldest_ns_ = 0;  // since when the oldest pending tensor waits; 0: none
  std::optional<Tuning> new_tuning_;
  std::vector<Stall> last_stalls_;
  std::string last_finished_;
  int64_t last_finished_ns_ = 0;
  std::deque<Batch> moving_;
  bool mover_busy_ = false;
  Status ended_;
  bool has_ended_ = false;
  bool end_told_ = false;
  Counters counters_;

  std::thread mover_;
  std::thread loop_;
};

}  // namespace tutti::coordinator
