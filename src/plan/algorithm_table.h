#pragma once

// The table of algorithms (plan/algorithms.def) as constant values: the collectives that an
// algorithm serves on hosts and on GPUs, its protocols, its requirements, and the order in which it
// adds. The planner and the kernels read the table; device code includes this header through
// mesh_args.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plan/work.h"

namespace tutti {

// Numbers the algorithms of GPUs that reach one another's memory. The host passes the number to a
// kernel.
enum class MeshAlgorithm : uint8_t {
#define GPU(id, description, algorithm, where, collectives, protocols, needs, order, cut, cost, \
            file)                                                                               \
  id,
#include "plan/algorithms.def"
};

// Names the kind of memory that an algorithm works on.
enum class Where : uint8_t {
  kFifo,         // hosts: a FIFO from one rank to another, in shared memory or before the network
  kStage,        // hosts: slots that one rank shows to all ranks of its host
  kBuffers,      // hosts: the users' own buffers
  kWindows,      // GPUs: inboxes in every rank's window, written by all ranks
  kWindowRing,   // GPUs: a FIFO in the window of the next rank of a ring
  kWindowChain,  // GPUs: a ring as kWindowRing, cut open at the root
  kRegistered,   // GPUs: buffers that all ranks have registered
  kMessageChannels,  // GPUs: channels of slots between each two ranks
  kChannelRing,      // GPUs: a FIFO to the next rank of a ring, in a window or before the network
  kChannelRails,     // GPUs: FIFOs round a ring in each host and round a ring of each rail
  kChannelTrees,     // GPUs: FIFOs in chains inside hosts, and in trees over the chains
  kChannelPairs,     // GPUs: a FIFO to every other rank
};

// Says in which order an algorithm adds the ranks' elements.
enum class AddingOrder : uint8_t {
  kAddsNothing,  // The algorithm moves data only.
  // Adds element i of every rank in the order of the ranks, in the type of accumulation
  // (base/reduce.h, backend/cuda/elements.h), and rounds once.
  kRankOrder,
  // Adds in the same order, but stores partial sums as elements. The bits are the same for elements
  // as wide as the type of accumulation.
  kRankOrderStored,
  // Adds in an order that depends on the element's place, or rounds partial sums.
  kOtherOrder,
};

// Names the requirements of algorithms. A row holds its requirements as bits.
enum class Need : uint8_t {
  kOneHost,            // All ranks share an arena.
  kSeveralHosts,       // The ranks do not share an arena.
  kReadableBuffers,    // The ranks can read one another's buffers, known when the operation runs.
  kRegisteredBuffers,  // All ranks have registered their buffers.
  kThreeRanks,         // At least three ranks: between two a second shot saves no bytes.
  // Several hosts with equally many ranks, at least two each, and the ranks of a host reach one
  // another's windows.
  kEqualHosts,
  kFewRanks,     // At most kMostOneShotRanks (plan/mesh_limits.h).
  kSharedHosts,  // Some host has several ranks.
};
constexpr uint32_t Bit(Need need) { return 1u << static_cast<uint32_t>(need); }
constexpr uint32_t Bit(Collective collective) { return 1u << static_cast<uint32_t>(collective); }

// Describes a way to run collectives: a row of the table.
struct AlgorithmRow {
  Algorithm algorithm = Algorithm::kRing;
  Where where = Where::kFifo;
  uint32_t collectives = 0;  // Bit(Collective)
  uint32_t protocols = 0;    // Bit(Protocol)
  uint32_t needs = 0;        // Bit(Need)
  AddingOrder order = AddingOrder::kAddsNothing;
  std::string_view file;
  // For GPUs with access to one another's memory only.
  MeshAlgorithm id = MeshAlgorithm::kMessages;
  std::string_view description = {};

  constexpr bool Serves(Collective collective) const {
    return (collectives & Bit(collective)) != 0;
  }
  constexpr bool Has(Protocol protocol) const { return (protocols & Bit(protocol)) != 0; }
  constexpr bool Needs(Need need) const { return (needs & Bit(need)) != 0; }
};

namespace algorithm_table {

using enum Collective;
using enum Protocol;
using enum Need;
using enum Where;
using enum AddingOrder;

template <class... Bits>
constexpr uint32_t Set(Bits... bits) {
  return (0u | ... | Bit(bits));
}
template <class... Bits>
constexpr uint32_t By(Bits... bits) {
  return Set(bits...);
}
template <class... Bits>
constexpr uint32_t With(Bits... bits) {
  return Set(bits...);
}

inline constexpr AlgorithmRow kHostRows[] = {
#define HOST(algorithm, where, collectives, protocols, needs, order, cut, cost, file) \
  {Algorithm::algorithm, where, collectives, protocols, needs, order, file},
#include "plan/algorithms.def"
};

inline constexpr AlgorithmRow kMeshRows[] = {
#define GPU(id, description, algorithm, where, collectives, protocols, needs, order, cut, cost, \
            file)                                                                               \
  {Algorithm::algorithm, where,      collectives, protocols, needs, order, file,                \
   MeshAlgorithm::id,    description},
#include "plan/algorithms.def"
};

inline constexpr AlgorithmRow kChannelRows[] = {
#define CHANNEL(algorithm, where, collectives, protocols, needs, order, cut, cost, file) \
  {Algorithm::algorithm, where, collectives, protocols, needs, order, file},
#include "plan/algorithms.def"
};

}  // namespace algorithm_table

// Says how the ranks of a communicator are joined. Each kind of ranks has rows of its own.
enum class RankKind : uint8_t {
  kHost,      // Ranks on hosts.
  kMesh,      // GPUs with access to one another's memory: one row for each MeshAlgorithm.
  kChannels,  // GPUs that channels join.
};
// Returns the rows for ranks of a kind. An algorithm has several rows where its properties depend
// on the collective.
constexpr std::span<const AlgorithmRow> RowsOf(RankKind kind) {
  if (kind == RankKind::kHost) return algorithm_table::kHostRows;
  if (kind == RankKind::kMesh) return algorithm_table::kMeshRows;
  return algorithm_table::kChannelRows;
}
// Returns whether some row serves the collective on ranks of this kind.
constexpr bool Serves(RankKind kind, Collective collective) {
  for (const AlgorithmRow& row : RowsOf(kind))
    if (row.Serves(collective)) return true;
  return false;
}
constexpr const AlgorithmRow& RowOf(MeshAlgorithm algorithm) {
  return algorithm_table::kMeshRows[static_cast<size_t>(algorithm)];
}

// Returns whether `a` is among the algorithms that NCCL_ALGO calls `algorithm`. The function
// compares rather than looks up, because device code calls it.
constexpr bool Is(MeshAlgorithm a, Algorithm algorithm) {
  return false
#define GPU(id, description, family, where, collectives, protocols, needs, order, cut, cost, file) \
  || (algorithm == Algorithm::family && a == MeshAlgorithm::id)
#include "plan/algorithms.def"
      ;
}
// Returns whether data go from neighbour to neighbour, round a ring or down a chain.
constexpr bool IsRing(MeshAlgorithm a) { return Is(a, Algorithm::kRing); }
// Returns whether data go in two rounds: to the owners of the parts, and from the owners to all.
constexpr bool IsTwoShot(MeshAlgorithm a) { return Is(a, Algorithm::kTwoShot); }
constexpr bool IsSymmetric(MeshAlgorithm a) { return Is(a, Algorithm::kSymmetric); }
constexpr bool IsChain(MeshAlgorithm a) { return RowOf(a).where == Where::kWindowChain; }
// Returns whether the algorithm adds rather than only moves bytes.
constexpr bool Reduces(MeshAlgorithm a) { return RowOf(a).order != AddingOrder::kAddsNothing; }

// Returns the table as Markdown, for docs/algorithms.md.
std::string AlgorithmTableMarkdown();

}  // namespace tutti
