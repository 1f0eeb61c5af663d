#pragma once

// Mutual authentication of a TCP connection by the job's key, before any byte from the other end is
// parsed.
//
//     acceptor → connector   challenge: magic[8] nonce_a[32]                             40 bytes
//     connector → acceptor   proof:     nonce_c[32] hello[256] mac_c[32]                320 bytes
//     acceptor → connector   welcome:   mac_a[32]                                        32 bytes
//
//   mac_c = BLAKE2b(key, "connector" nonce_a nonce_c hello), mac_a the same with "acceptor"
//
// A connector without the key learns a random nonce and nothing else, because the connector proves
// first. The hello names the purpose of the connection, and is read only after the proof. Sizes are
// fixed, nonces are fresh on both sides (no replay), and the two macs differ (no reflection) and
// are compared in constant time. All later bytes of the connection are plain: the key keeps
// strangers out, but does not hide the job's data from readers of the wire.
//
// Threads: a Handshake belongs to a single thread; an AuthAcceptor lives on its EventLoop.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/unique_id.h"
#include "bootstrap/wire.h"
#include "sys/event_loop.h"
#include "sys/random.h"
#include "sys/tcp.h"

namespace tutti {

// Names the purpose of an authenticated connection.
enum class Purpose : uint8_t {
  kRoot = 1,     // a rank asks a root (bootstrap/root.h)
  kLink = 2,     // a rank's bootstrap joins another's (bootstrap/endpoint.h)
  kData = 3,     // a network transport's connection
  kLaunch = 4,   // a rank of a launched program meets rank 0 (launch/handshake.h)
  kElastic = 5,  // a worker of an elastic job asks the job's launcher (elastic/store.h)
};

// Keys known only to the two ends of a connection, a key for each direction: derived from the job's
// key and the nonces of both ends.
struct SessionKeys {
  Key to_acceptor = {};
  Key to_connector = {};
};

// The connector's first words. `payload` has at most kMaxHelloBytes.
struct Hello {
  Purpose purpose = Purpose::kRoot;
  Bytes payload;
  SessionKeys keys = {};  // Keys of the connection that a Handshake accepted. They are not sent.
};
inline constexpr size_t kHelloBlockBytes = 256;
inline constexpr size_t kMaxHelloBytes = kHelloBlockBytes - 4;

// Returns the key that a text (TUTTI_COMM_KEY) stands for.
Key KeyFromText(std::string_view text);
// Return a fresh random key, and random bits for tokens and ids.
inline Key RandomKey() { return Random<Key>(); }
inline uint64_t RandomU64() { return Random<uint64_t>(); }

// Runs one side of the exchange above, as a state machine over a connected non-blocking socket.
//
//   connecting: await challenge → send proof → await welcome → done
//   accepting:  send challenge → await proof → send welcome → done
class Handshake {
 public:
  static Handshake Connecting(const Key& key, const Hello& hello);
  static Handshake Accepting(const Key& key);

  // Goes as far as it can without waiting; kDone at the end. A failure is final: close the
  // connection.
  Result<Progress> Step(int fd);
  // Returns whether the handshake waits to write; else the handshake waits to read.
  bool WantsToWrite() const { return sent_ < out_size_; }
  // Returns the connector's hello. REQUIRES: Accepting, done.
  const Hello& hello() const { return hello_; }
  // REQUIRES: done.
  SessionKeys session_keys() const;

 private:
  static constexpr size_t kNonceBytes = 32;
  static constexpr size_t kMacBytes = 32;
  static constexpr size_t kChallengeBytes = 8 + kNonceBytes;
  static constexpr size_t kProofBytes = kNonceBytes + kHelloBlockBytes + kMacBytes;
  enum class Stage { kAwaitChallenge, kAwaitProof, kAwaitWelcome, kSendLast, kDone };

  Handshake(const Key& key, Stage stage) : key_(key), stage_(stage) {}
  Status TakeChallenge();
  Status TakeProof();
  Status TakeWelcome();
  Status TakeMessage();
  size_t ExpectedBytes() const;
  std::array<std::byte, kMacBytes> Mac(std::string_view role) const;
  void Queue(std::span<const std::byte> bytes);

  Key key_;
  Stage stage_;
  Hello hello_;
  std::array<std::byte, kNonceBytes> acceptor_nonce_ = {};
  std::array<std::byte, kNonceBytes> connector_nonce_ = {};
  std::array<std::byte, kHelloBlockBytes> hello_block_ = {};
  std::array<std::byte, kProofBytes> out_ = {};
  size_t out_size_ = 0;
  size_t sent_ = 0;
  std::array<std::byte, kProofBytes> in_ = {};
  size_t received_ = 0;
};

// Authenticates the connectors of a listening socket. Silent, slow or foreign connections, however
// many, only raise a counter: each connection has kHandshakeTimeoutNs, and the accept limit of the
// loop (sys/accept_limit.h) bounds their number over all its listening sockets. At the limit the
// oldest connection is closed, but not before kGraceNs have passed since its arrival. Until then
// newcomers wait in the kernel's queue, so ranks that arrive all at once do not push one another
// out.
class AuthAcceptor {
 public:
  // A proof takes milliseconds; ranks far more numerous than the cores may need seconds.
  static constexpr int64_t kHandshakeTimeoutNs = 20'000'000'000;
  // Many times the duration of a proof between hosts. When a flood of connections fills the room,
  // hundreds of connections a second still get through, ranks among them.
  static constexpr int64_t kGraceNs = 200'000'000;

  // Called on the loop's thread for each connection whose other end has proved the key. May destroy
  // the acceptor.
  using Callback = std::function<void(UniqueFd fd, const Hello& hello, const SocketAddress& from)>;
  // Called on the loop's thread when no more ranks can be accepted: after the Callback, when the
  // accepted connection has taken the last descriptor of the process, and when accepting fails for
  // half a second. The status names the cause.
  using OnShortage = std::function<void(const Status& why)>;

  // `name` names the listener in the log ("the root").
  static Result<std::unique_ptr<AuthAcceptor>> Create(EventLoop& loop, UniqueFd listen_fd,
                                                      const Key& key, std::string name,
                                                      Callback on_authenticated,
                                                      OnShortage on_shortage = {});
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

// Says why ConnectAuthenticated failed, for callers that may try again.
enum class ConnectFailure {
  kNone,
  kRefused,  // nobody listens at the address
  kClosed,   // the connection ended during the handshake: another job, another key, or a full
             // listener
  kOther,    // deadline, abort, no route, …
};

// Authenticates as the connector on `fd`, a connected non-blocking socket of any family, waiting
// within `limits`. A failure's sentence begins with `what`; the caller must then close the socket.
Status AuthenticateAsConnector(int fd, const Key& key, const Hello& hello, const WaitLimits& limits,
                               std::string_view what, ConnectFailure* failure = nullptr,
                               SessionKeys* keys = nullptr);

// Connects and authenticates, waiting within `limits`.
Result<UniqueFd> ConnectAuthenticated(const SocketAddress& address, const Key& key,
                                      const Hello& hello, const WaitLimits& limits,
                                      ConnectFailure* failure = nullptr,
                                      SessionKeys* keys = nullptr);

// Connects and authenticates, and tries again when a handshake is cut off: kConnectAttempts times
// in all, kBetweenAttemptsMs apart. The other end may have had no room for the moment.
Result<UniqueFd> ConnectPatiently(const SocketAddress& address, const Key& key, const Hello& hello,
                                  const WaitLimits& limits, SessionKeys* keys = nullptr);
inline constexpr int kConnectAttempts = 4;
inline constexpr int kBetweenAttemptsMs = 50;

}  // namespace tutti
