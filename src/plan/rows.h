#pragma once

// Declares the functions that the rows of plan/algorithms.def name. For each row and protocol
// MakePlan (plan/plan.cc) calls the row's cutting function and then the row's cost function. The
// cost function may use the pieces that the cutting function chose.
//
// A cutting function gets a plan with the row and the protocol set. The function returns whether
// the row serves the question by this protocol, and then fills in the rest of the plan except for
// the time. A cost function returns the time in microseconds, or kNeverUs where the row cannot
// serve. All are pure functions.

#include "plan/plan.h"

namespace tutti {

// Says how far a row serves a question by one protocol.
enum class Fit : uint8_t {
  kNo,
  kLastResort,  // Serves only where no other allowed way serves. Tuners are not asked.
  kIfAdvised,   // Serves only where a tuner gives this way a time of its own.
  kYes,
};

// Holds a question and the limits that the context adds to the question.
struct PlanQuestion : Question {
  uint32_t allowed = 0;  // A bit for each Algorithm that is allowed; 0: all.
  uint32_t advised = 0;  // A bit for each Algorithm that a tuner knows by name.
  // The number of channels that a tuner wants; 0: no wish. Ranks on hosts have one channel.
  uint32_t advised_channels = 0;

  bool Names(Algorithm algorithm) const { return (allowed & Bit(algorithm)) != 0; }
  bool IsAdvised(Algorithm algorithm) const { return (advised & Bit(algorithm)) != 0; }
};

// The channels, chunks and slices of GPUs begin at multiples of this many bytes. A GPU thread
// accesses this many bytes at once.
inline constexpr size_t kGpuLineBytes = 16;

// Returns how many channels, as tuners count channels, one channel of a plan by the row takes: a
// tree has a channel for each direction.
constexpr uint32_t ChannelsPerCut(const AlgorithmRow& row) {
  return row.where == Where::kChannelTrees ? 2 : 1;
}

using CutFunction = Fit (*)(const PlanContext&, const PlanQuestion&, Plan&);
using CostFunction = double (*)(const PlanContext&, const PlanQuestion&, const Plan&);
#define TUTTI_CUT(name) Fit name(const PlanContext&, const PlanQuestion&, Plan&)
#define TUTTI_COST(name) double name(const PlanContext&, const PlanQuestion&, const Plan&)

namespace host_rows {
TUTTI_CUT(CutSlots);   // cuts a step of the algorithm into slices for the slots of a FIFO
TUTTI_CUT(CutStages);  // cuts into pieces for a stage
TUTTI_CUT(CutPairs);   // cuts into chunks for the FIFOs between all pairs of ranks
TUTTI_CUT(CutPull);    // cuts as CutSlots does, where ranks gain by reading one another's buffers
TUTTI_COST(WireUs);
TUTTI_COST(PairsUs);
TUTTI_COST(TwoLevelUs);
}  // namespace host_rows

namespace mesh_rows {
TUTTI_CUT(CutRounds);  // cuts into rounds of a block, by each protocol
TUTTI_CUT(CutRing);
TUTTI_CUT(CutRegistered);
TUTTI_CUT(CutMessages);
TUTTI_COST(RoundsUs);
TUTTI_COST(RingUs);
TUTTI_COST(RegisteredUs);
TUTTI_COST(MessagesUs);
// Returns the time of messages of so many bytes in all, for messages outside of collectives.
double BytesUs(const PlanContext& context, double bytes);
}  // namespace mesh_rows

namespace channel_rows {
TUTTI_CUT(CutRing);
TUTTI_CUT(CutRankOrder);
TUTTI_CUT(CutRails);
TUTTI_CUT(CutTrees);
TUTTI_CUT(CutOneShot);
TUTTI_CUT(CutMessages);
TUTTI_COST(RingUs);
TUTTI_COST(RailsUs);
TUTTI_COST(TreesUs);
TUTTI_COST(OneShotUs);
TUTTI_COST(MessagesUs);
}  // namespace channel_rows

#undef TUTTI_CUT
#undef TUTTI_COST

}  // namespace tutti
