#pragma once

// Authenticated connections: the handshake (handshake.h) on the sockets that a listener accepts,
// and on the sockets that connect. The connections are sealed afterwards (sealed_socket.h).
//
// Threads: an AuthAcceptor lives on its EventLoop.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/handshake.h"
#include "bootstrap/sealed_socket.h"
#include "bootstrap/unique_id.h"
#include "sys/event_loop.h"
#include "sys/random.h"
#include "sys/tcp.h"

namespace tutti {

// Returns the key that a text, such as the secret of a job, stands for.
Key KeyFromText(std::string_view text);
// Return a fresh random key, and random bits for tokens and ids.
inline Key RandomKey() { return Random<Key>(); }
inline uint64_t RandomU64() { return Random<uint64_t>(); }

// Authenticates the connectors of a listening socket. Silent, slow or foreign connections, however
// many, only raise a counter: each connection has kHandshakeTimeoutNs, and the accept limit of the
// loop bounds their number over all its listening sockets (sys/bounded_listener.h).
class AuthAcceptor {
 public:
  // A proof takes milliseconds; ranks far more numerous than the cores may need seconds.
  static constexpr int64_t kHandshakeTimeoutNs = 20'000'000'000;
  // The acceptor uses an ephemeral pair for this long, then erases the pair. One pair for many
  // handshakes keeps strangers from costing an operation on the curve for each connection.
  static constexpr int64_t kLongestPairNs = 60'000'000'000;

  // Called on the loop's thread for each connection whose other end has proved the key. May destroy
  // the acceptor.
  using Callback =
      std::function<void(SealedSocket socket, const Hello& hello, const SocketAddress& from)>;
  // Called on the loop's thread when no more ranks can be accepted: after the Callback, when the
  // accepted connection has taken the last descriptor of the process, and when accepting fails for
  // half a second. The status names the cause.
  using OnShortage = std::function<void(const Status& why)>;

  // Says whether handshakes agree on a secret by X25519. kNone is for a key that is itself
  // ephemeral; connectors then have no pair either (Handshake::Randomness::WithoutPair).
  enum class Exchange { kX25519, kNone };

  // `name` names the listener in the log ("the root").
  static Result<std::unique_ptr<AuthAcceptor>> Create(EventLoop& loop, UniqueFd listen_fd,
                                                      const Key& key, std::string name,
                                                      Callback on_authenticated,
                                                      OnShortage on_shortage = {},
                                                      Exchange exchange = Exchange::kX25519);
  // Closes the listening socket and the unfinished connections; no callback runs after return. Any
  // thread.
  ~AuthAcceptor();

  // Returns how many connections were closed because they did not prove the key in time.
  uint64_t rejected() const;

 private:
  class State;
  explicit AuthAcceptor(EventLoop& loop, std::shared_ptr<State> state);
  EventLoop& loop_;
  std::shared_ptr<State> state_;
};

// Says why ConnectAuthenticated failed, for callers that may try again. Of the failures of several
// attempts, the greatest tells most.
enum class ConnectFailure {
  kNone,
  kOther,    // deadline, abort, no route, another release of this library, …
  kSilent,   // the host did not answer within TUTTI_HOST_TIMEOUT_S
  kRefused,  // nobody listens at the address
  kClosed,   // the connection ended during the handshake: another job, another key, or a full
             // listener
};

// Authenticates as the connector on `fd`, a connected non-blocking socket of any family, waiting
// within `limits`. A failure's sentence begins with `what`.
Result<SealedSocket> AuthenticateAsConnector(UniqueFd fd, const Key& key, const Hello& hello,
                                             const WaitLimits& limits, std::string_view what,
                                             ConnectFailure* failure = nullptr);

// Connects and authenticates, waiting within `limits`. With `dead_after_s` the connection breaks,
// now or later, when the other host is silent for that many seconds (TUTTI_HOST_TIMEOUT_S).
Result<SealedSocket> ConnectAuthenticated(const SocketAddress& address, const Key& key,
                                          const Hello& hello, const WaitLimits& limits,
                                          ConnectFailure* failure = nullptr, int dead_after_s = 0);

// Connects to the local socket `name` (sys/local_socket.h) and authenticates, in the same way.
Result<SealedSocket> ConnectAuthenticatedLocally(const std::string& name, const Key& key,
                                                 const Hello& hello, const WaitLimits& limits,
                                                 ConnectFailure* failure = nullptr);

// Connects and authenticates, and tries again when a handshake is cut off: kConnectAttempts times
// in all, kBetweenAttemptsMs apart. The other end may have had no room for the moment.
Result<SealedSocket> ConnectPatiently(const SocketAddress& address, const Key& key,
                                      const Hello& hello, const WaitLimits& limits);
inline constexpr int kConnectAttempts = 4;
inline constexpr int kBetweenAttemptsMs = 50;

}  // namespace tutti
