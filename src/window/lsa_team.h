#pragma once

// Says which ranks load and store one another's memory (the LSA team: load-store accessible). Pure
// functions: all ranks compute the same teams.

#include <cstdint>
#include <span>

namespace tutti {

// The LSA team of a rank: `size` consecutive ranks. All teams of a communicator have one size.
// Place i of a team is rank `first` + i, and rank r is at place r mod size of team r / size.
struct LsaTeam {
  int size = 1;
  int place = 0;  // The place of this rank.
  int first = 0;  // the rank at place 0

  bool Has(int rank) const { return rank >= first && rank < first + size; }
};

// Returns the largest size that all teams can have where rank r shares memory with the ranks of the
// same `leaders[r]`: the greatest common divisor of the lengths of the rows of such ranks. A
// `wished` size above 0 replaces the largest size where it divides the largest size.
int LsaTeamSize(std::span<const int> leaders, int64_t wished);

// Returns the team of `rank` where teams have `size` ranks.
constexpr LsaTeam LsaTeamOf(int rank, int size) { return {size, rank % size, rank - rank % size}; }

}  // namespace tutti
