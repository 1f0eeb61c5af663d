#pragma once

// What a record (record.h) says, as plain values. Decode takes records of any content: every field
// is checked, and a field that makes no sense is left out. Pure functions; any thread.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "observe/record.h"
#include "observe/signature.h"

namespace tutti::observe {

struct RankName {
  std::string host;
  int pid = 0;  // 0: unknown
  friend bool operator==(const RankName&, const RankName&) = default;
};

// A wait for other ranks.
struct WaitSnapshot {
  int64_t since_ns = 0;
  int64_t seen_ns = 0;
  int num_ranks = 0;
  std::vector<int> ranks;  // the first of them
};

// Ranks that are alive and keep the others waiting.
struct SlowSnapshot {
  int64_t since_ns = 0;
  int64_t per_collective_ns = 0;  // the cost of a collective
  double share = 0;               // the same as a part of the time
  std::vector<int> ranks;         // the first of them
};

// A rank of a communicator.
struct CommunicatorSnapshot {
  uint64_t id = 0;
  uint64_t meeting = 0;
  std::string name;
  int rank = 0;
  int num_ranks = 1;
  int cuda_device = -1;
  uint32_t place_use = 0;

  Phase phase = Phase::kBeingMade;
  int64_t phase_since_ns = 0;
  int code = 0;  // of the reason, as Code (base/status.h); 0 unless the communicator has stopped
  std::string reason;

  uint64_t begun = 0;                                   // collectives
  std::array<uint64_t, kNumCollectives> begun_of = {};  // the same by kind
  bool in_collective = false;                           // the last of them
  uint64_t messages_begun = 0;
  uint64_t messages_under_way = 0;
  std::vector<OpSignature> recent;  // the last collectives, as far as known, in order

  std::string step;  // empty: none
  int64_t step_since_ns = 0;
  std::optional<WaitSnapshot> wait;  // the wait of the operation under way
  std::optional<SlowSnapshot> slow;
  int64_t waited_ns = 0;        // in all collectives together
  std::vector<RankName> names;  // by rank; shorter than num_ranks where there was no room

  bool busy() const { return in_collective || messages_under_way > 0; }
  uint64_t done() const { return begun - (in_collective ? 1 : 0); }
  uint64_t messages_done() const { return messages_begun - messages_under_way; }
  // Returns null for a collective that is not among the recent ones.
  const OpSignature* Find(uint64_t sequence) const;
};

// Returns nothing for a place without a communicator, and where the identity is unreadable.
std::optional<CommunicatorSnapshot> Decode(const CommunicatorRecord& record);

// Returns the activity, such as "in collective number 3, AllReduce(count 1, float32, sum)".
std::string ActivityOf(const CommunicatorSnapshot& one);
// Returns a name such as "rank 3 (host a, pid 7)", or "rank 3" where nothing more is known.
std::string NameOf(int rank, const std::vector<RankName>& names);
// Returns the names of ranks with commas; the first few names where there are many.
std::string NameAll(const std::vector<int>& ranks, const std::vector<RankName>& names);
// Returns "communicator NAME 0123456789abcdef".
std::string TitleOf(const std::string& name, uint64_t id);
// Returns a sentence such as "rank 2 (…) keeps the others waiting, 3.10 ms in each collective, 75 %
// of the time".
std::string Describe(const SlowSnapshot& slow, const std::vector<RankName>& names);
// Returns a time such as "3.2 s".
std::string Seconds(int64_t ns);

}  // namespace tutti::observe
