#pragma once

// Defines the plain values of a plan that a kernel gets: the operation and the lengths of its
// pieces, without addresses or threads. A host worker and a GPU kernel use the same structs; a GPU
// kernel gets them by value.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/datatype.h"

namespace tutti {

enum class Collective : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAlltoAll,
  kGather,
  kScatter,
  kSendRecv,
  kAllGatherV,
  kReduceScatterV,
  kAlltoAllV,
  kBarrier,
  kGatherV,
  kScatterV,
};
inline constexpr int kNumCollectives = 15;
std::string_view Name(Collective collective);
// Returns whether every rank brings and gets a whole vector rather than parts that belong to single
// ranks.
constexpr bool MovesWholeVector(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kBarrier;
}

// Returns whether a ring moves the vector from rank to rank in one direction: from the root or to
// the root.
constexpr bool IsChain(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce;
}

constexpr bool Reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter || collective == Collective::kReduceScatterV;
}

constexpr bool HasRoot(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast ||
         collective == Collective::kGather || collective == Collective::kScatter ||
         collective == Collective::kGatherV || collective == Collective::kScatterV;
}

// Returns whether the count of a call is the length of one rank's part. The larger buffer has such
// a part for each rank.
constexpr bool CountsOnePart(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
         collective == Collective::kAlltoAll || collective == Collective::kGather ||
         collective == Collective::kScatter;
}

// Returns whether a count is known only to the two ranks between which the elements move. Ranks
// cannot plan by such counts, and compare them in pairs.
constexpr bool HasCountsByPair(Collective collective) {
  return collective == Collective::kAlltoAllV || collective == Collective::kGatherV ||
         collective == Collective::kScatterV;
}

// Lists the algorithms that NCCL_ALGO distinguishes. plan/algorithms.def describes each of them.
enum class Algorithm : uint8_t {
#define ALGORITHM(id, name) id,
#include "plan/algorithms.def"
};
inline constexpr int kNumAlgorithms = 0
#define ALGORITHM(id, name) +1
#include "plan/algorithms.def"
    ;
constexpr uint32_t Bit(Algorithm algorithm) { return 1u << static_cast<uint32_t>(algorithm); }
std::string_view Name(Algorithm algorithm);

// Says how data and the flags that announce the data travel. The order of the values has no
// meaning, but device code compares them, and a new order changes the machine code.
enum class Protocol : uint8_t {
  kSimple,  // One flag follows all data.
  kLL,      // Each line carries its own flag. Hosts: 48 bytes in 64; GPUs: 8 bytes in 16.
  kLL128,   // As kLL with 120 bytes in 128. Only NVLink keeps such lines whole. GPUs only.
};
inline constexpr int kNumProtocols = 3;
constexpr uint32_t Bit(Protocol protocol) { return 1u << static_cast<uint32_t>(protocol); }
std::string_view Name(Protocol protocol);

// Describes a ring from the view of a rank. The whole order is needed to know whose chunk
// passes.
struct RingView {
  int index = 0;  // The place of this rank in the ring's canonical order.
  int num_ranks = 1;
  const int* ranks = nullptr;  // The num_ranks ranks in canonical order.

  constexpr int At(int place) const { return ranks[((place % num_ranks) + num_ranks) % num_ranks]; }
};

// Describes a tree from the view of a rank. -1 means "no rank".
struct TreeView {
  int parent = -1;
  int children[2] = {-1, -1};
};

// Holds the extent of a collective on a channel, in elements.
struct WorkShape {
  size_t count = 0;  // AllReduce, Reduce, Broadcast: of all; AllGather, ReduceScatter: per rank.
  size_t chunk_elems = 1;  // The elements that a rank sends in a step.
  int root = 0;
};

}  // namespace tutti
