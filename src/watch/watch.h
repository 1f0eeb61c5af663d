#pragma once

// The watch over a communicator: who is still here, every rank's activity, and why the communicator
// stopped.
//
// The watch listens to the bootstrap's events. Lost ranks, a failure here and a failure of another
// rank raise the stop flag, which ends every wait of the communicator. The first reason sticks, so
// all survivors report the same sentence. A failure of this rank is flooded over the bootstrap's
// links; the bootstrap itself tells every rank of lost ranks.
//
// The protocol of operations is the same for ranks on hosts and for GPUs:
//
//   1. The thread that runs an operation, or launches an operation on a device, holds a
//      Watch::Operation meanwhile. The watch numbers the operation and keeps its signature
//      (operation_log.h).
//   2. When something seems wrong, a rank sends inquiries (inquiry.h) with operations of its own.
//      The asked rank compares each of them with its own operation of the same number, now or when
//      the operation begins, and stops the communicator where the two differ; all ranks then hear
//      of both sides. The asked rank also answers with its present activity, for the sentence about
//      a stall.
//   3. Hosts and GPUs notice differently that something is wrong. A thread of the host notices a
//      long wait (OnLongWait), or data with a foreign tag (OnForeignChunk), and asks the ranks
//      concerned. A kernel notices neither: for kernels, the ranks compare their operations
//      whenever nothing has been launched for a moment (CompareRecent; call_checker.h says when).
//   4. A rank on a host that ends its communicator says goodbye through the bootstrap, and waiting
//      ranks notice. A GPU tells the others beforehand how many operations it has begun
//      (leave_notice.h), for its kernels cannot notice anything.
//
// Waits over the bootstrap in calls that all ranks make together (OnJointWait) obey the same rule
// of time as waits of operations (base/long_wait.h). Split and shrink wait here, too, until the new
// communicator exists, because its ranks are known by their numbers in this communicator.
//
// Threads: the thread that runs or launches operations, at most one at a time, holds the Operation
// and calls the functions of WaitWatcher. Bootstrap events arrive on the loop's thread. Everything
// else may be called from any thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/host/wait_context.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/wait_listener.h"
#include "observe/board.h"
#include "observe/signature.h"
#include "plan/task.h"
#include "watch/inquiry.h"
#include "watch/leave_notice.h"
#include "watch/operation_log.h"
#include "watch/wait_board.h"

namespace tutti {

// Hears what slow_rank_finder.h needs to know of a communicator.
class PaceListener {
 public:
  virtual ~PaceListener() = default;
  // A collective has waited for other ranks. Called by the thread that runs operations.
  virtual void OnWaited() = 0;
  // A message of another rank's SendPace has come. Called on the loop's thread.
  virtual void OnPace(int from, std::span<const std::byte> message) = 0;
};

class Watch final : public WaitWatcher, public WaitListener {
 public:
  // The reason why a peer has closed a connection arrives within this time. The bootstrap brings
  // the reason in milliseconds, or within the bounds of loss_agreement.h where the ranks must find
  // out whether a rank that was cut off is alive.
  static constexpr int64_t kExplainBrokenNs = 1'000'000'000;

  struct Options {
    int64_t timeout_ns = 0;               // of an operation without progress; 0: none
    std::vector<std::string> rank_names;  // a text for each rank, such as "rank 3 (host a, pid 7)"
    std::string name = {};                // of the communicator, for sentences. May be empty.
    // The setting with the time-out of calls that all ranks make together, for sentences.
    std::string joint_setting = "TUTTI_INIT_TIMEOUT_S";
    WaitBoard* board = nullptr;  // the other communicators of this process. May be null.
    int64_t explain_ns = kExplainBrokenNs;
  };
  // `bootstrap` and the board must outlive the watch. The watch works in `record`, which other
  // processes see (observe/record.h).
  Watch(Bootstrap& bootstrap, Options options,
        observe::OwnedRecord record = observe::OwnedRecord());
  // Begins to listen. Separate from the constructor because events may arrive at once.
  void Start();
  // Ends to listen: after return no event is being handled. REQUIRES: the caller is not on the
  // loop's thread. Called before destruction.
  void StopListening(EventLoop& loop);

  // ---- Stopping (watch.cc)

  const std::atomic<bool>& stop_flag() const { return stop_; }
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  // Raises the stop flag with `reason` (not ok) unless the flag is up already; with `tell`, floods
  // the reason to the other ranks.
  void Stop(const Status& reason, bool tell);
  // Has `hook` called once when the flag rises, on any thread; at once if the flag is up already.
  // For objects that cannot look at the flag. REQUIRES: called before Start.
  void SetStopHook(std::function<void()> hook);
  Status StopReason() override;

  // Sets the time-out of operations that begin from now on. Any thread.
  void SetTimeout(int64_t timeout_ns) { timeout_ns_ = timeout_ns; }

  // ---- Operations and their comparison (watch_compare.cc)

  // An operation of this rank, from its begin until its thread leaves the operation: a collective
  // is then done, or on its way on a device. Numbers its collective or its messages.
  class Operation {
   public:
    // `parts` are the parts of the task, used where the collective is an AlltoAllV. The operation
    // may wait without progress for `timeout_ns`; 0: for as long as any other.
    Operation(Watch& watch, OpSignature& collective,
              const std::shared_ptr<const VariableParts>& parts, int64_t timeout_ns = 0)
        : watch_(watch) {
      watch_.log_.BeginCollective(collective, parts);
      watch_.OnBegin();
      watch_.present_timeout_ns_ = timeout_ns > 0 ? timeout_ns : watch_.timeout_ns_.load();
    }
    // Begins the sends and receives of a group, which must outlive this object.
    Operation(Watch& watch, std::span<MessageCall> messages) : watch_(watch) {
      watch_.log_.BeginMessages(messages);
      watch_.OnBegin();
      watch_.present_timeout_ns_ = watch_.timeout_ns_;
    }
    ~Operation() {
      watch_.present_timeout_ns_ = watch_.timeout_ns_;
      watch_.log_.End();
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    Watch& watch_;
  };
  // Returns the reason of the stop to a collective that is called afterwards. The first of them is
  // noted, without comparing: where ranks have called different operations, its signature tells
  // which of them most ranks call. REQUIRES: stopped().
  Status Refuse(OpSignature collective, const std::shared_ptr<const VariableParts>& parts);
  // Shows the last collectives of this rank to `next`; the AlltoAllVs begun since the last call to
  // every rank, because each pair of ranks has counts of its own; and the messages begun since the
  // last call to their other ends. Where an end differs, both communicators stop. Of the two ends
  // of a message the end that asks last is answered. At most one thread at a time.
  void CompareRecent(int next);

  // Says that a tuner advises the choice of algorithms, so operations may differ in their
  // algorithms too. REQUIRES: no operation has begun.
  void set_has_tuner() { has_tuner_ = true; }

  Status OnForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) override;

  // ---- Waits that last (watch_waits.cc)

  Status OnLongWait(std::span<const int> peers, LongWait& wait) override;
  Status OnJointWait(int rank, LongWait& wait, int64_t timeout_ns) override;
  // Returns the ranks that did not answer when a wait of this communicator, here or on another
  // rank, came to its time-out; in order. Any thread.
  std::vector<int> HungRanks() const;
  // Asks the linked ranks for their activity, and counts those without an answer as hung, where no
  // hung rank is known: for waits of joint calls that the watch does not follow, at a root for
  // example. Waits up to a second for the answers, and not once the communicator has stopped.
  void FindHungRanks();
  // Returns whether both watch the same communicator.
  bool HasSameRanksAs(const Watch& other) const { return communicator() == other.communicator(); }
  // Returns the present wait of this rank, with the name of the communicator; empty where the rank
  // does not wait. Any thread.
  std::string DescribeWait() const;
  // Returns the number that all ranks share (Bootstrap::id).
  uint64_t communicator() const { return bootstrap_.id(); }
  // Returns a text such as "communicator tp (0123456789abcdef)".
  const std::string& label() const { return label_; }

  // ---- Letters between processes (watch_letters.cc)

  // Sends a letter of the process's WaitBoard to the process of `rank`, by way of linked ranks.
  // Returns false where no link leads nearer to `rank`. Any thread.
  bool SendLetter(int rank, std::span<const std::byte> letter) const {
    return PassLetter(Message::kLetter, bootstrap_.rank(), rank, letter);
  }

  // ---- The pace of the ranks (slow_rank_finder.h)

  // Notes the time for which a collective has waited for other ranks. REQUIRES: the caller is the
  // thread that runs operations.
  void NoteWaited(Collective collective, int64_t waited_ns);
  // Null, as at first: nobody listens. After return the earlier listener is not being called.
  // REQUIRES: no operation is under way, and the caller is not on the loop's thread.
  void SetPaceListener(PaceListener* listener, EventLoop& loop);
  // Sends a message to the listener of a rank, in the way of a letter. Any thread.
  void SendPace(int rank, std::span<const std::byte> message) const {
    PassLetter(Message::kPace, bootstrap_.rank(), rank, message);
  }
  // Returns the record of this rank, in which the listener shows slow ranks.
  observe::CommunicatorRecord& record() { return *record_.operator->(); }
  // Returns a text such as "rank 3 (host a, pid 7), rank 5 (host b, pid 8)".
  std::string NameAll(std::span<const int> ranks) const;

  // ---- What ranks are doing (watch_doing.cc)

  // While a Step lives, ranks that ask for this rank's activity are told `what`, such as "in
  // ncclCommSplit". Where several live, the newest counts. Any thread.
  class Step {
   public:
    Step(Watch& watch, std::string what);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    friend class Watch;
    Watch& watch_;
    const std::string what_;
    const int64_t since_ns_;
  };

  // ---- Calls that all ranks make together (watch_joint_calls.cc)

  // A call that all ranks make together, such as ncclCommSplit. While a JointCall lives, a failure
  // of the communicator raises `flag`, which ends the call: when the communicator stops, or loses a
  // rank after a stop for another reason (a revoked communicator can be split). The flag is raised
  // at once where the communicator has lost a rank before, and when another rank gives the call up.
  // `flag` must outlive this object. Any thread. All ranks make and number these calls in the same
  // order.
  class JointCall {
   public:
    JointCall(Watch& watch, std::atomic<bool>& flag);
    ~JointCall();
    JointCall(const JointCall&) = delete;
    JointCall& operator=(const JointCall&) = delete;
    // Returns why the watch raised the flag; success until then.
    Status reason() const;
    // Waits until the watch raises the flag, at most until the deadline. Returns what reason() does
    // then.
    Status AwaitReason(Deadline deadline) const;
    // Tells the other ranks that this one takes no further part in the call, and why: theirs ends
    // with `reason`, or will when they come to it. The communicator stays as it is.
    void GiveUp(const Status& reason) const;

   private:
    Watch& watch_;
  };

  // ---- Lost ranks (watch.cc)

  // Returns the ranks that the communicator has lost, in order; this rank itself where the others
  // go on without it. All remaining ranks get the same answer, as soon as they have heard. Any
  // thread.
  std::vector<int> LostRanks() const;
  // Returns whether a rank has ended its communicator in order. Any thread.
  bool HasLeft(int rank) const;
  // Returns RemoteError where all other ranks ended their communicators more than a moment ago. Any
  // thread.
  Status CheckNotAlone() const;
  // Returns the report of an operation here that failed with `seen`: why the communicator stopped,
  // if it has. A broken connection is often but a consequence whose reason is still on its way, and
  // a moment is spent waiting for the reason. `peer` is the other end of the connection, where
  // known. If no reason comes and the peer has not left, both ends live, and the communicator's
  // ranks agree on which of the two goes (bootstrap/loss_agreement.h), so all exclude the same
  // ranks.
  Status FirstReason(Status seen, std::optional<int> peer = std::nullopt);

  // ---- Leave notices (watch_leaving.cc)

  // Tells the others how many operations this rank has begun, and that no more will come.
  // `finished`: see LeaveNotice.
  void SendLeaveNotice(bool finished);
  // Has `hook` called on the loop's thread when a leave notice of another rank has come. Null ends
  // the calls.
  void SetLeaveHook(std::function<void()> hook);
  // Returns RemoteError where this rank has gone further than a rank that has left. Any thread.
  Status CheckLeaveNotices() const;
  // Returns the reason where an operation here does not end because another rank was cut short;
  // nothing where none was. Any thread.
  std::optional<Status> CutShort() const;

 private:
  // The first byte of a control message. The function that sends a message describes the rest.
  enum class Message : uint8_t {
    kFailure = 1,
    kInquiry = 2,
    kDoing = 3,
    kLeaving = 4,
    kBrokenData = 5,
    kCallGivenUp = 6,
    kHung = 7,
    kLetter = 8,
    kPace = 9
  };
  // An inquiry of rank `from`.
  struct Asked {
    int from;
    Inquiry inquiry;
  };
  // The last answer of a rank.
  struct Answer {
    std::string doing;
    std::vector<int> waits_for;  // Empty where the rank waits for no other rank.
    int64_t at_ns;
  };
  // The ranks that a thread of this rank waits for, and the time of its last word about the wait.
  struct Awaited {
    std::vector<int> ranks;
    int64_t at_ns = 0;
  };
  using Shown = Inquiry::Shown;
  static constexpr size_t kMaxTextBytes = 2000;
  static constexpr size_t kMaxRanksShown = 8;  // the most ranks in a text
  // The most ranks that a wait asks. The ranks are a chain: each rank waits for the next rank.
  static constexpr size_t kMaxChain = 64;
  // The most inquiries about operations that this rank has not begun. Further inquiries are
  // dropped.
  static constexpr size_t kMaxEarly = 64;
  // A rank that is told of a joint call before its own begin keeps the reason until then. No rank
  // can be this many calls ahead of another, because none finishes a call without the others.
  static constexpr size_t kMaxCallsGivenUp = 64;

  // watch.cc
  static Bytes StartMessage(Message kind) { return Bytes(1, static_cast<std::byte>(kind)); }
  static void AppendText(std::string_view text, Bytes& bytes);
  static std::string TextOf(std::span<const std::byte> bytes);
  void OnControl(int from, std::span<const std::byte> payload);
  void OnFailure(std::span<const std::byte> body);
  void OnPeerLeft(int rank);
  // Waits until a change that a wait may be looking for, or until `until_ns`. May return early.
  void AwaitChange(MutexLock& lock, int64_t until_ns) TUTTI_REQUIRES(mutex_);
  std::string NameOf(int rank) const;
  void OnLost(std::span<const LostRank> lost);
  void OnBrokenData(std::span<const std::byte> body);
  Status LossStatus(std::span<const LostRank> lost) const;
  void FollowBrokenData() TUTTI_EXCLUDES(mutex_);
  // Returns whether the communicator has stopped, or `peer` has left.
  bool IsOver(std::optional<int> peer) const TUTTI_REQUIRES(mutex_);
  bool AwaitOver(std::optional<int> peer, Deadline deadline) TUTTI_EXCLUDES(mutex_);
  void AgreeOnBroken(int peer, const Status& seen) TUTTI_EXCLUDES(mutex_);

  // watch_compare.cc
  void OnBegin() {
    if (has_early_.load(std::memory_order_relaxed)) CompareEarly();
  }
  void OnInquiry(int from, std::span<const std::byte> body);
  void Ask(int peer, Shown shown, const OpSignature& mine);
  void AskAboutPresent(std::span<const int> peers);
  void AskAboutPast(int peer);
  void Compare(const Asked& asked);
  void CompareEarly();
  void CompareCollective(const Asked& asked);
  void ComparePair(const Asked& asked);
  void CompareMessage(const Asked& asked);

  // watch_doing.cc
  // Shows the newest step in the record.
  void ShowStep() TUTTI_REQUIRES(mutex_);
  // Shows the wait of an operation in the record.
  void ShowWait(std::span<const int> peers, int64_t since_ns) TUTTI_REQUIRES(mutex_);
  void AskWhatTheyDo(std::span<const int> peers);
  void AnswerWhatThisDoes(int to);
  void OnDoing(int from, std::span<const std::byte> body);
  // Returns the answer of `rank` since `since_ns`, or null.
  const Answer* AnswerOf(int rank, int64_t since_ns) const TUTTI_REQUIRES(mutex_);
  // Returns whether `rank` has left a question of this rank unanswered for `silent_ns`.
  bool IsSilent(int rank, int64_t now_ns, int64_t silent_ns) const TUTTI_REQUIRES(mutex_);
  std::string Answers(std::span<const int> silent, std::span<const int> peers,
                      int64_t since_ns) const TUTTI_REQUIRES(mutex_);
  std::string WhatThisDoes() const TUTTI_REQUIRES(mutex_);
  const Awaited* PresentWait() const TUTTI_REQUIRES(mutex_);

  // watch_waits.cc
  bool NoteWait(std::span<const int> peers, int64_t timeout_ns, Awaited& awaited)
      TUTTI_REQUIRES(mutex_);
  std::vector<int> Chain(std::span<const int> peers, int64_t since_ns) const TUTTI_REQUIRES(mutex_);
  // Returns the linked ranks that are neither lost nor have left.
  std::vector<int> LinkedRanksHere() const TUTTI_REQUIRES(mutex_);
  std::vector<int> ChainNow(std::span<const int> peers, int64_t timeout_ns) const;
  Status CheckTheyAreHere(std::span<const int> peers, const LongWait& wait) const;
  Status Report(std::span<const int> peers, const LongWait& wait, LongWait::Due due,
                int64_t timeout_ns, const std::string& setting) TUTTI_EXCLUDES(mutex_);
  void NoteHung(std::span<const int> ranks) TUTTI_EXCLUDES(mutex_);
  void OnHung(std::span<const std::byte> body);
  static void AppendRanks(std::span<const int> ranks, Bytes& bytes);
  // Reads and removes ranks from the front of `bytes`; nothing where the bytes are no ranks.
  std::optional<std::vector<int>> ReadRanks(std::span<const std::byte>& bytes) const;

  // watch_letters.cc
  bool PassLetter(Message kind, int from, int to, std::span<const std::byte> letter) const;
  void OnLetter(Message kind, std::span<const std::byte> body) const;
  void OnPace(int from, std::span<const std::byte> letter) const;

  // watch_joint_calls.cc
  // Ends a JointCall from outside.
  struct JointEnd {
    uint64_t number = 0;
    std::atomic<bool>* flag = nullptr;
    Status reason;  // where not ok, the watch has raised the flag
  };
  void EndJointCall(JointEnd& end, const Status& reason) TUTTI_REQUIRES(mutex_);
  void EndJointCalls(const Status& reason) TUTTI_REQUIRES(mutex_);
  void GiveUpCall(uint64_t number, const Status& reason) TUTTI_EXCLUDES(mutex_);
  void OnCallGivenUp(std::span<const std::byte> body);

  // watch_leaving.cc
  void OnLeaveNotice(std::span<const std::byte> payload);

  Bootstrap& bootstrap_;
  const Options options_;
  const std::string label_;
  // Returns the end of a sentence about ranks that do not match.
  const char* OrTuners() const {
    return has_tuner_ ? "; or their tuner plugins (NCCL_TUNER_PLUGIN) choose differently" : "";
  }

  bool has_tuner_ = false;

  observe::OwnedRecord record_;
  OperationLog log_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> has_early_ = false;  // early_ is not empty
  bool has_refused_ = false;             // Used only by the thread that runs operations.
  std::atomic<int64_t> timeout_ns_;      // of operations without a time-out of their own
  // The timeout of the present operation. Used only by the thread that runs operations.
  int64_t present_timeout_ns_ = 0;
  // The last AlltoAllV that CompareRecent has shown to all. Used by its thread only.
  uint64_t last_shown_to_all_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;  // notified when a rank stops, leaves, answers or tells of broken connections
  Status reason_ TUTTI_GUARDED_BY(mutex_);  // Says why the communicator stopped.
  std::function<void()> stop_hook_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Asked> early_ TUTTI_GUARDED_BY(mutex_);
  // The steps in the order in which they were made.
  std::vector<const Step*> steps_ TUTTI_GUARDED_BY(mutex_);
  std::map<int, Answer> answers_ TUTTI_GUARDED_BY(mutex_);
  // The times of the first questions, by rank, that the rank has not answered yet.
  std::map<int, int64_t> unanswered_ns_ TUTTI_GUARDED_BY(mutex_);
  Awaited in_operation_ TUTTI_GUARDED_BY(mutex_);
  Awaited in_joint_call_ TUTTI_GUARDED_BY(mutex_);
  int64_t warned_ns_ TUTTI_GUARDED_BY(mutex_) = 0;  // the time of the last warning of any thread
  std::set<int> hung_ TUTTI_GUARDED_BY(mutex_);
  // The times at which ranks said goodbye.
  std::map<int, int64_t> left_at_ns_ TUTTI_GUARDED_BY(mutex_);
  std::map<int, LeaveNotice> leave_notices_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> leave_hook_ TUTTI_GUARDED_BY(mutex_);
  std::map<const JointCall*, JointEnd> joint_calls_ TUTTI_GUARDED_BY(mutex_);
  uint64_t num_joint_calls_ TUTTI_GUARDED_BY(mutex_) = 0;
  CondVar joint_call_ended_;  // from outside, by EndJointCall
  std::map<uint64_t, Status> calls_given_up_ TUTTI_GUARDED_BY(mutex_);  // the last ones, by number
  std::set<int> lost_ TUTTI_GUARDED_BY(mutex_);
  // How the ranks of this communicator agree on who goes where connections for data have broken.
  // The bootstrap's own agreement knows only its links, and serves all communicators of the ranks.
  LossAgreement broken_data_ TUTTI_GUARDED_BY(mutex_);
  Status lost_reason_ TUTTI_GUARDED_BY(mutex_);  // the reason of the first loss
  std::atomic<PaceListener*> pace_listener_ = nullptr;
};

}  // namespace tutti
