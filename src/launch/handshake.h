#pragma once

// Connections between the ranks of one job, each end of which has proven that it holds the job's
// key (bootstrap/auth.h). Rank 0 listens; the others connect, and their hello says who they are. A
// rank knows that it is in once rank 0 has welcomed it; until then it tries again.
//
// What travels afterwards is not encrypted.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/auth.h"

namespace tutti::launch {

using tutti::Key;
using tutti::RandomKey;

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

// Keeps a free port for listeners that come later, as often as they like: nobody who asks for any
// port gets it, and none connects from it. They need SO_REUSEADDR, as most servers and Listen have
// it, and until one is there connections are refused.
Result<UniqueFd> HoldPort(uint16_t* port);

// Accepts until each of `expected` has connected and proven itself; result i belongs to
// expected[i]. Strangers and half-open connections are dropped and cost nobody else time. Fails
// with Timeout naming the ranks that are missing, or InvalidUsage when two connections prove the
// same claim.
Result<std::vector<UniqueFd>> AcceptClaims(UniqueFd listener, const Key& key,
                                           const std::vector<Claim>& expected, Deadline deadline);

// Connects to the first of `endpoints` where a holder of the key listens, trying all of them over
// and over until the deadline, since rank 0 may come later than the others.
Result<UniqueFd> ConnectWithClaim(const std::vector<Endpoint>& endpoints, const Key& key,
                                  Claim claim, Deadline deadline);

// A length-prefixed message of at most `limit` bytes. Fail with Timeout at the deadline, and with
// RemoteError when the peer closed.
Status SendMessage(int fd, std::string_view message, Deadline deadline);
Result<std::string> ReceiveMessage(int fd, size_t limit, Deadline deadline);

// This host's addresses that other hosts may reach, then loopback.
std::vector<std::string> OwnAddresses();

std::string ToHex(std::string_view bytes);
Result<std::string> FromHex(std::string_view hex);

}  // namespace tutti::launch
