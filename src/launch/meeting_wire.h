#pragma once

// Writes and reads the bytes that ranks exchange when they meet. Integers are little-endian. Pure
// functions.
//
//   note of a hello (handshake.h), the rank's residence:
//     local_rank + 1 u32, local_size + 1 u32, machine (the remaining bytes)
//   answer of rank 0, which a rank confirms with one byte; either:
//     0 u8, value size u32, value, ranks u32, for each rank: machine u32, local_rank u32
//     1 u8, sentence size u16, sentence (why the meeting failed)
//   invitation, which rank 0 hands out through PMI or PMIx where no address is known beforehand:
//     key[32], port u16, for each address: size u8, text

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/auth.h"
#include "bootstrap/wire.h"
#include "launch/environment.h"
#include "launch/places.h"

namespace tutti::launch {

// The most bytes that rank 0 can hand to each rank.
inline constexpr size_t kMaxValueBytes = 64 * 1024;
// An answer to the largest job.
inline constexpr size_t kMaxAnswerBytes = 16 + kMaxValueBytes + 8 * size_t{kMaxRanks};

// Encodes a residence. A machine's name that does not fit into a note is replaced by its beginning
// and a hash.
std::string EncodeResidence(const Residence& residence);
Result<Residence> ParseResidence(std::string_view note);

struct MeetingAnswer {
  std::string value;
  std::vector<Place> places;
};

std::string EncodeAnswer(const MeetingAnswer& answer);
std::string EncodeFailure(std::string_view sentence);
// Fails with RemoteError and rank 0's sentence for a failure, and with RemoteError for malformed
// bytes. An answer has `num_ranks` places with all fields filled in.
Result<MeetingAnswer> ParseAnswer(std::string_view bytes, int num_ranks);

struct Invitation {
  Key key{};
  uint16_t port = 0;
  std::vector<std::string> addresses;
};

std::string EncodeInvitation(const Invitation& invitation);
Result<Invitation> ParseInvitation(std::string_view bytes);

}  // namespace tutti::launch
