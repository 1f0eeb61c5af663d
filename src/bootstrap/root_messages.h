#pragma once

// The messages between ranks and roots. A rank's request travels in the hello of its connection
// (bootstrap/auth.h); the root's answer comes back on the same connection when all ranks in charge
// of the root have registered, or as soon as the job is known not to start. Integers are
// little-endian.
//
//   request  kind u8 (1 register, 2 look up, 3 decline)  rank u32  num_ranks u32  num_roots u32
//            root_index u32  timeout_ms u32  pid u32  host text(64)
//     register:  address[24]
//     look up:   count u8, then `count` ranks u32
//     decline:   why text(160): the sender cannot take part, so no rank need wait for the sender
//   answer   type u32 (1 contacts, 2 failure, 3 notice)  size u32
//     contacts:  count u32, then `count` times rank u32, address[24], key[32]
//     failure:   code u32, sentence u16 + text
//     notice:    sentence u16 + text: ranks are missing; the answer comes later
//
// A text is a length byte and as many bytes. All parsers here read bytes from the network and are
// fuzzed.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bootstrap/secret_key.h"
#include "bootstrap/wire.h"
#include "sys/tcp.h"

namespace tutti {

// More ranks than any machine has, and few enough for sizes computed from the number to fit in
// memory.
inline constexpr uint32_t kMaxRanks = 1u << 20;

// The address at which a rank's bootstrap listens, and the key of all links to this address: the
// further key of the rank's connection to its root (sealed_socket.h). The other ranks learn the key
// over sealed connections, from the root and later from one another. A link therefore needs no
// exchange of keys of its own, and a connection meant for an earlier job at the same port fails.
struct Contact {
  SocketAddress address;
  SecretKey key = {};
};
void WriteContact(WireWriter& writer, const Contact& contact);
Contact ReadContact(WireReader& reader);

// Returns the ranks that a rank opens links to. The distances of a rank's links are the powers of
// two below `num_ranks`.
std::vector<int> LinkTargets(int rank, int num_ranks);

// Returns the number of the root, among `num_roots`, in charge of `rank`: the ranks are split
// evenly, in order.
inline uint32_t RootInCharge(uint32_t rank, uint32_t num_ranks, uint32_t num_roots) {
  return static_cast<uint32_t>(uint64_t{rank} * num_roots / num_ranks);
}

struct RootRequest {
  enum class Kind : uint8_t { kRegister = 1, kLookUp = 2, kDecline = 3 };
  Kind kind = Kind::kRegister;
  uint32_t rank = 0;
  uint32_t num_ranks = 0;
  uint32_t num_roots = 0;
  uint32_t root_index = 0;
  uint32_t timeout_ms = 0;  // the sender will wait this long
  uint32_t pid = 0;
  std::string host;
  Contact contact;               // register; the key does not travel in the request
  std::vector<uint32_t> wanted;  // look up: ranks in charge of this root
  std::string why;               // decline; a text that is too long is cut
};

Bytes EncodeRootRequest(const RootRequest& request);
// Checks every field against the others. REQUIRES of the result: rank < num_ranks <= kMaxRanks,
// num_roots <= num_ranks, root_index < num_roots, a registered rank and all wanted ranks belong to
// the root of root_index.
Result<RootRequest> ParseRootRequest(std::span<const std::byte> bytes);

struct RootAnswer {
  std::string notice;  // not empty: says who is missing, and nothing else holds
  Status failure;      // ok: `contacts` holds
  std::vector<std::pair<uint32_t, Contact>> contacts;
};
inline constexpr size_t kRootAnswerHeaderBytes = 8;
inline constexpr uint32_t kMaxRootAnswerBytes = 64 * 1024;

// Returns the header and the body in one buffer.
Bytes EncodeRootAnswer(const RootAnswer& answer);
// Returns the body's size by the header; fails when the size exceeds kMaxRootAnswerBytes.
Result<uint32_t> ParseRootAnswerHeader(std::span<const std::byte> header, uint32_t* type);
Result<RootAnswer> ParseRootAnswer(uint32_t type, std::span<const std::byte> body);

}  // namespace tutti
