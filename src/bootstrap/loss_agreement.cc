#include "bootstrap/loss_agreement.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {
namespace {

// Reasons are cut to the same length on all ranks, so all ranks have the same text. A network's
// sentence with its advice, some 600 bytes, has room.
constexpr size_t kMaxLossReasonBytes = 800;

enum class Fact : uint8_t { kAccusation = 1, kAnswer = 2, kLost = 3 };

void WriteAccusation(WireWriter& writer, int accuser, int accused, bool certain,
                     std::string_view why) {
  writer.U8(static_cast<uint8_t>(Fact::kAccusation));
  writer.U32(static_cast<uint32_t>(accused));
  writer.U32(static_cast<uint32_t>(accuser));
  writer.U8(certain ? 1 : 0);
  writer.Sentence(why, kMaxLossReasonBytes);
}

void WriteAnswer(WireWriter& writer, int rank) {
  writer.U8(static_cast<uint8_t>(Fact::kAnswer));
  writer.U32(static_cast<uint32_t>(rank));
}

void WriteLost(WireWriter& writer, int rank, std::string_view why) {
  writer.U8(static_cast<uint8_t>(Fact::kLost));
  writer.U32(static_cast<uint32_t>(rank));
  writer.Sentence(why, kMaxLossReasonBytes);
}

struct ReadFact {
  Fact fact = Fact::kAnswer;
  int rank = 0;     // accused, answering or lost
  int accuser = 0;  // kAccusation
  bool certain = false;
  std::string why;
};

// Reads the whole message before any fact takes effect, so a message that breaks the format changes
// nothing.
Result<std::vector<ReadFact>> ReadFacts(std::span<const std::byte> message, int num_ranks) {
  WireReader reader(message);
  std::vector<ReadFact> facts;
  const auto in_range = [num_ranks](uint32_t rank) {
    return rank < static_cast<uint32_t>(num_ranks);
  };
  while (!reader.AtEnd() && !reader.failed()) {
    ReadFact fact;
    fact.fact = static_cast<Fact>(reader.U8());
    const uint32_t rank = reader.U32();
    uint32_t accuser = 0;
    if (fact.fact == Fact::kAccusation) {
      accuser = reader.U32();
      fact.certain = reader.U8() != 0;
    }
    if (fact.fact == Fact::kAccusation || fact.fact == Fact::kLost) fact.why = reader.Sentence();
    const bool known = fact.fact >= Fact::kAccusation && fact.fact <= Fact::kLost;
    if (reader.failed() || !known || !in_range(rank) || !in_range(accuser) ||
        (fact.fact == Fact::kAccusation && rank == accuser)) {
      return RemoteError("a message about lost ranks breaks the format");
    }
    fact.rank = static_cast<int>(rank);
    fact.accuser = static_cast<int>(accuser);
    facts.push_back(std::move(fact));
  }
  return facts;
}

}  // namespace

LossAgreement::LossAgreement(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}

// ---------------------------------------------------------------------------------------------------------------------
// Facts

// Accusations of and by lost ranks do not count any more; a rank that has closed its connections
// with kEnd is not lost.
bool LossAgreement::Counts(const Pair& pair) const {
  return !lost_.contains(pair.first) && !lost_.contains(pair.second) &&
         !left_.contains(pair.second);
}

void LossAgreement::Accuse(int peer, bool certain, std::string_view why, int64_t now_ns) {
  NoteAccusation({rank_, peer}, {certain, std::string(why), now_ns});
  Advance(now_ns);
}

void LossAgreement::NoteLeft(int peer) { left_.insert(peer); }

// Only news is passed on, which bounds the messages when a process with many links dies.
void LossAgreement::NoteAccusation(const Pair& pair, Accusation accusation) {
  if (lost_.contains(pair.first) || lost_.contains(pair.second)) return;
  accusation.why = CutSentence(accusation.why, kMaxLossReasonBytes);
  const auto [known, is_new] = accusations_.emplace(pair, accusation);
  if (!is_new) {
    if (known->second.certain || !accusation.certain) return;
    // The first reason stays: it says more than a refusal of the second attempt to connect.
    known->second.certain = true;
  }
  const int accused = pair.second;
  const bool first = told_.insert({accused, false}).second;
  const bool first_certain = known->second.certain && told_.insert({accused, true}).second;
  if (first || first_certain || answers_.contains(accused)) Tell(*known);
  if (accused == rank_) NoteAnswer(rank_, accusation.heard_ns);
}

void LossAgreement::Tell(const std::pair<const Pair, Accusation>& entry) {
  const auto& [pair, accusation] = entry;
  WriteAccusation(news_, pair.first, pair.second, accusation.certain, accusation.why);
}

void LossAgreement::NoteAnswer(int rank, int64_t now_ns) {
  if (lost_.contains(rank) || !answers_.emplace(rank, now_ns).second) return;
  WriteAnswer(news_, rank);
  for (const auto& entry : accusations_)
    if (entry.first.second == rank) Tell(entry);
}

// Facts about a lost rank are of no further use, and would keep the agreement awake.
void LossAgreement::NoteLost(LostRank lost) {
  lost.why = CutSentence(lost.why, kMaxLossReasonBytes);
  if (!lost_.emplace(lost.rank, lost.why).second) return;
  lost_order_.push_back(lost.rank);
  WriteLost(news_, lost.rank, lost.why);
  answers_.erase(lost.rank);
  std::erase_if(accusations_, [&](const auto& entry) {
    return entry.first.first == lost.rank || entry.first.second == lost.rank;
  });
  decided_.push_back(std::move(lost));
}

Status LossAgreement::Take(std::span<const std::byte> message, int64_t now_ns) {
  TUTTI_ASSIGN(std::vector<ReadFact> facts, ReadFacts(message, num_ranks_));
  for (ReadFact& fact : facts) {
    switch (fact.fact) {
      case Fact::kAccusation:
        NoteAccusation({fact.accuser, fact.rank}, {fact.certain, std::move(fact.why), now_ns});
        break;
      case Fact::kAnswer:
        NoteAnswer(fact.rank, now_ns);
        break;
      case Fact::kLost:
        NoteLost({fact.rank, std::move(fact.why)});
        break;
    }
  }
  Advance(now_ns);
  return Status::Ok();
}

Bytes LossAgreement::TakeNews() { return std::move(std::exchange(news_, WireWriter())).Take(); }

Bytes LossAgreement::Everything() const {
  WireWriter writer;
  for (const int rank : lost_order_) WriteLost(writer, rank, lost_.at(rank));
  for (const auto& [pair, accusation] : accusations_)
    WriteAccusation(writer, pair.first, pair.second, accusation.certain, accusation.why);
  for (const auto& [rank, heard_ns] : answers_) WriteAnswer(writer, rank);
  return std::move(writer).Take();
}

std::vector<LostRank> LossAgreement::TakeDecided() { return std::exchange(decided_, {}); }

bool LossAgreement::IsOpen(int rank) const {
  return std::any_of(accusations_.begin(), accusations_.end(), [&](const auto& entry) {
    return (entry.first.first == rank || entry.first.second == rank) && Counts(entry.first);
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Deciding

// Returns whether `rank` is accused and has not answered. A process that has ended is silent in
// spite of earlier answers: nobody listens at its address any more.
bool LossAgreement::IsSilent(int rank) const {
  const bool answered = answers_.contains(rank);
  return std::any_of(accusations_.begin(), accusations_.end(), [&](const auto& entry) {
    const auto& [pair, accusation] = entry;
    return pair.second == rank && (accusation.certain || !answered) && Counts(pair);
  });
}

// Returns how many ranks are to decide before this rank.
int LossAgreement::Position() const {
  int position = 0;
  for (int rank = 0; rank < rank_ && position < kMostTakeOvers; ++rank)
    if (!lost_.contains(rank) && !left_.contains(rank) && !IsSilent(rank)) ++position;
  return position;
}

// Returns when this rank is to decide; nothing when nobody is accused.
std::optional<int64_t> LossAgreement::ReadyAt() const {
  // The time of the first accusation, and whether an accusation is certain.
  std::map<int, std::pair<int64_t, bool>> accused;
  for (const auto& [pair, accusation] : accusations_) {
    if (!Counts(pair)) continue;
    auto& [heard_ns, certain] =
        accused.try_emplace(pair.second, accusation.heard_ns, false).first->second;
    heard_ns = std::min(heard_ns, accusation.heard_ns);
    certain |= accusation.certain;
  }
  if (accused.empty() || lost_.contains(rank_)) return std::nullopt;
  int64_t first_ns = accused.begin()->second.first;
  int64_t settled_ns = 0;
  for (const auto& [rank, entry] : accused) {
    const auto& [heard_ns, certain] = entry;
    first_ns = std::min(first_ns, heard_ns);
    const auto answer = answers_.find(rank);
    if (certain)
      settled_ns = std::max(settled_ns, heard_ns);
    else
      settled_ns =
          std::max(settled_ns, answer != answers_.end() ? answer->second : heard_ns + kAnswerNs);
  }
  return std::max(first_ns + kSettleNs, settled_ns) + Position() * kTakeOverNs;
}

void LossAgreement::Advance(int64_t now_ns) {
  wake_at_ns_ = ReadyAt();
  if (!wake_at_ns_ || now_ns < *wake_at_ns_) return;
  for (LostRank& lost : Choose()) NoteLost(std::move(lost));
  wake_at_ns_ = ReadyAt();
}

// First all silent ranks go. Among the live ranks, the end with the most broken connections goes,
// until no broken connection is left. All ranks with the same facts choose the same ranks.
std::vector<LostRank> LossAgreement::Choose() const {
  std::vector<LostRank> chosen;
  std::set<int> gone;
  for (const auto& [pair, accusation] : accusations_) {
    if (!Counts(pair) || gone.contains(pair.second) || !IsSilent(pair.second)) continue;
    gone.insert(pair.second);
    chosen.push_back({pair.second, accusation.why});
  }
  while (true) {
    // The broken connections that are left, whose ends are both alive.
    std::set<Pair> broken;
    for (const auto& [pair, accusation] : accusations_) {
      if (!Counts(pair) || gone.contains(pair.first) || gone.contains(pair.second)) continue;
      broken.insert(std::minmax(pair.first, pair.second));
    }
    if (broken.empty()) break;
    std::map<int, int> count;
    for (const Pair& pair : broken) {
      ++count[pair.first];
      ++count[pair.second];
    }
    int worst = count.begin()->first;
    for (const auto& [rank, broken_here] : count)
      if (broken_here >= count.at(worst)) worst = rank;
    const Pair one = *std::find_if(broken.begin(), broken.end(), [&](const Pair& pair) {
      return pair.first == worst || pair.second == worst;
    });
    const auto told = accusations_.find(one) != accusations_.end()
                          ? accusations_.find(one)
                          : accusations_.find({one.second, one.first});
    gone.insert(worst);
    chosen.push_back(
        {worst, fmt::format("the connection between rank {} and rank {} broke, and one "
                            "of them has to go: {}",
                            one.first, one.second, told->second.why)});
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const LostRank& a, const LostRank& b) { return a.rank < b.rank; });
  return chosen;
}

}  // namespace tutti
