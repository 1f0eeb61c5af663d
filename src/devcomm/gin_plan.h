#pragma once

// The part of requirements for device-initiated networking (GIN).

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "nccl_device/comm.h"

namespace tutti {

// A descriptor names a signal by 24 bits, and a counter by 23.
constexpr uint64_t kMostGinSignals = uint64_t{1} << 24;
constexpr uint64_t kMostGinCounters = uint64_t{1} << 23;

// The shape of a communicator, as far as requirements depend on it.
struct TeamShape {
  int num_ranks = 1;
  int lsa_size = 1;
  bool has_gin = false;  // Kernels can put to all ranks (src/gin).
  // Kernels of releases before 2.30 can put to all ranks, too (src/gin/old_forms.h).
  bool has_old_gin = false;
  // The length of queues whose requirements name none; 0: the proxy's.
  uint32_t usual_depth = 0;
};

// Signals and counters of the caller's list, and who is told the first of them.
struct GinNumbers {
  uint32_t first = 0;
  uint32_t* out = nullptr;  // may be null
};

// Version codes of releases that changed device communicators, as NCCL_VERSION_CODE has them. From
// 2.29.4 on barriers need a GIN connection, and connections have several contexts.
inline constexpr unsigned kRelease2294 = 22904;
inline constexpr unsigned kRelease230 = 23000;

// The form of contexts and descriptors that kernels know (src/gin/old_forms.h).
enum class GinForm : uint8_t { kBefore2294, kBefore230, kToday };

// Holds a device communicator's part of device-initiated networking (GIN).
struct GinPlan {
  ncclGinConnectionType_t connection = NCCL_GIN_CONNECTION_NONE;
  GinForm form = GinForm::kToday;
  int num_contexts = 0;
  uint32_t num_queues = 0;   // of each context: one for each joined rank
  uint32_t queue_depth = 0;  // descriptors of a queue; a power of two
  // The caller's signals come first in a context, then the signals of barriers and of the caller's
  // list.
  uint32_t num_signals = 0;
  uint32_t num_counters = 0;
  bool strong = false;      // Signals whose strength is not given are strong.
  bool va_signals = false;  // Kernels add to words of windows.
  // The offsets of signals, counters, shadows and values in the resource window, in bytes; the
  // words of a context follow those of the context before. A signal of hosts has two words: ranks
  // of the LSA team add to the first word, all others to the word at `network_signals_at`.
  uint64_t signals_at = 0;
  uint64_t network_signals_at = 0;
  uint64_t counters_at = 0;
  uint64_t shadows_at = 0;
  uint64_t values_at = 0;  // a word for each descriptor, for puts by value
  ncclGinBarrierHandle rail_barrier = {};
  ncclGinBarrierHandle world_barrier = {};
  ncclGinBarrierHandle hybrid_rail_barrier = {};
  ncclGinBarrierHandle hybrid_world_barrier = {};
  std::vector<GinNumbers> numbers;  // Two for each element of the caller's list.

  bool present() const { return connection != NCCL_GIN_CONNECTION_NONE; }
};

// Counts contexts, signals and counters, and gives barriers and the caller's list theirs. The
// places in the resource window are left to the caller. Errors as PlanResources.
Result<GinPlan> PlanGin(const ncclDevCommRequirements_t& asked, const TeamShape& shape);

}  // namespace tutti
