#pragma once

// Describes an operation, as far as all ranks must agree. On hosts, every chunk carries the 32-bit
// tag of its operation's signature, so the first chunk shows when a rank has called another
// operation. Only then are the signatures themselves exchanged, to show both sides.

#include <cstdint>
#include <string>

#include "base/datatype.h"
#include "plan/task.h"
#include "plan/work.h"

namespace tutti {

struct OpSignature {
  // Counts the collectives of a communicator from 1; sends and receives are counted for each pair
  // of ranks and direction. The watch sets the number when the operation begins.
  uint64_t sequence = 0;
  uint64_t count = 0;
  int32_t root = -1;   // the peer of a send or receive; -1: none
  uint32_t parts = 0;  // AllGatherV, ReduceScatterV: a hash of the counts of all ranks.
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kInt8;
  uint8_t op = 0;  // An ncclRedOp_t below 5; 5 for any PreMulSum.
  bool has_op = false;
  // Where GPUs work in registered buffers: a hash of the buffers and of the places in them.
  // Otherwise 0.
  uint32_t registered = 0;
  uint32_t advised = 0;  // GPUs with a tuner: a hash of the plan. Otherwise 0.

  // Returns a mixture of all fields but the last two, which no chunk could show. Equal signatures
  // have equal tags. The tag is neither secret nor a checksum.
  uint32_t Tag() const;
  // Returns a text such as "AllReduce(count 4096, float32, sum)".
  std::string Describe() const;
  friend bool operator==(const OpSignature&, const OpSignature&) = default;
};

// Return the facts that all ranks must agree on in a collective, and both ends in a message. The
// signature has no sequence number yet.
OpSignature SignatureOf(const CollectiveTask& task);
OpSignature SignatureOf(const MessageTask& message);

// Returns a tag that depends on both arguments.
uint32_t MixTag(uint32_t tag, uint64_t with);

}  // namespace tutti
