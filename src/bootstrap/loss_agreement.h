#pragma once

// LossAgreement: how the ranks that remain after a failure come to the same answer about who is
// lost.
//
// Every rank of an endpoint has a LossAgreement. The ranks exchange three kinds of facts, and each
// rank passes a new fact on over all its links. Of the accusations of a silent rank only the first
// and the first certain accusation are passed on, because a dead process is accused by all ranks
// with a link to its rank. Accusations of a rank that has answered are all passed on.
//
//   accusation  rank a has no connection to rank x any more. An accusation is certain when nobody
//               listens at the address of x: the process of x has ended.
//   answer      the accused rank x is alive
//   decision    these ranks are lost; all losses of a decision travel in the same message
//
// An accused rank is settled when it has answered, when an accusation is certain, or kAnswerNs
// after its first accusation. When all accused ranks are settled, the lowest rank that can speak
// decides (kSettleNs after the first accusation, so that ranks that die together are named
// together):
//
//   - An accused rank is lost when it has not answered, or when its process has certainly ended.
//   - Where both ends of a broken connection are alive, the end with more broken connections has to
//     go; with equally many, the higher rank.
//
// Should the lowest rank not decide, because it is stopped or dies as well, the next rank decides
// kTakeOverNs later, and so on. Every rank takes the first decision that arrives; a later decision
// only adds to it. The ranks therefore agree unless a rank dies while its decision is on its way,
// or the network falls apart: then they agree as soon as the later decision has reached them.
//
// A rank that hears of its own loss has been excluded by the others. An excluded rank decides
// nothing any more.
//
// A value without threads, sockets and clocks: the endpoint brings facts and the time, and asks
// after each call for messages to send, for decisions, and for the time of the next call.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bootstrap/wire.h"

namespace tutti {

// A rank that the others go on without, and the reason.
struct LostRank {
  int rank = 0;
  std::string why;
};

class LossAgreement {
 public:
  // The ranks of a dying process or host are accused within milliseconds of one another.
  static constexpr int64_t kSettleNs = 20'000'000;
  // A live rank answers from its event loop, within milliseconds, or within tenths of a second on
  // an overloaded machine. With too short a time a live rank with a broken connection is taken for
  // dead.
  static constexpr int64_t kAnswerNs = 300'000'000;
  static constexpr int64_t kTakeOverNs = 50'000'000;
  // The ranks above so many need not wait longer: they decide at the same time.
  static constexpr int kMostTakeOvers = 6;

  LossAgreement(int rank, int num_ranks);

  // Notes that this rank's connection to `peer` broke.
  void Accuse(int peer, bool certain, std::string_view why, int64_t now_ns);
  // Notes that `peer` has closed its connections with kEnd: the peer takes no further part, and is
  // not lost.
  void NoteLeft(int peer);
  // Takes facts of another rank. Fails, and takes none of them, where they break the format.
  Status Take(std::span<const std::byte> message, int64_t now_ns);
  // Decides, when the time for it has come.
  void Advance(int64_t now_ns);

  // Returns when Advance is to be called; nothing while no rank is accused.
  std::optional<int64_t> wake_at_ns() const { return wake_at_ns_; }
  // Returns the facts that are new since the last call, for all linked ranks; empty when nothing is
  // new.
  Bytes TakeNews();
  // Returns all facts that still matter, for a rank that is newly linked; empty when nothing
  // matters.
  Bytes Everything() const;
  // Returns the ranks that were decided to be lost since the last call. May contain this rank.
  std::vector<LostRank> TakeDecided();

  // Returns whether `rank` is accused, or accuses, and nothing has been decided about the rank.
  bool IsOpen(int rank) const;

 private:
  struct Accusation {
    bool certain = false;
    std::string why;
    int64_t heard_ns = 0;
  };
  using Pair = std::pair<int, int>;  // accuser, accused

  bool Counts(const Pair& pair) const;
  void NoteAccusation(const Pair& pair, Accusation accusation);
  void Tell(const std::pair<const Pair, Accusation>& entry);
  void NoteAnswer(int rank, int64_t now_ns);
  void NoteLost(LostRank lost);
  std::vector<LostRank> Choose() const;
  std::optional<int64_t> ReadyAt() const;
  int Position() const;
  bool IsSilent(int rank) const;

  const int rank_;
  const int num_ranks_;
  std::map<Pair, Accusation> accusations_;
  // Accused ranks of which an accusation, or a certain accusation (true), has been passed on.
  std::set<std::pair<int, bool>> told_;
  std::map<int, int64_t> answers_;  // When this rank heard of each accused rank's answer.
  std::map<int, std::string> lost_;
  std::vector<int> lost_order_;
  std::set<int> left_;
  std::vector<LostRank> decided_;
  WireWriter news_;
  std::optional<int64_t> wake_at_ns_;
};

}  // namespace tutti
