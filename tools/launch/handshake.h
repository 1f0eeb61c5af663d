#pragma once

// Connections between the ranks of one job, each end of which has proven that it holds the job's
// key.
//
// Rank 0 listens; the others connect. Nothing a stranger sends is parsed: before the proof only
// fixed numbers of random bytes travel.
//
//   connecting rank                           rank 0
//   nonce_c (32)                     ──────▶
//                                    ◀──────  nonce_s (32), MAC(key, "root", nonce_c, nonce_s)
//   MAC(key, "rank", …, claim), claim ──────▶  (the claim says who connects)
//
// MAC is libsodium's crypto_auth (HMAC-SHA-512-256). What travels afterwards is not encrypted.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::launch {

using Key = std::array<uint8_t, 32>;

Key RandomKey();
// The key that all ranks derive from the same text.
Key DeriveKey(std::string_view text);

// Who a connection is for: a rank, and which of that rank's several channels.
struct Claim {
  uint32_t channel = 0;
  uint32_t rank = 0;
  friend bool operator==(const Claim&, const Claim&) = default;
};

struct Endpoint {
  std::string host;
  uint16_t port = 0;
};

// A socket that listens on every interface, on the first of `ports` that is free (0: any). *port is
// what it got.
Result<UniqueFd> Listen(const std::vector<uint16_t>& ports, uint16_t* port);

// Accepts until each of `expected` has connected and proven itself; result i belongs to
// expected[i]. Strangers and half-open connections are dropped and cost nobody else time. Fails
// with Timeout naming the ranks that are missing, or InvalidUsage when two connections prove the
// same claim.
Result<std::vector<UniqueFd>> AcceptClaims(int listener, const Key& key,
                                           const std::vector<Claim>& expected, Deadline deadline);

// Connects to the first of `endpoints` where a holder of the key listens, trying all of them over
// and over until the deadline, since rank 0 may come later than the others.
Result<UniqueFd> ConnectWithClaim(const std::vector<Endpoint>& endpoints, const Key& key,
                                  Claim claim, Deadline deadline);

// Whole-buffer transfer over a blocking or non-blocking socket; both fail with Timeout at the
// deadline, and with RemoteError when the peer closed.
Status SendAll(int fd, const void* data, size_t bytes, Deadline deadline);
Status ReceiveAll(int fd, void* data, size_t bytes, Deadline deadline);

// A length-prefixed message of at most `limit` bytes.
Status SendMessage(int fd, std::string_view message, Deadline deadline);
Result<std::string> ReceiveMessage(int fd, size_t limit, Deadline deadline);

// This host's addresses that other hosts may reach, then loopback.
std::vector<std::string> OwnAddresses();

std::string ToHex(std::string_view bytes);
Result<std::string> FromHex(std::string_view hex);

}  // namespace tutti::launch
