#pragma once

// Hands out runs of whole numbers below a bound: the offsets at which memory lies in the flat space
// of a team (symmetric_memory.h). This is pure logic without memory. Ranks that make the same calls
// in the same order get the same answers, and therefore need not tell one another where memory
// lies.
//
// First fit: the lowest place where the run fits. Low places are used again and again, so that the
// free numbers stay together at the upper end.

#include <cstdint>
#include <map>
#include <optional>

namespace tutti {

class OffsetSpace {
 public:
  // Holds the numbers below `size`.
  explicit OffsetSpace(uint64_t size);

  // Takes the first free run of `count` numbers, at least 1, that begins at a multiple of
  // `alignment`. Returns the begin of the run, or nothing when no run fits.
  std::optional<uint64_t> Take(uint64_t count, uint64_t alignment);
  // Gives a run back. REQUIRES: Take returned `begin` for `count`, and the run was not given back
  // since.
  void GiveBack(uint64_t begin, uint64_t count);

  uint64_t size() const { return size_; }
  uint64_t taken() const { return taken_; }

 private:
  uint64_t size_;
  uint64_t taken_ = 0;
  std::map<uint64_t, uint64_t> free_;  // The ends of the free runs by their begins; no two touch.
};

}  // namespace tutti
