#pragma once

// The question of a rank to another rank when something seems wrong. An inquiry shows an operation
// of the asking rank; the asked rank compares the operation with its own, and answers with its
// present activity.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "observe/signature.h"
#include "watch/operation_log.h"

namespace tutti {

struct Inquiry {
  // Names the kind of operation in the inquiry.
  enum class Shown : uint8_t {
    kNothing = 0,     // The asking rank only wants to know the other rank's activity.
    kCollective = 1,  // A collective, which has to be the same on both ranks.
    kSend = 2,        // A message to the asked rank. Both ends must have as many bytes.
    kReceive = 3,     // The same for a message from the asked rank.
    // A message from the asked rank whose data carried another tag than this rank expected. Type
    // and count must be the same too, because the tag depends on them.
    kForeignReceive = 4,
  };

  Shown shown = Shown::kNothing;
  OpSignature signature;
  // Where HasCountsByPair: the counts between the two ranks as the asking rank sees them, if the
  // asking rank still keeps them.
  std::optional<PairCounts> pair = {};
};

// Appends the wire form: 56 bytes, little-endian, in the order of the writes in AppendInquiry.
void AppendInquiry(const Inquiry& inquiry, Bytes& bytes);
// Returns nothing where the bytes are no inquiry.
std::optional<Inquiry> ReadInquiry(std::span<const std::byte> bytes);

}  // namespace tutti
