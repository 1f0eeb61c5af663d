#pragma once

// The record of a communicator's rank: everything that others may ask about the rank. The library
// works in the record itself (watch/watch.h), so that nothing is written twice. A record lies in
// the board of the process (board.h), where other processes read the record, or in memory of the
// process alone. kVersion of board.h must change with the layout.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "observe/recent_collectives.h"
#include "observe/shared_value.h"

namespace tutti::observe {

// Text of bounded length, ended by a zero byte.
template <size_t kBytes>
using ShortText = std::array<char, kBytes>;

// Cuts a text that is too long.
template <size_t kBytes>
ShortText<kBytes> ToShortText(std::string_view text) {
  ShortText<kBytes> out = {};
  text.copy(out.data(), kBytes - 1);
  return out;
}

template <size_t kBytes>
std::string_view TextOf(const ShortText<kBytes>& text) {
  return {text.data(), static_cast<size_t>(std::find(text.begin(), text.end(), 0) - text.begin())};
}

// Operations that have begun, and the operation that is under way. On hosts an operation is under
// way until its thread leaves it; on GPUs, until it is launched. The thread that runs or launches
// operations writes here for every operation, and therefore all words of an operation lie in the
// cache lines of its place in `collectives` and in one more line.
struct alignas(64) OperationRecord {
  // Values of under_way. Any other value is the number of messages of a group.
  static constexpr uint64_t kNothing = 0;
  static constexpr uint64_t kCollective = ~uint64_t{0};

  RecentCollectives collectives;
  std::atomic<uint64_t> under_way = kNothing;
  std::atomic<uint64_t> messages_begun = 0;
  // The collectives begun, by kind. The kinds that programs call most share the line of the words
  // above.
  std::array<std::atomic<uint64_t>, kNumCollectives> begun = {};
};

// Names the communicator and the rank.
struct Identity {
  uint64_t id = 0;       // the same on all ranks; 0 until the ranks have met
  uint64_t meeting = 0;  // the same on all ranks that are about to meet; 0 for a child
  int32_t rank = 0;
  int32_t num_ranks = 0;
  int32_t cuda_device = -1;  // -1: a host
  uint32_t place_use = 0;    // counts the records that have lain in this place of the board
  ShortText<64> name = {};
};

enum class Phase : int32_t { kBeingMade = 1, kInOperation = 2, kStopped = 3 };
inline constexpr int32_t kNumPhases = 4;

struct State {
  int64_t since_ns = 0;  // monotonic time of the host, as all times of a record
  Phase phase = Phase::kBeingMade;
  int32_t code = 0;            // Why a communicator was stopped, as Code (base/status.h).
  ShortText<496> reason = {};  // the same as a sentence
};

// A call that all ranks make together, or another call with a wait. No text: there is none.
struct StepRecord {
  int64_t since_ns = 0;
  ShortText<88> what = {};  // such as "in ncclCommSplit"
};

// The ranks that an operation waits for. Written about every 20 ms by a wait of some length.
struct Awaited {
  static constexpr size_t kMostRanks = 8;

  int64_t since_ns = 0;
  int64_t seen_ns = 0;      // the time of the wait's last word
  uint64_t collective = 0;  // the number of the last collective when the rank waited
  int32_t num_ranks = 0;    // `ranks` has the first of them
  std::array<int32_t, kMostRanks> ranks = {};
  int32_t reserved = 0;
};

// The ranks for which all others wait although they are alive (watch/slow_rank_judge.h). All ranks
// of the communicator show the same.
struct SlowRecord {
  static constexpr size_t kMostRanks = 8;

  int64_t since_ns = 0;           // when this rank heard of the slow ranks
  int64_t per_collective_ns = 0;  // the cost of a collective
  int32_t cost_ppm = 0;           // the same as a part of the time, in millionths
  int32_t num_ranks = 0;          // `ranks` has the first of them
  std::array<int32_t, kMostRanks> ranks = {};
};

// The processes of all ranks, as far as there is room.
struct RankNames {
  static constexpr size_t kMostRanks = 512;
  static constexpr size_t kMostHosts = 32;
  static constexpr int16_t kUnknownHost = -1;
  struct Name {
    int32_t pid = 0;
    int16_t host = kUnknownHost;  // an index of `hosts`
    int16_t reserved = 0;
  };

  int32_t num_ranks = 0;
  int32_t num_hosts = 0;
  std::array<ShortText<64>, kMostHosts> hosts = {};
  std::array<Name, kMostRanks> ranks = {};

  // Adds the next rank, if there is room.
  void Add(std::string_view host, int32_t pid) {
    if (static_cast<size_t>(num_ranks) == kMostRanks) return;
    int16_t at = 0;
    while (at < num_hosts && TextOf(hosts[static_cast<size_t>(at)]) != host) ++at;
    if (at == num_hosts && static_cast<size_t>(at) < kMostHosts)
      hosts[static_cast<size_t>(num_hosts++)] = ToShortText<64>(host);
    if (at == num_hosts) at = kUnknownHost;
    ranks[static_cast<size_t>(num_ranks++)] = {pid, at, 0};
  }
};

struct alignas(4096) CommunicatorRecord {
  OperationRecord operations;
  SharedValue<Identity> identity;  // no value: the place is free
  SharedValue<State> state;
  SharedValue<StepRecord> step;
  SharedValue<Awaited> awaited;
  SharedValue<RankNames> names;
  SharedValue<SlowRecord> slow;  // no value: no rank is slow
  // The time for which collectives of all ranks waited for other ranks, in waits of 50 µs or more.
  std::atomic<int64_t> waited_ns = 0;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(CommunicatorRecord) == 12288);

}  // namespace tutti::observe
