#pragma once

// The message that ranks exchange when bits do not suffice: new requests, ranks that join or leave,
// and, after a stall, the tensors for which everybody waits.
//
// A message is a merge of the messages of several ranks. Equal requests become a single request
// with a set of ranks: a message of a thousand ranks that ask alike is as long as the message of a
// single rank.
//
// Format (little-endian): claims (count; name, order, variants (count; request, ranks)), joining
// ranks, leaving (count; rank, reason), waiting (count; name, ranks that have the tensor, ranks
// that have the tensor for too long), activities (count; rank, text), pending failures (count;
// name, check, ranks, sentence), a flag and perhaps the tuning, a flag and perhaps the waits in
// other sets. The reader refuses anything else.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/wire.h"
#include "config/highest_settings.h"
#include "coordinator/rank_set.h"
#include "coordinator/request.h"
#include "coordinator/set_mismatch.h"

namespace tutti::coordinator {

// Settings that may change while a job runs, on all ranks between the same two rounds.
struct Tuning {
  int64_t fusion_threshold = int64_t{128} << 20;
  int64_t window_ns = 1'000'000;
  bool hierarchical_allreduce = false;
  bool hierarchical_allgather = false;
  bool cache = true;

  // The maxima of HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME.
  static constexpr int64_t kMostFusionBytes = HighestSettings::fusion_threshold;
  static constexpr int64_t kLongestWindowNs =
      static_cast<int64_t>(HighestSettings::cycle_time_ms * 1e6);
  // Returns whether the numbers are within the bounds of the settings.
  bool sane() const {
    return fusion_threshold >= 0 && fusion_threshold <= kMostFusionBytes && window_ns >= 0 &&
           window_ns <= kLongestWindowNs;
  }
  friend bool operator==(const Tuning&, const Tuning&) = default;
};

// Describes one request and the ranks that make it.
struct Variant {
  Request request;
  RankSet ranks;
  friend bool operator==(const Variant&, const Variant&) = default;
};

// Lists all requests for a name, in the order of their lowest ranks. More than one variant comes
// from first dimensions that may differ, or from a mistake of the user.
struct Claim {
  uint64_t order = 0;  // When the lowest of the ranks asked, in its own count.
  std::vector<Variant> variants;

  int lowest() const { return variants.front().ranks.lowest(); }
  RankSet ranks() const;
  void Merge(const Claim& other);
};

struct Waiting {
  RankSet have;  // ranks where the tensor is pending
  RankSet late;  // On these it has been pending for longer than the stall window.
};

// A failure that was decided for a tensor which some ranks can never complete (set_mismatch.h). The
// ranks of the set have yet to apply the failure in a round.
struct PendingFailure {
  // The number of the check that decided the failure: all ranks count the checks in which they tell
  // one another their waits. The first rank that brings the failure of a check makes the failure
  // apply on all ranks. Ranks that decide later bring the same failure again. The number then tells
  // that the failure was applied, and no newer request for the tensor fails by mistake.
  uint64_t check = 0;
  // The ranks on which the tensor fails; on all further ranks the tensor stays pending.
  RankSet ranks;
  std::string sentence;
};

struct RoundMessage {
  std::map<std::string, Claim> claims;
  RankSet joining;
  std::map<int, std::string> leaving;  // rank → why
  std::map<std::string, Waiting> waiting;
  std::map<int, std::string> activities;  // rank → its activity
  std::map<std::string, PendingFailure> pending_failures;
  std::optional<Tuning> tuning;       // said by rank 0 only
  std::optional<SetWaits> set_waits;  // Stall checks of the set of all ranks have it.

  void Merge(const RoundMessage& other);
  Bytes Encode() const;
  // Returns RemoteError when the bytes are no message of a set of `num_ranks`.
  static Result<RoundMessage> Decode(std::span<const std::byte> bytes, int num_ranks);
};

}  // namespace tutti::coordinator
