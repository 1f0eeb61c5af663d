#include "window/lsa_team.h"

#include <numeric>

namespace tutti {

int LsaTeamSize(std::span<const int> leaders, int64_t wished) {
  int size = 0;
  int in_a_row = 0;
  for (size_t r = 0; r < leaders.size(); ++r) {
    if (r > 0 && leaders[r] != leaders[r - 1]) {
      size = std::gcd(size, in_a_row);
      in_a_row = 0;
    }
    ++in_a_row;
  }
  size = std::gcd(size, in_a_row);
  return wished > 0 && size % wished == 0 ? static_cast<int>(wished) : size;
}

}  // namespace tutti
