#pragma once

// The controller of one rank in one process set. The controller turns the requests of all ranks,
// made in any order, into responses in an order common to all ranks.
//
// The controller works in rounds, and every rank takes part in every round. A round is one small
// exchange of states and, only when a rank has a new request, one exchange of requests.
//
//   1. States: one byte each, of which every rank gets the smallest over all ranks.
//        Four bytes say whether a rank leaves, has requests, has news, wants a stall check.
//        One byte for each cache slot: 0 no longer valid, 1 not here, 2 here.
//        Blocks for very small data may follow (inline_data.h).
//      Slots whose state is 2 on all ranks run, in the order of the slots. Tensors whose data came
//      inline are done already.
//   2. Requests (RoundMessage), merged over all ranks, when any rank has some.
//      Tensors requested by all ranks are checked, run in rank 0's order, and enter the cache.
//
// All ranks keep the same table of requests that wait for others, and nobody is in charge: each
// rank draws the same conclusions from the same bytes.
//
// A round blocks until all ranks take part. The caller decides when to begin a round (see
// RoundResult). One thread at a time owns and calls a controller.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "coordinator/exchange.h"
#include "coordinator/response.h"
#include "coordinator/response_cache.h"
#include "coordinator/round_message.h"

namespace tutti::coordinator {

// Holds the input of a rank to a round: new tensors, and further reasons for a round.
struct RoundInput {
  std::vector<std::unique_ptr<Tensor>> news;
  std::optional<std::string> leaving;  // This rank ends the process set, for this reason.
  bool joining = false;                // From now on this rank asks for nothing.
  // Asks all ranks to say for which tensors they wait. A tensor that has been pending since before
  // `late_before_ns` counts as late.
  bool stall_check = false;
  int64_t late_before_ns = 0;
  std::optional<Tuning> tuning;  // rank 0 only
  // Returns a text about the present activity of this rank. Called in stall checks only.
  std::function<std::string()> activity;
  // Returns the tensors for which this rank waits in all its sets. Called in stall checks of the
  // set of all ranks; null in other sets.
  std::function<SetWaits()> collect_waits;
  // Tensors that fail where they are pending on the ranks named.
  std::map<std::string, PendingFailure> pending_failures;
};

// A tensor that some ranks have waited for too long.
struct Stall {
  std::string name;
  RankSet have;
  RankSet missing;
};

struct RoundResult {
  std::vector<Response> responses;
  // A number for this list of responses. Equal numbers stand for equal lists (but for `pending`),
  // and different lists have different numbers; 0 stands for no number.
  uint64_t sequence = 0;
  // The ranks that leave, and why. Where there are any, the process set ends now.
  std::map<int, std::string> leaving;
  // The rank that joined last, once all ranks have joined.
  std::optional<int> last_joined;
  // Whether some rank brought something new. After a round without news nothing can change until a
  // rank has news, and no rank should begin a round before.
  bool news = false;
  bool stall_checked = false;
  std::vector<Stall> stalls;              // They are in the order of their names.
  std::map<int, std::string> activities;  // Where there are stalls: the activity of each rank.
  std::optional<SetWaits> set_waits;      // Where there are stalls: the waits of all ranks.
  std::optional<Tuning> tuning;
  bool negotiated = false;  // requests were exchanged, not only states
  // Ranks that asked for a tensor in this round, for the timeline.
  std::vector<std::pair<std::string, RankSet>> newly_ready;
};

class Controller {
 public:
  // `members` are the global ranks of the set, by which sentences and roots name them.
  Controller(Exchange& exchange, std::vector<int> members, size_t cache_capacity);

  // Runs one round. An error means a broken process set: a rank is lost. Takes the tensors out of
  // `input`, whose vector stays to be used again.
  Result<RoundResult> Round(RoundInput& input);
  Result<RoundResult> Round(RoundInput&& input) { return Round(input); }

  // Returns whether something waits here for another rank.
  bool HasPending() const { return !pending_.empty() || num_here_ > 0; }
  // Returns whether something here must still be sent: a round is due.
  bool HasUnsent() const { return !unsent_.empty(); }
  bool joined() const { return self_joined_; }
  const ResponseCache& cache() const { return cache_; }
  // Takes everything that is pending here, when the process set ends.
  std::vector<std::unique_ptr<Tensor>> TakeAll();
  // Returns when the oldest pending tensor was asked for; 0 where nothing is pending.
  int64_t OldestPendingNs() const;
  void ForEachPending(const std::function<void(const Tensor&)>& visit) const;

 private:
  struct TableEntry {
    Claim claim;
    bool complete = false;  // every rank has asked; the tensor waits for its group
  };
  using Names = std::vector<std::string>;

  void TakeNews(RoundInput& input);
  void Announce(int slot, std::unique_ptr<Tensor> tensor);
  void MakeStates(const RoundInput& input);
  bool ReadStates(RoundResult& result);
  void WriteMyInlineBlock();
  std::span<uint8_t> InlineBlocks();
  void FinishInline(RoundResult& result);
  void ForgetInline(int slot);
  int Remember(const std::shared_ptr<const Agreement>& agreed, std::optional<Request> mine);
  void Invalidate(int slot);
  void Unannounce(int slot);
  Status Negotiate(RoundInput& input, RoundResult& result, Names& completed);
  bool SpeaksForMe(const RoundMessage& message) const;
  RoundMessage MakeMessage(RoundInput& input, bool stall_check);
  void AddWaiting(const RoundInput& input, RoundMessage& message) const;
  Names Complete(const RoundMessage& message);
  void ReportStalls(const RoundMessage& message, RoundResult& result) const;
  // Takes out of these slots and names every tensor whose group is not complete.
  void HoldIncompleteGroups(std::vector<int>& slots, Names& names);
  uint64_t ChooseSlots(std::vector<int>& slots, Names& names);
  bool IsApplied(const std::string& name, const PendingFailure& failure) const;
  void ApplyPendingFailures(const RoundMessage& message);
  void RespondToFailures(RoundResult& result);
  std::set<std::string> TakeFromTable(const std::string& name, const RankSet& ranks);
  void FailName(const std::string& name, const std::string& error, RoundResult& result);
  void FailGroup(const std::string& group, const std::string& error, RoundResult& result);
  void RespondFromCache(RoundResult& result);
  void RespondFromTable(const std::string& name, RoundResult& result);
  Agreement Agree(const std::string& name, const Claim& claim) const;
  void EndJoin(RoundResult& result);
  void Adopt(const Tuning& tuning);
  std::unique_ptr<Tensor> TakePending(const std::string& name);
  std::unique_ptr<Tensor> TakeHere(int slot);
  bool SlotRunsWithoutJoined(int slot) const;
  std::string Mismatch(const std::string& name, const Claim& claim) const;

  Exchange& exchange_;
  const std::vector<int> members_;
  ResponseCache cache_;
  bool cache_enabled_ = true;
  // The tensors that are pending here. A tensor in here_ is announced by the state of its slot, one
  // in pending_ by its request.
  std::vector<std::unique_ptr<Tensor>> here_;
  int num_here_ = 0;
  std::unordered_map<std::string, std::unique_ptr<Tensor>> pending_;
  std::set<int> invalid_;        // slots whose tensor was asked for differently here
  std::vector<Tensor*> unsent_;  // They are in the order of asking.
  std::map<std::string, TableEntry> table_;
  std::set<std::string> complete_;  // names in the table that wait for their groups only
  std::vector<uint8_t> states_;
  std::vector<int> ready_;  // slots of this round
  // The last round in which slots alone ran: the slots that were ready, and the slots that ran.
  // Steps repeat themselves, and conclusions from the slots need then not be drawn again.
  struct Sequence {
    uint64_t version = 0;  // the version of the cache
    std::vector<int> ready;
    std::vector<int> ran;
    uint64_t number = 0;
  };
  Sequence last_;
  uint64_t sequences_ = 0;
  bool has_news_ = false;             // This rank has news in this round.
  int inline_blocks_after_ = 0;       // the number of slots of this round, which the blocks follow
  std::vector<uint8_t> fits_inline_;  // One for each slot; 0 where it is free.
  int num_inline_slots_ = 0;
  std::map<std::string, uint64_t> applied_;  // name → the last check whose failure was applied
  struct Failing {
    std::string name;
    PendingFailure failure;
    std::set<std::string> groups;  // The tensor was asked for in these.
  };
  std::vector<Failing> failing_;  // They fail in this round.
  RankSet joined_;
  bool self_joined_ = false;
};

}  // namespace tutti::coordinator
