#pragma once

// PxnRoutes chooses the rank whose proxy sends a message to a rank of another host (PXN). NICs with
// the same number on their hosts are on one rail. NICs of one rail reach one another by one switch;
// NICs of different rails need more switches, or do not reach one another.
//
// A rank whose own NIC is not on the receiver's rail hands a message to a rank of its host whose
// NIC is on the rail (gpu/pxn_lanes.h). The rank sends by this NIC itself in two cases: where the
// NIC is as near as its own, and where the process of the other rank has several ranks. A thread of
// such a process may end the ranks one after the other, and must not wait until nobody sends
// through the first rank. Rings and two levels go along rails already and need no routes.
//
// A value type, the same on all ranks.

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace tutti {

class PxnRoutes {
 public:
  // Holds the facts that ranks tell about themselves, one value for each rank.
  struct Ranks {
    std::span<const uint64_t> hosts;
    std::span<const int> processes;  // a number for each process of the job
    std::span<const int32_t> nics;   // the number of each rank's NIC
    // The NICs by which a rank sends as well as by its own, a bit for each of the first 64.
    std::span<const uint64_t> near_nics;
  };
  enum class Level : uint8_t {
    kNever,       // Every rank sends by its own NIC.
    kWhenUseful,  // A rank itself sends by a near NIC of the receiver's rail.
    kAlways,      // The owner of the NIC sends.
  };

  PxnRoutes() = default;  // kNever
  PxnRoutes(Level level, const Ranks& ranks);

  // Returns the rank whose proxy sends messages from `from` to `to`: `from` itself where both are
  // on one host or one rail, or no rank of its host is on the rail of `to`.
  int SenderOf(int from, int to) const;
  // Returns the NIC by which SenderOf(from, to) sends such messages; -1: its own.
  int32_t NicOf(int from, int to) const;
  // Returns whether `from` sends as well by the NIC on the rail of `to` as by its own.
  bool IsNear(int from, int to) const;
  // Returns whether any rank sends through another rank.
  bool any() const { return any_; }
  // Returns the pairs of sender and receiver between which `via` sends for another rank, in
  // ascending order.
  std::vector<std::pair<int, int>> PairsThrough(int via) const;

 private:
  // Returns the ranks of the host of `from` on the rail of `to`, or null where the host has none or
  // `from` has no reason to leave its own NIC.
  const std::vector<int>* OnRailOf(int from, int to) const;

  Level level_ = Level::kNever;
  std::vector<uint64_t> hosts_;
  std::vector<bool> is_alone_;  // The rank is the only rank of its process.
  std::vector<int32_t> nics_;
  std::vector<uint64_t> near_nics_;
  std::map<std::pair<uint64_t, int32_t>, std::vector<int>> on_rail_;  // By host and NIC.
  bool any_ = false;
};

}  // namespace tutti
