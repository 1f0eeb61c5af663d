#pragma once

// What an operation is, as far as all ranks must agree on it. Every chunk carries the 32-bit tag of
// the signature of the operation it belongs to, so that a rank that calls something else is found
// out with the first chunk; the signatures themselves are exchanged only then, to show both sides.

#include <cstdint>
#include <string>

#include "base/datatype.h"
#include "plan/task.h"
#include "plan/work.h"

namespace tutti {

struct OpSignature {
  uint64_t sequence =
      0;  // counts the collectives of a communicator; per pair and direction for send and receive
  uint64_t count = 0;
  int32_t root = -1;   // or the peer; -1: none
  uint32_t parts = 0;  // AllGatherV, ReduceScatterV: a hash of the counts of all ranks
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kInt8;
  uint8_t op = 0;  // ncclRedOp_t below 5; 5 for any PreMulSum
  bool has_op = false;
  // GPUs that work in registered buffers: a hash of which ones, and where in them; 0: elsewhere.
  uint32_t registered = 0;

  // Mixes all fields but the last, which no chunk could show; equal signatures have equal tags. Not
  // secret, not a checksum.
  uint32_t Tag() const;
  // "AllReduce(count 4096, float32, sum)".
  std::string Describe() const;
  friend bool operator==(const OpSignature&, const OpSignature&) = default;
};

// Returns what all ranks must agree on in a task, number `sequence` of its kind.
OpSignature SignatureOf(const Task& task, uint64_t sequence);

// Returns a tag that both arguments decide.
uint32_t MixTag(uint32_t tag, uint64_t with);

}  // namespace tutti
