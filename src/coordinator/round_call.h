#pragma once

// Round calls: small messages over the coordinator's bootstrap links that bring ranks into a round
// of a process set. Every rank passes a call on, once, to the ranks at distance 2^k in the set.
//
// Format (little-endian): number of the set (4 bytes), round (8 bytes).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "bootstrap/wire.h"

namespace tutti::coordinator {

struct RoundCall {
  // Stands in the place of the round: this rank cannot join the GPUs of the set by a library.
  static constexpr uint64_t kJoinFailed = ~uint64_t{0};

  int set = 0;
  uint64_t round = 0;

  Bytes Encode() const {
    WireWriter writer;
    writer.U32(static_cast<uint32_t>(set));
    writer.U64(round);
    return std::move(writer).Take();
  }
  // Returns nothing for bytes that are no call.
  static std::optional<RoundCall> Decode(std::span<const std::byte> bytes) {
    WireReader reader(bytes);
    RoundCall call;
    call.set = static_cast<int>(reader.U32());
    call.round = reader.U64();
    if (reader.failed() || !reader.AtEnd()) return std::nullopt;
    return call;
  }
};

}  // namespace tutti::coordinator
