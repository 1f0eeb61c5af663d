#include "coordinator/set_mismatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/request.h"

namespace tutti::coordinator {
namespace {

using Places = std::map<int, SetWaits::Place>;

bool IsIn(const RankSet& some, const RankSet& all) {
  RankSet both = all;
  both.Union(some);
  return both == all;
}

RankSet Common(const RankSet& a, const RankSet& b) {
  RankSet common;
  for (const int rank : a.ToVector()) {
    if (b.Contains(rank)) common.Add(rank);
  }
  return common;
}

template <typename Field>
RankSet UnionOf(const Places& places, Field field) {
  RankSet ranks;
  for (const auto& [set, place] : places) ranks.Union(place.*field);
  return ranks;
}

// Returns whether all ranks that could complete the tensor in any of these sets have the tensor
// pending in one of the sets.
bool AllWait(const Places& places) {
  if (places.size() < 2) return false;
  for (const auto& [set, place] : places) {
    if (place.have == place.members) return false;
  }
  return IsIn(UnionOf(places, &SetWaits::Place::members), UnionOf(places, &SetWaits::Place::have));
}

// Returns a text such as "process set 1 of ranks 0 and 1 on rank 0, process set 2 of ...".
std::string Sides(const Places& places) {
  std::vector<const Places::value_type*> sides;
  for (const auto& place : places) sides.push_back(&place);
  std::stable_sort(sides.begin(), sides.end(), [](const auto* a, const auto* b) {
    return a->second.have.lowest() < b->second.have.lowest();
  });
  std::string text;
  for (const auto* side : sides) {
    if (!text.empty()) text += ", ";
    text += fmt::format("process set {} of {} on {}", side->first, side->second.members.Describe(),
                        side->second.have.Describe());
  }
  return text;
}

// Returns the names among `names` that nobody can ever complete: drops names that somebody may yet
// bring, until nothing more is dropped.
std::set<std::string> Deadlocked(const SetWaits& waits, const RankSet& stuck,
                                 std::set<std::string> names) {
  for (;;) {
    // Ranks with a thread that waits for a tensor outside `names`.
    RankSet free;
    for (const auto& [name, places] : waits.places) {
      if (names.count(name) == 0) free.Union(UnionOf(places, &SetWaits::Place::blocked));
    }
    const size_t dropped = std::erase_if(names, [&](const std::string& name) {
      const RankSet members = UnionOf(waits.places.at(name), &SetWaits::Place::members);
      const std::vector<int> ranks = members.ToVector();
      return std::any_of(ranks.begin(), ranks.end(),
                         [&](int rank) { return !stuck.Contains(rank) || free.Contains(rank); });
    });
    if (dropped == 0) return names;
  }
}

bool ReadPlace(WireReader& reader, int num_ranks, SetWaits::Place& place) {
  for (RankSet* const ranks :
       {&place.members, &place.have, &place.blocked, &place.late, &place.overdue}) {
    if (!ranks->Read(reader, num_ranks)) return false;
  }
  place.round = reader.U64();
  return !place.have.empty() && IsIn(place.have, place.members) &&
         IsIn(place.blocked, place.have) && IsIn(place.late, place.have) &&
         IsIn(place.overdue, place.have);
}

}  // namespace

void SetWaits::Merge(const SetWaits& other) {
  for (const auto& [name, theirs] : other.places) {
    Places& mine = places[name];
    for (const auto& [set, place] : theirs) {
      Place& merged = mine[set];
      merged.members.Union(place.members);
      merged.have.Union(place.have);
      merged.blocked.Union(place.blocked);
      merged.late.Union(place.late);
      merged.overdue.Union(place.overdue);
      merged.round = std::max(merged.round, place.round);
    }
  }
  stuck.Union(other.stuck);
  same.Union(other.same);
}

void SetWaits::Write(WireWriter& writer) const {
  writer.U32(static_cast<uint32_t>(places.size()));
  for (const auto& [name, sets] : places) {
    WriteText(writer, name);
    writer.U32(static_cast<uint32_t>(sets.size()));
    for (const auto& [set, place] : sets) {
      writer.U32(static_cast<uint32_t>(set));
      for (const RankSet* const ranks :
           {&place.members, &place.have, &place.blocked, &place.late, &place.overdue}) {
        ranks->Write(writer);
      }
      writer.U64(place.round);
    }
  }
  stuck.Write(writer);
  same.Write(writer);
}

bool SetWaits::Read(WireReader& reader, int num_ranks) {
  const uint32_t num_names = reader.U32();
  for (uint32_t i = 0; i < num_names; ++i) {
    std::string name;
    if (!ReadName(reader, name)) return false;
    Places& sets = places[name];
    const uint32_t num_sets = reader.U32();
    for (uint32_t k = 0; k < num_sets; ++k) {
      const auto set = static_cast<int>(reader.U32());
      Place place;
      if (!ReadPlace(reader, num_ranks, place)) return false;
      sets.insert_or_assign(set, std::move(place));
    }
  }
  return stuck.Read(reader, num_ranks) && same.Read(reader, num_ranks);
}

std::vector<SetMismatch> FindSetMismatches(const SetWaits& waits) {
  std::set<std::string> names;
  for (const auto& [name, places] : waits.places) {
    if (AllWait(places)) names.insert(name);
  }
  const std::set<std::string> deadlocked = Deadlocked(waits, waits.stuck, names);
  const std::set<std::string> proven =
      Deadlocked(waits, Common(waits.stuck, waits.same), deadlocked);
  std::vector<SetMismatch> mismatches;
  for (const std::string& name : names) {
    const Places& places = waits.places.at(name);
    const RankSet members = UnionOf(places, &SetWaits::Place::members);
    SetMismatch mismatch;
    mismatch.name = name;
    const bool late = IsIn(members, UnionOf(places, &SetWaits::Place::late));
    const bool overdue = late && !UnionOf(places, &SetWaits::Place::overdue).empty();
    if (overdue || proven.count(name) > 0) {
      mismatch.outcome = SetMismatch::Outcome::kMistake;
    } else if (deadlocked.count(name) > 0) {
      mismatch.outcome = SetMismatch::Outcome::kUnproven;
    } else if (!late) {
      continue;
    }
    mismatch.sets = places;
    mismatch.sentence =
        fmt::format("Ranks disagree on the process set of \"{}\": {}.", name, Sides(places));
    mismatches.push_back(std::move(mismatch));
  }
  return mismatches;
}

}  // namespace tutti::coordinator
