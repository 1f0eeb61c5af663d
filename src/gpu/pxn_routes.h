#pragma once

// PXN: which rank's proxy sends the messages of a rank to ranks of other hosts. NICs that have the
// same number on their hosts are on one rail: they reach one another by one switch, those of other
// rails by more, or not at all. So a rank whose own NIC is not on the receiver's rail hands a
// message to a rank of its host whose NIC is (gpu/pxn_lanes.h), or sends by that NIC itself: where
// that is as near, and where the other rank's process has several ranks, one thread of which may
// end them one after the other and so must not wait until nobody sends through the first. Rings and
// two levels need none of that: they go along rails by themselves.
//
// Values, the same on all ranks.

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace tutti {

class PxnRoutes {
 public:
  // Holds what the ranks say of themselves, one value for each.
  struct Ranks {
    std::span<const uint64_t> hosts;
    std::span<const int> processes;  // a number for each process of the job
    std::span<const int32_t> nics;   // the number of each one's NIC
    // The NICs by which each one sends as well as by its own, a bit for each of the first 64.
    std::span<const uint64_t> near_nics;
  };
  enum class Level : uint8_t {
    kNever,       // Every rank sends by its own NIC.
    kWhenUseful,  // A rank sends by the receiver's rail itself where that NIC is near.
    kAlways,      // The rank whose own NIC it is sends by it.
  };

  PxnRoutes() = default;  // kNever
  PxnRoutes(Level level, const Ranks& ranks);

  // Returns the rank whose proxy sends what `from` sends to `to`: `from` itself where both are on
  // one host or one rail, or no rank of its host is on that of `to`.
  int SenderOf(int from, int to) const;
  // Returns the NIC by which that rank sends it; -1: by its own.
  int32_t NicOf(int from, int to) const;
  // Returns whether `from` sends as well by the NIC on the rail of `to` as by its own.
  bool IsNear(int from, int to) const;
  // Returns whether any rank sends through another one.
  bool any() const { return any_; }
  // Returns the pairs of sender and receiver between which `via` sends for another rank, in
  // ascending order.
  std::vector<std::pair<int, int>> PairsThrough(int via) const;

 private:
  // Returns the ranks of the host of `from` on the rail of `to`; null where there are none, or
  // `from` has no reason to leave its own NIC.
  const std::vector<int>* OnRailOf(int from, int to) const;

  Level level_ = Level::kNever;
  std::vector<uint64_t> hosts_;
  std::vector<bool> is_alone_;  // The rank's process has no other.
  std::vector<int32_t> nics_;
  std::vector<uint64_t> near_nics_;
  std::map<std::pair<uint64_t, int32_t>, std::vector<int>> on_rail_;  // By host and NIC.
  bool any_ = false;
};

}  // namespace tutti
