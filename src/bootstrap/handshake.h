#pragma once

// The handshake of a TCP connection: both ends prove that they hold the job's key before any byte
// chosen by the other end is parsed, and agree on keys for the bytes behind the handshake.
//
//     acceptor → connector   challenge: magic[8] nonce_a[32] ephemeral_a[32]             72 bytes
//     connector → acceptor   proof:     nonce_c[32] ephemeral_c[32] hello[272] mac_c[32]   368 bytes
//     acceptor → connector   welcome:   mac_a[32]                                        32 bytes
//
//   T        = challenge, and the proof without mac_c
//   shared   = X25519 of the ephemeral keys
//   D(n, x)  = BLAKE2b-256 of x, keyed by the job's key and personalised by the name n
//   hello    = the hello in a block of 256 bytes, under ChaCha20-Poly1305 with the key
//              D("hello", shared, T as far as ephemeral_c) and the nonce 0
//   mac_c    = D("connector", T), mac_a = D("acceptor", shared, T)
//   keys     = D("to acceptor", shared, T) and D("to connector", shared, T) of the two directions,
//              D("further", shared, T) for uses besides the records
//
// docs/bootstrap.md gives the reason of each field. A connector without the key learns a nonce and
// an ephemeral key and nothing else, because the connector proves first. mac_c depends on the job's
// key alone: the acceptor checks mac_c before it computes with the connector's ephemeral key, so
// strangers cost the acceptor no operation on the curve. Sizes are fixed, nonces are fresh on both
// sides (no replay), the names keep the macs of the two ends apart (no reflection), and all
// comparisons take constant time.
//
// Threads: a Handshake belongs to a single thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/ephemeral.h"
#include "bootstrap/sealed_socket.h"
#include "bootstrap/secret_key.h"
#include "bootstrap/wire.h"

namespace tutti {

// Names the purpose of an authenticated connection.
enum class Purpose : uint8_t {
  kRoot = 1,     // a rank asks a root (bootstrap/root.h)
  kLink = 2,     // a rank's bootstrap joins another's (bootstrap/endpoint.h)
  kData = 3,     // a network transport's connection
  kLaunch = 4,   // a rank of a launched program meets rank 0 (launch/handshake.h)
  kElastic = 5,  // a worker of an elastic job asks the job's launcher (elastic/store.h)
};

// The connector's first words. `payload` has at most kMaxHelloBytes.
struct Hello {
  Purpose purpose = Purpose::kRoot;
  Bytes payload;
};
inline constexpr size_t kHelloBlockBytes = 256;
inline constexpr size_t kMaxHelloBytes = kHelloBlockBytes - 4;

// Runs one side of the exchange above, as a state machine over a connected non-blocking socket.
//
//   connecting: await challenge → send proof → await welcome → done
//   accepting:  send challenge → await proof → send welcome → done
class Handshake {
 public:
  static constexpr size_t kNonceBytes = 32;
  using Nonce = std::array<std::byte, kNonceBytes>;
  // The random values of one side. An acceptor may use one pair for several handshakes, because the
  // nonces keep the keys of the handshakes apart. Without a pair, on both sides, the ephemeral keys
  // and the shared secret are zero: enough for a key that is itself ephemeral, such as the key of
  // a rank's links (root_messages.h).
  struct Randomness {
    std::shared_ptr<const EphemeralPair> pair;  // may be null
    Nonce nonce;
    static Randomness With(std::shared_ptr<const EphemeralPair> pair);
    static Randomness Fresh();
    static Randomness WithoutPair() { return With(nullptr); }
  };

  static Handshake Connecting(const Key& key, const Hello& hello,
                              Randomness randomness = Randomness::Fresh());
  static Handshake Accepting(const Key& key, Randomness randomness = Randomness::Fresh());

  // Goes as far as it can without waiting; kDone at the end. A failure is final: close the
  // connection. The failure is InvalidUsage where another release of this library is at the other
  // end, and RemoteError otherwise.
  Result<Progress> Step(int fd);
  // Returns whether the handshake waits to write; else the handshake waits to read.
  bool WantsToWrite() const { return sent_ < out_size_; }
  // Returns the connector's hello. REQUIRES: Accepting, done.
  const Hello& hello() const { return hello_; }
  // Returns the connection with the keys of this handshake. REQUIRES: done, over `fd`.
  SealedSocket Seal(UniqueFd fd) const;

 private:
  static constexpr size_t kKeyBytes = sizeof(Key);
  static constexpr size_t kMacBytes = 32;
  static constexpr size_t kMagicBytes = 8;
  static constexpr size_t kChallengeBytes = kMagicBytes + kNonceBytes + kKeyBytes;
  static constexpr size_t kHelloTagBytes = 16;
  static constexpr size_t kSealedHelloBytes = kHelloBlockBytes + kHelloTagBytes;
  // The places of the fields in the transcript: the challenge, and the proof without its mac.
  static constexpr size_t kAcceptorNonceAt = kMagicBytes;
  static constexpr size_t kAcceptorKeyAt = kAcceptorNonceAt + kNonceBytes;
  static constexpr size_t kConnectorNonceAt = kChallengeBytes;
  static constexpr size_t kConnectorKeyAt = kConnectorNonceAt + kNonceBytes;
  static constexpr size_t kSealedHelloAt = kConnectorKeyAt + kKeyBytes;
  static constexpr size_t kTranscriptBytes = kSealedHelloAt + kSealedHelloBytes;
  static constexpr size_t kProofBytes = kTranscriptBytes - kChallengeBytes + kMacBytes;
  enum class Stage { kAwaitChallenge, kAwaitProof, kAwaitWelcome, kSendLast, kDone };

  Handshake(const Key& key, Randomness randomness, Stage stage)
      : key_{key}, randomness_(std::move(randomness)), stage_(stage) {}
  Status CheckMagic() const;
  Key PublicKey() const { return randomness_.pair ? randomness_.pair->public_key() : Key{}; }
  Status Agree(size_t their_key_at);
  void SealHello();
  Status OpenHello();
  Status TakeChallenge();
  Status TakeProof();
  Status TakeWelcome();
  Status TakeMessage();
  size_t ExpectedBytes() const;
  std::span<std::byte> Part(size_t at, size_t size) {
    return std::span(transcript_).subspan(at, size);
  }
  SecretKey Derive(std::string_view name, const SecretKey* shared,
                   size_t transcript_bytes = kTranscriptBytes) const;
  void Queue(std::span<const std::byte> bytes);
  void QueueMac(const SecretKey& mac);

  SecretKey key_;
  Randomness randomness_;
  Stage stage_;
  bool connects_ = false;
  SecretKey shared_;  // zero until the other end's ephemeral key has come
  Hello hello_;
  std::array<std::byte, kHelloBlockBytes> hello_block_ = {};
  std::array<std::byte, kTranscriptBytes> transcript_ = {};
  std::array<std::byte, kProofBytes> out_ = {};
  size_t out_size_ = 0;
  size_t sent_ = 0;
  std::array<std::byte, kProofBytes> in_ = {};
  size_t received_ = 0;
};

}  // namespace tutti
