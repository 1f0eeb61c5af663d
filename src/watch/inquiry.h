#pragma once

// The question that one rank asks another when something seems wrong. It shows one operation of the
// asking rank, which the asked one compares with its own; and it is answered with what the asked
// rank is doing.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "watch/operation_log.h"
#include "watch/signature.h"

namespace tutti {

struct Inquiry {
  // Says what the inquiry shows.
  enum class Shown : uint8_t {
    kNothing = 0,     // The asking rank only wants to know what the other one is doing.
    kCollective = 1,  // A collective, which has to be the same on both ranks.
    kSend = 2,        // A message to the asked rank. Both ends must have as many bytes.
    kReceive = 3,     // The same for a message from the asked rank.
    // A message from the asked rank, whose data carried another tag than this one expected. Type
    // and count must be the same too, because the tag depends on them.
    kForeignReceive = 4,
  };

  Shown shown = Shown::kNothing;
  OpSignature signature;
  // Says what passes between the two ranks in the collective, as the asking rank sees it, where
  // that is an AlltoAllV and is still known.
  std::optional<PairCounts> pair = {};
};

// Appends the wire form: 56 bytes, little-endian, in the order of InquiryWire (inquiry.cc).
void AppendInquiry(const Inquiry& inquiry, Bytes& bytes);
// Returns nothing where the bytes are no inquiry.
std::optional<Inquiry> ReadInquiry(std::span<const std::byte> bytes);

}  // namespace tutti
