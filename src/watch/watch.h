#pragma once

// The watch over a communicator: who is still there, what everybody is doing, and why it stopped.
//
// It listens to the bootstrap's events. Lost ranks, a failure here or a failure told by another
// rank raise the stop flag, which ends every wait of the communicator; the first reason sticks, so
// that all survivors report the same sentence. What failed here is flooded over the bootstrap's
// links; of lost ranks the bootstrap tells everybody.
//
// A rank that waits long asks the rank it waits for what that one is doing. The answer either shows
// that the two are in different operations (then both sides are shown, on every rank), or goes into
// the warning about the stall.
//
// Threads: the executing thread calls Begin/End and the WaitWatcher functions; bootstrap events
// arrive on its loop thread; Stop and the queries may be called from any thread.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/host/wait_context.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "plan/task.h"
#include "watch/leave_notice.h"
#include "watch/recent_collectives.h"
#include "watch/signature.h"

namespace tutti {

class Watch final : public WaitWatcher {
 public:
  // `describe_rank` gives "rank 3 (host a, pid 7)" for messages. `bootstrap` must outlive the
  // watch.
  Watch(Bootstrap& bootstrap, int64_t timeout_ns, std::vector<std::string> rank_names);
  // Begins to listen. Separate from the constructor because events may arrive at once.
  void Start();
  // Ends it; after return no event is being handled. REQUIRES: not on the loop's thread, and before
  // destruction.
  void StopListening(EventLoop& loop);

  const std::atomic<bool>& stop_flag() const { return stop_; }
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  // Raises the stop flag with `reason` (not ok) unless it is up already; `tell` floods it to the
  // other ranks.
  void Stop(const Status& reason, bool tell);
  // `hook` is called once when that happens, on any thread, also if it has happened already. For
  // what cannot look at the stop flag. REQUIRES: before Start.
  void SetStopHook(std::function<void()> hook);

  // The operation that the executing thread is in. For send and receive, each message of the group.
  // `exchange`: the counts of an AlltoAllV, of which each pair of ranks knows its own alone.
  void Begin(const OpSignature& signature,
             const std::shared_ptr<const VariableParts>& exchange = nullptr);
  void BeginMessages(std::span<const OpSignature> sends, std::span<const OpSignature> receives);
  void End() { busy_.store(false, std::memory_order_relaxed); }

  // A collective that has been launched and runs elsewhere, its number in its signature. One thread
  // at a time, and none of Begin.
  void NoteCall(const OpSignature& signature);
  // A message likewise; it is numbered here. Its peer is the signature's root.
  void NoteMessage(OpSignature signature, bool is_send);
  // Shows `peer` the last collectives here, the oldest first. Where it has called something else,
  // the communicators of both stop.
  void CompareCalls(int peer);
  // Shows the messages noted since the last time, as far as they are remembered, to their other
  // ends. Where one sends other than so many bytes as the other expects, the communicators of both
  // stop. Of the two ends the one that asks last is answered.
  void CompareMessages();

  // Tells the others how far this rank has got, in operations that were noted as above, and that it
  // comes no more; `finished`: see Departure.
  void SayLeaving(bool finished);
  // `hook` is called on the loop's thread when another rank has said so. Null: nobody is told.
  void SetDepartureHook(std::function<void()> hook);
  // RemoteError where this rank has gone further than one that left. `*cut_short`: of one that
  // left, not all it called was done. Any thread.
  Status CheckDepartures(bool* cut_short);
  // What to say where an operation here does not end, because of such a rank.
  Status CutShort();

  // While it lives, ranks that ask what this one is doing are told `what`, such as "in
  // ncclCommSplit". Of several the last one counts. Any thread.
  class Step {
   public:
    Step(Watch& watch, std::string what);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    Watch& watch_;
  };
  // A call that all ranks make together, such as ncclCommSplit. While it lives, a failure of the
  // communicator raises `flag`, which ends the call: when the communicator stops, or loses a rank
  // after it has stopped for another reason (a revoked communicator can be split). Where it has
  // lost a rank before, the flag is raised at once. `flag` must outlive this. Any thread.
  class JointCall {
   public:
    JointCall(Watch& watch, std::atomic<bool>& flag);
    ~JointCall();
    JointCall(const JointCall&) = delete;
    JointCall& operator=(const JointCall&) = delete;
    // Why the flag was raised; success while it was not, or was by somebody else.
    Status reason() const;

   private:
    friend class Watch;
    void EndLocked(const Status& reason);
    Watch& watch_;
    std::atomic<bool>& flag_;
    Status reason_;
  };

  // The ranks that the communicator has lost, in order; this rank itself where the others go on
  // without it. All ranks that are left have the same ones, as soon as they have heard. Any thread.
  std::vector<int> LostRanks() const;

  // `timeout`, of a step that waited for `peers`, and what those are doing instead. Takes a second
  // at most. Any thread.
  Status Explain(const Status& timeout, std::span<const int> peers);

  Status OnLongWait(std::span<const int> peers, int64_t waited_ns) override;
  Status StopReason() override;
  // What an operation here that failed with `seen` reports: why the communicator stopped, if it
  // has. A connection that broke is often but a consequence, whose reason is still on its way: it
  // is waited for, a moment. `peer` is the other end of that connection, where it is known. If no
  // reason comes although that rank has not left, both live: then the higher of the two ranks is
  // excluded, which is what the peer comes to as well, and all are told.
  Status FirstReason(Status seen, std::optional<int> peer = std::nullopt);
  Status OnForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) override;

 private:
  enum class Message : uint8_t {
    kFailure = 1,
    kInquiry = 2,
    kDoing = 3,
    kLeaving = 4,
    kExcluded = 5
  };
  // What the asking rank sends to the asked one in an AlltoAllV, and expects of it, in elements.
  struct PairCounts {
    uint64_t sends = 0;
    uint64_t receives = 0;
  };
  // What an inquiry shows: a collective (or nothing), a message that did not fit what was received,
  // or one that was launched.
  enum class Shown : uint8_t { kCollective, kMisfit, kLaunchedReceive, kLaunchedSend };
  struct Inquiry {
    int from;
    OpSignature signature;
    Shown shown;
    PairCounts pair;
  };
  struct Launched {
    OpSignature signature;
    bool is_send = false;
  };
  struct Answer {
    std::string doing;
    bool waits;  // for another rank
    int64_t at_ns;
  };
  static constexpr size_t kRemembered = 64;  // messages sent, and questions that came early
  // The counts of AlltoAllV are four numbers for each rank.
  static constexpr size_t kRememberedExchanges = 8;

  void OnControl(int from, std::span<const std::byte> payload);
  void OnFailure(int from, std::span<const std::byte> payload);
  void OnInquiry(int from, std::span<const std::byte> payload);
  void OnDoing(int from, std::span<const std::byte> payload);
  void OnLeaving(int from, std::span<const std::byte> payload);
  void OnLost(std::span<const LostRank> lost);
  Status LossStatus(std::span<const LostRank> lost) const;
  void Exclude(const LostRank& excluded);
  void OnExcluded(std::span<const std::byte> payload);
  void Ask(std::span<const int> peers);
  void AskWhatTheyDo(std::span<const int> peers);
  std::string AnswersLocked(std::span<const int> peers, int64_t since_ns) const;
  void AskAboutThePast(int peer);
  void AskWith(int peer, const OpSignature& mine, Shown shown);
  void CompareLaunched(const Inquiry& inquiry);
  void Compare(const Inquiry& inquiry);
  void CompareEarly();
  void ComparePair(const Inquiry& inquiry);
  PairCounts PairWithLocked(int peer, uint64_t sequence) const;
  Status Stalled(std::span<const int> peers, int64_t waited_ns);
  std::string WhatHereLocked() const;
  bool WaitsLocked() const;
  std::string NameOf(int rank) const;
  std::string NameAll(std::span<const int> ranks) const;
  Status WaitForReason(int64_t timeout_ns, const Status& otherwise);

  Bootstrap& bootstrap_;
  const int64_t timeout_ns_;
  const std::vector<std::string> rank_names_;

  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;
  Status reason_;
  std::function<void()> stop_hook_;
  std::array<OpSignature, kRemembered> sends_;  // the last ones, any peer
  uint64_t num_sends_ = 0;
  struct Exchange {
    uint64_t sequence = 0;
    std::shared_ptr<const VariableParts> parts;
  };
  std::array<Exchange, kRememberedExchanges> exchanges_;  // the last ones
  uint64_t num_exchanges_ = 0;
  std::array<Launched, kRemembered> launched_;  // messages, the last ones
  uint64_t num_launched_ = 0;
  uint64_t num_shown_ = 0;                  // of these
  std::vector<uint64_t> launched_numbers_;  // by peer: received from it, sent to it
  std::map<int, Departure> departures_;
  std::function<void()> departure_hook_;
  std::vector<OpSignature> receives_;  // of the current group; of the executing thread only
  std::string step_;                   // of a Step; empty: none
  std::vector<JointCall*> joint_calls_;
  std::set<int> lost_;
  Status lost_reason_;  // of the first loss
  // The last operation begun: the last of these collectives, or a group of so many messages.
  RecentCollectives collectives_;
  std::atomic<uint64_t> num_messages_ = 0;
  std::atomic<bool> busy_ = false;  // it is under way
  std::vector<Inquiry> early_;      // asked about operations this rank has not reached
  std::atomic<bool> has_early_ = false;
  // What the executing thread waits for, and when it last said so.
  std::vector<int> waits_for_;
  int64_t waits_at_ns_ = 0;
  std::map<int, Answer> answers_;  // the last of each rank
  std::vector<bool> left_;
  std::map<int, int64_t> left_at_ns_;
  int64_t asked_ns_ = 0;   // of the executing thread only
  int64_t warned_ns_ = 0;  // likewise
};

}  // namespace tutti
