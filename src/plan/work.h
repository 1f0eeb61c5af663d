#pragma once

// Holds what a plan hands to the kernels: plain values that say what to compute and in which
// pieces, nothing about memory or threads. The same structs go to a host worker and, by value, to a
// GPU kernel.

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
};
inline constexpr int kNumCollectives = 13;
std::string_view Name(Collective collective);
// Returns whether every rank brings and gets a whole vector, not parts that belong to single ranks.
constexpr bool MovesWholeVector(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kBarrier;
}

constexpr bool Reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter || collective == Collective::kReduceScatterV;
}

// Lists what NCCL_ALGO tells apart; plan/algorithms.def says what each does, where and for what.
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

// Says how data and the flags that announce them travel. Device code compares the values, so that
// another order of them changes the machine code; it means nothing else.
enum class Protocol : uint8_t {
  kSimple,  // Data, then a flag for all of them.
  kLL,      // Each line carries its own flag. Hosts: 48 bytes in 64; GPUs: 8 bytes in 16.
  kLL128,   // The same with 120 bytes in 128, which NVLink alone keeps together. GPUs only.
};
inline constexpr int kNumProtocols = 3;
constexpr uint32_t Bit(Protocol protocol) { return 1u << static_cast<uint32_t>(protocol); }
std::string_view Name(Protocol protocol);

// Describes one ring as one rank sees it. The full order is needed to know whose chunk passes.
struct RingView {
  int index = 0;  // This rank's place in the ring's canonical order.
  int num_ranks = 1;
  const int* ranks = nullptr;  // ranks in canonical order, num_ranks of them

  constexpr int At(int place) const { return ranks[((place % num_ranks) + num_ranks) % num_ranks]; }
};

// Describes one tree as one rank sees it, with -1 where there is no rank.
struct TreeView {
  int parent = -1;
  int children[2] = {-1, -1};
};

// The extent of one collective for one channel, in elements.
struct WorkShape {
  size_t count = 0;  // AllReduce, Reduce, Broadcast: the whole; AllGather, ReduceScatter: per rank
  size_t chunk_elems = 1;  // A rank sends so many in one step of the algorithm.
  int root = 0;
};

}  // namespace tutti
