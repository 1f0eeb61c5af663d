#pragma once

// Hands file descriptors (shared memory above all) to other processes of the same machine.
//
//   client                                              server (one per process, on its event loop)
//   Hello{id, client nonce}                  ──▶        looks the id up
//                                            ◀──        Challenge{server nonce, proof of the key}
//   checks the proof; Answer{proof of the key} ──▶      checks the proof
//                                            ◀──        Grant, with the descriptor (SCM_RIGHTS)
//
// A proof is keyed BLAKE2b over the role, the server's name, the id and both nonces; a proof
// therefore cannot be replayed, reflected, or relayed to a server of another name. Each offer has
// its own key, which reaches the rightful clients by a channel that is authenticated already (the
// bootstrap). User names do not matter; the client's process and user are in the log.
//
// The socket is a Unix socket with an abstract name: the socket has no file, and exactly the
// processes of the same network namespace can see the name. This visibility defines "the same host"
// here: two containers with networks of their own are two hosts, and two network namespaces on a
// machine behave as two hosts in tests.
//
// Garbage, silence and floods: a message that is not exactly of the expected form closes its
// connection; a connection that is not done within kHandshakeNs is closed. Connections that have
// not proved the key count among the unauthenticated connections of the event loop
// (accept_limit.h), which together hold a share of the process's descriptors. When the share is
// used up, newcomers wait until the oldest connection has had its time and is closed (a client
// whose connection is closed unanswered tries again until its deadline).
//
// Threads: Offer and Withdraw from any thread. The destructor must not run concurrently with them.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "sys/event_loop.h"
#include "sys/random.h"
#include "sys/tcp.h"

namespace tutti {

using FdKey = std::array<uint8_t, 32>;

class FdServer {
 public:
  // A handshake takes well under a millisecond; a client stopped in a debugger may take seconds.
  static constexpr int64_t kHandshakeNs = 5'000'000'000;

  // Listens under a random name. `loop` must outlive the server and is where clients are answered.
  static Result<std::unique_ptr<FdServer>> Create(EventLoop& loop,
                                                  int64_t handshake_ns = kHandshakeNs);
  virtual ~FdServer() = default;

  // Returns the name for FetchFd: at most kMaxFdServerName bytes of printable ASCII.
  virtual const std::string& name() const = 0;

  // Gives clients that prove `key` a duplicate of `fd` from now on, as often as they ask. Returns
  // the offer's id, random and never 0. `fd` stays the caller's and must stay open until Withdraw.
  virtual uint64_t Offer(int fd, const FdKey& key) = 0;
  // Ends an offer: after return no client gets the descriptor. An unknown id is ignored.
  virtual void Withdraw(uint64_t id) = 0;
};

inline constexpr size_t kMaxFdServerName = 47;

// Fetches the descriptor that the server named `server_name` offers under `id`. Blocks; looks at
// its limits about 20 times a second. Not for use on the thread of the server's own event loop.
// Errors: Timeout; RemoteError when nobody listens under this name, the id was withdrawn, or the
// server does not hold the key; SystemError; InternalError when aborted. Sets `*no_descriptors`
// (may be null) where the call fails because this process has used up its descriptors.
Result<UniqueFd> FetchFd(std::string_view server_name, uint64_t id, const FdKey& key,
                         const WaitLimits& limits, bool* no_descriptors = nullptr);

// Returns a key from the system's random source.
inline FdKey RandomFdKey() { return Random<FdKey>(); }

}  // namespace tutti
