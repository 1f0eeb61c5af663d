#include "bootstrap/handshake.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "sys/random.h"
#include "sys/tcp.h"

namespace tutti {
namespace {

// The last byte grows with every change of the handshake.
constexpr std::string_view kChallengeMagic = "TUTTIHS2";
constexpr size_t kMagicFamilyBytes = 7;

Bytes HelloBlock(const Hello& hello) {
  WireWriter writer;
  writer.U8(static_cast<uint8_t>(hello.purpose));
  writer.U8(0);
  const size_t size = std::min(hello.payload.size(), kMaxHelloBytes);
  writer.U16(static_cast<uint16_t>(size));
  writer.Raw(std::span(hello.payload).first(size));
  return std::move(writer).Take();
}

bool IsRight(std::span<const std::byte> mac, const SecretKey& expected) {
  return sodium_memcmp(expected.get().data(), mac.data(), expected.get().size()) == 0;
}

// The key of a hello encrypts this hello only, so the nonce may be the same.
constexpr std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> kHelloNonce = {};

}  // namespace

Handshake::Randomness Handshake::Randomness::With(std::shared_ptr<const EphemeralPair> pair) {
  return {std::move(pair), Random<Nonce>()};
}

Handshake::Randomness Handshake::Randomness::Fresh() {
  return With(std::make_shared<EphemeralPair>(EphemeralPair::Fresh()));
}

Handshake Handshake::Connecting(const Key& key, const Hello& hello, Randomness randomness) {
  Handshake result(key, std::move(randomness), Stage::kAwaitChallenge);
  result.connects_ = true;
  const Bytes block = HelloBlock(hello);
  std::copy(block.begin(), block.end(), result.hello_block_.begin());
  return result;
}

Handshake Handshake::Accepting(const Key& key, Randomness randomness) {
  Handshake result(key, std::move(randomness), Stage::kAwaitProof);
  const auto put = [&](size_t at, std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), result.Part(at, bytes.size()).begin());
  };
  put(0, AsBytes(kChallengeMagic));
  put(kAcceptorNonceAt, result.randomness_.nonce);
  const Key public_key = result.PublicKey();
  put(kAcceptorKeyAt, std::as_bytes(std::span(public_key)));
  result.Queue(result.Part(0, kChallengeBytes));
  return result;
}

void Handshake::Queue(std::span<const std::byte> bytes) {
  if (sent_ == out_size_) sent_ = out_size_ = 0;
  std::memcpy(out_.data() + out_size_, bytes.data(), bytes.size());
  out_size_ += bytes.size();
}

void Handshake::QueueMac(const SecretKey& mac) { Queue(std::as_bytes(std::span(mac.get()))); }

// The name is BLAKE2b's personalisation, so values of different names are unrelated.
SecretKey Handshake::Derive(std::string_view name, const SecretKey* shared,
                            size_t transcript_bytes) const {
  std::array<unsigned char, crypto_generichash_blake2b_PERSONALBYTES> personal = {};
  std::copy(name.begin(), name.end(), personal.begin());
  SecretKey result;
  crypto_generichash_blake2b_state state;
  crypto_generichash_blake2b_init_salt_personal(&state, key_.get().data(), key_.get().size(),
                                                result.get().size(), nullptr, personal.data());
  if (shared != nullptr) {
    crypto_generichash_blake2b_update(&state, shared->get().data(), shared->get().size());
  }
  crypto_generichash_blake2b_update(&state, Unsigned(transcript_.data()), transcript_bytes);
  crypto_generichash_blake2b_final(&state, result.get().data(), result.get().size());
  sodium_memzero(&state, sizeof(state));
  return result;
}

SealedSocket Handshake::Seal(UniqueFd fd) const {
  const SecretKey to_acceptor = Derive("to acceptor", &shared_);
  const SecretKey to_connector = Derive("to connector", &shared_);
  const SecretKey further = Derive("further", &shared_);
  return connects_ ? SealedSocket(std::move(fd), to_acceptor, to_connector, further)
                   : SealedSocket(std::move(fd), to_connector, to_acceptor, further);
}

// Sizes depend on the stage alone: the other end has no say in how much is read.
size_t Handshake::ExpectedBytes() const {
  switch (stage_) {
    case Stage::kAwaitChallenge:
      return kChallengeBytes;
    case Stage::kAwaitProof:
      return kProofBytes;
    case Stage::kAwaitWelcome:
      return kMacBytes;
    default:
      return 0;
  }
}

// Looks at the magic before the rest has come, because the challenge of another release may be
// shorter.
Status Handshake::CheckMagic() const {
  if (std::memcmp(in_.data(), kChallengeMagic.data(), kMagicBytes) == 0) return Status::Ok();
  if (std::memcmp(in_.data(), kChallengeMagic.data(), kMagicFamilyBytes) != 0) {
    return RemoteError("what listens there is not of this library");
  }
  return InvalidUsage(
      "{} release of this library is at the other end: all ranks must use the same release",
      in_[kMagicFamilyBytes] < std::byte(kChallengeMagic.back()) ? "an older" : "a newer");
}

// An end without a pair computes with a secret of zero, and an end with a pair refuses the key of
// an end without a pair, a point of low order.
Status Handshake::Agree(size_t their_key_at) {
  if (!randomness_.pair) return Status::Ok();
  Key theirs;
  std::memcpy(theirs.data(), transcript_.data() + their_key_at, theirs.size());
  std::optional<SecretKey> shared = randomness_.pair->Agree(theirs);
  if (!shared) return RemoteError("the other end sent an ephemeral key of low order");
  shared_ = *shared;
  return Status::Ok();
}

void Handshake::SealHello() {
  const SecretKey key = Derive("hello", &shared_, kSealedHelloAt);
  crypto_aead_chacha20poly1305_ietf_encrypt(
      Unsigned(transcript_.data() + kSealedHelloAt), nullptr, Unsigned(hello_block_.data()),
      hello_block_.size(), nullptr, 0, nullptr, kHelloNonce.data(), key.get().data());
}

// The tag shows that the connector knows the secret of the ephemeral keys.
Status Handshake::OpenHello() {
  const SecretKey key = Derive("hello", &shared_, kSealedHelloAt);
  const int failed = crypto_aead_chacha20poly1305_ietf_decrypt(
      Unsigned(hello_block_.data()), nullptr, nullptr,
      Unsigned(transcript_.data() + kSealedHelloAt), kSealedHelloBytes, nullptr, 0,
      kHelloNonce.data(), key.get().data());
  if (failed != 0) return RemoteError("the other end's hello is damaged");
  WireReader reader(hello_block_);
  hello_.purpose = static_cast<Purpose>(reader.U8());
  reader.U8();
  const auto payload = reader.Raw(reader.U16());
  if (reader.failed()) return RemoteError("the other end's hello is malformed");
  hello_.payload.assign(payload.begin(), payload.end());
  return Status::Ok();
}

Status Handshake::TakeChallenge() {
  std::memcpy(transcript_.data(), in_.data(), kChallengeBytes);
  std::memcpy(transcript_.data() + kConnectorNonceAt, randomness_.nonce.data(), kNonceBytes);
  std::memcpy(transcript_.data() + kConnectorKeyAt, PublicKey().data(), kKeyBytes);
  TUTTI_TRY(Agree(kAcceptorKeyAt));
  SealHello();
  Queue(Part(kChallengeBytes, kTranscriptBytes - kChallengeBytes));
  QueueMac(Derive("connector", nullptr));
  stage_ = Stage::kAwaitWelcome;
  return Status::Ok();
}

// Neither the curve nor the hello is touched before the mac was compared.
Status Handshake::TakeProof() {
  constexpr size_t kWithoutMac = kProofBytes - kMacBytes;
  std::memcpy(transcript_.data() + kChallengeBytes, in_.data(), kWithoutMac);
  if (!IsRight(std::span(in_).last(kMacBytes), Derive("connector", nullptr))) {
    return RemoteError("the other end does not hold this job's key");
  }
  TUTTI_TRY(Agree(kConnectorKeyAt));
  TUTTI_TRY(OpenHello());
  QueueMac(Derive("acceptor", &shared_));
  stage_ = Stage::kSendLast;
  return Status::Ok();
}

Status Handshake::TakeWelcome() {
  if (!IsRight(std::span(in_).first(kMacBytes), Derive("acceptor", &shared_))) {
    return RemoteError("the other end does not hold this job's key");
  }
  stage_ = Stage::kDone;
  return Status::Ok();
}

Status Handshake::TakeMessage() {
  received_ = 0;
  switch (stage_) {
    case Stage::kAwaitChallenge:
      return TakeChallenge();
    case Stage::kAwaitProof:
      return TakeProof();
    default:
      return TakeWelcome();
  }
}

// Alternates between sending the queued bytes and reading the next message, until the socket would
// block or the exchange is done.
Result<Progress> Handshake::Step(int fd) {
  bool advanced = false;
  for (;;) {
    if (WantsToWrite()) {
      TUTTI_ASSIGN(const size_t sent,
                   TrySend(fd, std::span(out_).subspan(sent_, out_size_ - sent_)));
      if (sent == 0) break;
      sent_ += sent;
      advanced = true;
      continue;
    }
    if (stage_ == Stage::kSendLast) stage_ = Stage::kDone;
    if (stage_ == Stage::kDone) return Progress::kDone;
    const size_t expected = ExpectedBytes();
    TUTTI_ASSIGN(const int64_t got,
                 TryRecv(fd, std::span(in_).subspan(received_, expected - received_)));
    if (got == kEndOfStream) {
      return RemoteError(
          "the connection was closed during authentication (is the other end of this job, with "
          "the same key and the same release of this library?)");
    }
    if (got == 0) break;
    received_ += static_cast<size_t>(got);
    advanced = true;
    if (stage_ == Stage::kAwaitChallenge && received_ >= kMagicBytes) TUTTI_TRY(CheckMagic());
    if (received_ == expected) TUTTI_TRY(TakeMessage());
  }
  return advanced ? Progress::kAdvanced : Progress::kIdle;
}

}  // namespace tutti
