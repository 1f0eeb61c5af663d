#include "bootstrap/handshake.h"

#include <gtest/gtest.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>
#include <string>

#include "bootstrap/auth.h"
#include "bootstrap/testing/thread_ranks.h"

namespace tutti {
namespace {

using testing::ToBytes;
using testing::ToText;

constexpr size_t kChallengeBytes = 72;
constexpr size_t kProofBytes = 368;
constexpr size_t kWelcomeBytes = 32;

struct Ends {
  UniqueFd a;
  UniqueFd b;
};

Ends NewEnds() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Steps a side until it neither moves nor fails.
Result<Progress> StepAll(Handshake& side, int fd) {
  Result<Progress> last = side.Step(fd);
  while (last.ok() && *last == Progress::kAdvanced) last = side.Step(fd);
  return last;
}

Bytes ReadAvailable(int fd) {
  Bytes bytes(4096);
  const auto got = TryRecv(fd, bytes);
  bytes.resize(got.ok() && *got > 0 ? static_cast<size_t>(*got) : 0);
  return bytes;
}

void Write(int fd, std::span<const std::byte> bytes) { EXPECT_TRUE(SendAll(fd, bytes, {}).ok()); }

// A man in the middle: both sides talk to the man, who passes the bytes on and keeps a copy.
struct Middle {
  Middle(Handshake connecting_in, Handshake accepting_in)
      : connecting(std::move(connecting_in)), accepting(std::move(accepting_in)) {}

  // Lets both sides go on until nothing moves.
  void Run() {
    for (int i = 0; i < 6; ++i) {
      connected = StepAll(connecting, left.a.get());
      accepted = StepAll(accepting, right.a.get());
      if (!connected.ok() || !accepted.ok()) return;
      const Bytes up = ReadAvailable(left.b.get());
      const Bytes down = ReadAvailable(right.b.get());
      Write(right.b.get(), up);
      Write(left.b.get(), down);
      to_acceptor.insert(to_acceptor.end(), up.begin(), up.end());
      to_connector.insert(to_connector.end(), down.begin(), down.end());
    }
  }

  Handshake connecting;
  Handshake accepting;
  Ends left = NewEnds();   // a: the connector's socket
  Ends right = NewEnds();  // a: the acceptor's socket
  Bytes to_acceptor;
  Bytes to_connector;
  Result<Progress> connected = Progress::kIdle;
  Result<Progress> accepted = Progress::kIdle;
};

bool Done(const Result<Progress>& result) { return result.ok() && *result == Progress::kDone; }

std::string Sentence(const Result<Progress>& result) {
  return result.ok() ? "" : std::string(result.status().message());
}

TEST(HandshakeTest, BothProveAndTheHelloArrives) {
  const Key key = RandomKey();
  Middle middle(Handshake::Connecting(key, {Purpose::kData, ToBytes("hello")}),
                Handshake::Accepting(key));
  middle.Run();
  EXPECT_TRUE(Done(middle.connected)) << Sentence(middle.connected);
  EXPECT_TRUE(Done(middle.accepted)) << Sentence(middle.accepted);
  EXPECT_EQ(middle.accepting.hello().purpose, Purpose::kData);
  EXPECT_EQ(ToText(middle.accepting.hello().payload), "hello");
  EXPECT_EQ(middle.to_acceptor.size(), kProofBytes);
  EXPECT_EQ(middle.to_connector.size(), kChallengeBytes + kWelcomeBytes);
  EXPECT_EQ(ToText(middle.to_acceptor).find("hello"), std::string::npos);
}

// Ends without pairs agree among themselves, and an end with a pair refuses an end without a pair.
TEST(HandshakeTest, BothOrNeitherHaveAPair) {
  const Key key = RandomKey();
  const auto randomness = [](bool has_pair) {
    return has_pair ? Handshake::Randomness::Fresh() : Handshake::Randomness::WithoutPair();
  };
  for (const bool connector : {false, true}) {
    for (const bool acceptor : {false, true}) {
      Middle middle(Handshake::Connecting(key, {Purpose::kLink, {}}, randomness(connector)),
                    Handshake::Accepting(key, randomness(acceptor)));
      middle.Run();
      EXPECT_EQ(Done(middle.connected), connector == acceptor);
      EXPECT_EQ(Done(middle.accepted), connector == acceptor);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Test vectors, which another implementation computed (Python's hashlib and cryptography).

Key Ascending(uint8_t first) {
  Key key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(first + i);
  return key;
}

Handshake::Randomness FixedRandomness(uint8_t nonce, uint8_t secret) {
  Handshake::Randomness randomness = {std::make_shared<EphemeralPair>(SecretKey{Ascending(secret)}),
                                      {}};
  std::memcpy(randomness.nonce.data(), Ascending(nonce).data(), randomness.nonce.size());
  return randomness;
}

std::string Hex(std::span<const std::byte> bytes) {
  std::string text(bytes.size() * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                 bytes.size());
  text.pop_back();
  return text;
}

std::string HashOf(const Bytes& bytes) {
  std::array<std::byte, 32> hash;
  crypto_generichash(reinterpret_cast<unsigned char*>(hash.data()), hash.size(),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), nullptr,
                     0);
  return Hex(hash);
}

TEST(HandshakeTest, FixedKeysAndNoncesGiveTheseBytes) {
  const Key key = Ascending(0);
  Middle middle(
      Handshake::Connecting(key, {Purpose::kLink, ToBytes("hello")}, FixedRandomness(0x40, 0x80)),
      Handshake::Accepting(key, FixedRandomness(0x20, 0x60)));
  middle.Run();
  ASSERT_TRUE(Done(middle.connected) && Done(middle.accepted));
  const Bytes challenge(middle.to_connector.begin(), middle.to_connector.begin() + kChallengeBytes);
  const Bytes welcome(middle.to_connector.begin() + kChallengeBytes, middle.to_connector.end());
  EXPECT_EQ(Hex(challenge),
            "5455545449485332202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f675dd5"
            "74ed7789310b3d2e7681f3790b466c773b1521fecf36577958371ea52f");
  EXPECT_EQ(HashOf(middle.to_acceptor),
            "979f089c2de2f6071cc38b9488e922341daa36a96bd9d4f5bd86496eab90d23d");
  EXPECT_EQ(Hex(std::span(middle.to_acceptor).last(32)),
            "7b57c4a2815a12ffe7e7c828c81b3975844f19af958d6f7000db0370bbaa229d");
  EXPECT_EQ(Hex(welcome), "c81ed3b00ca5fc6c3ee8bcf74ad69103a1c354174e3e0dab196ea1ac77ab5d5c");
  // The first record of each direction.
  SealedSocket connector = middle.connecting.Seal(std::move(middle.left.a));
  SealedSocket acceptor = middle.accepting.Seal(std::move(middle.right.a));
  EXPECT_EQ(*connector.TrySend(ToBytes("ping")), 4u);
  EXPECT_EQ(*acceptor.TrySend(ToBytes("pong")), 4u);
  EXPECT_EQ(Hex(ReadAvailable(middle.left.b.get())),
            "040000009de5a7eea22863c21670a597f2d980ba3302b0166a6c9c08");
  EXPECT_EQ(Hex(ReadAvailable(middle.right.b.get())),
            "040000009de5a7ee77ba603ad7fb2c9b62b4bd6084f1e6ca478ee76d");
}

// ---------------------------------------------------------------------------------------------------------------------
// Attacks

TEST(HandshakeTest, AConnectorWithoutTheKeyIsRefusedAndLearnsNothing) {
  Middle middle(Handshake::Connecting(RandomKey(), {Purpose::kData, {}}),
                Handshake::Accepting(RandomKey()));
  middle.Run();
  EXPECT_NE(Sentence(middle.accepted).find("does not hold this job's key"), std::string::npos);
  ASSERT_TRUE(middle.connected.ok());
  EXPECT_NE(*middle.connected, Progress::kDone);
  EXPECT_TRUE(ReadAvailable(middle.right.b.get()).empty());
}

Bytes MadeUpChallenge(const Key& ephemeral) {
  Bytes said = ToBytes("TUTTIHS2");
  said.resize(40, std::byte{9});
  const auto bytes = std::as_bytes(std::span(ephemeral));
  said.insert(said.end(), bytes.begin(), bytes.end());
  return said;
}

TEST(HandshakeTest, AnAcceptorWithoutTheKeyIsRefused) {
  // The acceptor sends a challenge and then makes a welcome up: zeros, or the connector's own mac.
  for (const bool reflects : {false, true}) {
    const Ends ends = NewEnds();
    auto connecting = Handshake::Connecting(RandomKey(), {Purpose::kData, {}});
    Write(ends.b.get(), MadeUpChallenge(EphemeralPair::Fresh().public_key()));
    ASSERT_TRUE(StepAll(connecting, ends.a.get()).ok());
    const Bytes proof = ReadAvailable(ends.b.get());
    ASSERT_EQ(proof.size(), kProofBytes);
    const Bytes zeros(kWelcomeBytes);
    Write(ends.b.get(), reflects ? std::span(proof).last(kWelcomeBytes) : std::span(zeros));
    EXPECT_FALSE(StepAll(connecting, ends.a.get()).ok());
  }
}

TEST(HandshakeTest, AnOldProofDoesNotOpenANewConnection) {
  const Key key = RandomKey();
  const auto pair = std::make_shared<EphemeralPair>(EphemeralPair::Fresh());
  Middle first(Handshake::Connecting(key, {Purpose::kData, {}}),
               Handshake::Accepting(key, Handshake::Randomness::With(pair)));
  first.Run();
  ASSERT_TRUE(Done(first.accepted));
  // The acceptor still has the same ephemeral pair; its nonce differs.
  const Ends second = NewEnds();
  auto fresh = Handshake::Accepting(key, Handshake::Randomness::With(pair));
  Write(second.a.get(), first.to_acceptor);
  EXPECT_FALSE(StepAll(fresh, second.b.get()).ok());
}

TEST(HandshakeTest, AnOldChallengeAndWelcomeDoNotConvinceANewConnector) {
  const Key key = RandomKey();
  const auto pair = std::make_shared<EphemeralPair>(EphemeralPair::Fresh());
  Middle first(Handshake::Connecting(key, {Purpose::kData, {}}, Handshake::Randomness::With(pair)),
               Handshake::Accepting(key));
  first.Run();
  ASSERT_TRUE(Done(first.connected));
  const Ends second = NewEnds();
  auto fresh = Handshake::Connecting(key, {Purpose::kData, {}}, Handshake::Randomness::With(pair));
  Write(second.a.get(), first.to_connector);
  EXPECT_FALSE(StepAll(fresh, second.b.get()).ok());
}

// The proof of a connector does not open a connection that the attacker asks of the same process.
TEST(HandshakeTest, AProofForOneChallengeDoesNotAnswerAnother) {
  const Key key = RandomKey();
  const Ends out = NewEnds();
  const Ends in = NewEnds();
  auto connecting = Handshake::Connecting(key, {Purpose::kData, {}});
  auto accepting = Handshake::Accepting(key);
  ASSERT_TRUE(StepAll(accepting, in.a.get()).ok());
  Bytes challenge = ReadAvailable(in.b.get());
  challenge[8] ^= std::byte{1};  // another nonce
  Write(out.b.get(), challenge);
  ASSERT_TRUE(StepAll(connecting, out.a.get()).ok());
  Write(in.b.get(), ReadAvailable(out.b.get()));
  EXPECT_FALSE(StepAll(accepting, in.a.get()).ok());
}

// Any changed bit of any message ends the handshake at one end or the other.
TEST(HandshakeTest, AChangedBitEndsTheHandshake) {
  const Key key = RandomKey();
  const auto pair = std::make_shared<EphemeralPair>(EphemeralPair::Fresh());
  const auto randomness = [&] { return Handshake::Randomness::With(pair); };
  for (size_t at = 0; at < kChallengeBytes + kProofBytes + kWelcomeBytes; at += 3) {
    const Ends left = NewEnds();
    const Ends right = NewEnds();
    auto connecting = Handshake::Connecting(key, {Purpose::kData, ToBytes("h")}, randomness());
    auto accepting = Handshake::Accepting(key, randomness());
    size_t passed = 0;
    const auto pass = [&](int from, int to) {
      Bytes bytes = ReadAvailable(from);
      if (at >= passed && at < passed + bytes.size())
        bytes[at - passed] ^= std::byte(1 << (at % 8));
      passed += bytes.size();
      Write(to, bytes);
    };
    bool failed = !StepAll(accepting, right.a.get()).ok();
    pass(right.b.get(), left.b.get());
    failed = failed || !StepAll(connecting, left.a.get()).ok();
    pass(left.b.get(), right.b.get());
    failed = failed || !StepAll(accepting, right.a.get()).ok();
    pass(right.b.get(), left.b.get());
    failed = failed || !StepAll(connecting, left.a.get()).ok();
    // X25519 ignores the highest bit of a point. The macs cover the bit all the same.
    EXPECT_TRUE(failed) << at;
  }
}

// The points of low order and their twins that are not reduced (RFC 7748; Cremers and Jackson,
// "Prime, Order Please!", 2019).
TEST(HandshakeTest, PointsOfLowOrderAreRefused) {
  Key one = {};
  one[0] = 1;
  Key minus_one;
  minus_one.fill(0xff);
  minus_one[0] = 0xec;
  minus_one[31] = 0x7f;
  Key zero_unreduced = minus_one;
  zero_unreduced[0] = 0xed;
  Key of_order_eight;
  sodium_hex2bin(of_order_eight.data(), of_order_eight.size(),
                 "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800", 64, nullptr,
                 nullptr, nullptr);
  for (const Key& point : {Key{}, one, minus_one, zero_unreduced, of_order_eight}) {
    EXPECT_FALSE(EphemeralPair::Fresh().Agree(point).has_value());
    const Ends ends = NewEnds();
    auto connecting = Handshake::Connecting(RandomKey(), {Purpose::kData, {}});
    Write(ends.b.get(), MadeUpChallenge(point));
    const auto step = StepAll(connecting, ends.a.get());
    EXPECT_NE(Sentence(step).find("low order"), std::string::npos) << Sentence(step);
    EXPECT_TRUE(ReadAvailable(ends.b.get()).empty());
  }
  EXPECT_TRUE(EphemeralPair::Fresh().Agree(EphemeralPair::Fresh().public_key()).has_value());
}

// A stranger costs the acceptor no operation on the curve: a point of low order goes unseen behind
// a wrong mac.
TEST(HandshakeTest, TheMacIsCheckedBeforeTheCurve) {
  const Ends ends = NewEnds();
  auto accepting = Handshake::Accepting(RandomKey());
  Write(ends.b.get(), Bytes(kProofBytes));
  EXPECT_NE(Sentence(StepAll(accepting, ends.a.get())).find("does not hold this job's key"),
            std::string::npos);
}

// One ephemeral pair at each end, two connections: the records of the first mean nothing on the
// second.
TEST(HandshakeTest, ConnectionsWithTheSamePairsHaveKeysOfTheirOwn) {
  const Key key = RandomKey();
  const auto pair = std::make_shared<EphemeralPair>(EphemeralPair::Fresh());
  std::vector<Bytes> records;
  std::vector<SealedSocket> receivers;
  std::vector<UniqueFd> wires;
  for (int i = 0; i < 2; ++i) {
    Middle middle(
        Handshake::Connecting(key, {Purpose::kData, {}}, Handshake::Randomness::With(pair)),
        Handshake::Accepting(key, Handshake::Randomness::With(pair)));
    middle.Run();
    ASSERT_TRUE(Done(middle.connected) && Done(middle.accepted));
    SealedSocket sender = middle.connecting.Seal(std::move(middle.left.a));
    ASSERT_EQ(*sender.TrySend(ToBytes("the same")), 8u);
    records.push_back(ReadAvailable(middle.left.b.get()));
    receivers.push_back(middle.accepting.Seal(std::move(middle.right.a)));
    wires.push_back(std::move(middle.right.b));
  }
  EXPECT_NE(records[0], records[1]);
  Bytes opened;
  Write(wires[1].get(), records[0]);
  EXPECT_FALSE(receivers[1].TryRecv(opened).ok());
  Write(wires[0].get(), records[0]);
  EXPECT_TRUE(receivers[0].TryRecv(opened).ok());
  EXPECT_EQ(ToText(opened), "the same");
}

// The connector's end comes at every place of the exchange.
TEST(HandshakeTest, AnEndAtAnyPlaceIsAFailure) {
  const Key key = RandomKey();
  Middle whole(Handshake::Connecting(key, {Purpose::kData, {}}), Handshake::Accepting(key));
  whole.Run();
  for (size_t size = 0; size < kChallengeBytes + kWelcomeBytes; size += 5) {
    const Ends ends = NewEnds();
    auto connecting = Handshake::Connecting(key, {Purpose::kData, {}});
    Write(ends.b.get(), std::span(whole.to_connector).first(size));
    shutdown(ends.b.get(), SHUT_WR);
    EXPECT_FALSE(StepAll(connecting, ends.a.get()).ok()) << size;
  }
  for (size_t size = 0; size < kProofBytes; size += 5) {
    const Ends ends = NewEnds();
    auto accepting = Handshake::Accepting(key);
    Write(ends.b.get(), std::span(whole.to_acceptor).first(size));
    shutdown(ends.b.get(), SHUT_WR);
    EXPECT_NE(Sentence(StepAll(accepting, ends.a.get())).find("was closed"), std::string::npos);
  }
}

TEST(HandshakeTest, OtherReleasesAreNamed) {
  const auto sentence = [](const char* magic, size_t size) {
    const Ends ends = NewEnds();
    auto connecting = Handshake::Connecting(RandomKey(), {Purpose::kData, {}});
    Bytes said = ToBytes(magic);
    said.resize(size);
    Write(ends.b.get(), said);
    return Sentence(StepAll(connecting, ends.a.get()));
  };
  EXPECT_NE(sentence("TUTTIHS1", 40).find("an older release"), std::string::npos);
  EXPECT_NE(sentence("TUTTIHS3", 100).find("a newer release"), std::string::npos);
  EXPECT_NE(sentence("SSH-2.0-", 20).find("not of this library"), std::string::npos);
  // An older connector reads the challenge and hangs up.
  const Ends ends = NewEnds();
  auto accepting = Handshake::Accepting(RandomKey());
  ASSERT_TRUE(StepAll(accepting, ends.a.get()).ok());
  EXPECT_EQ(ReadAvailable(ends.b.get()).size(), kChallengeBytes);
  shutdown(ends.b.get(), SHUT_WR);
  EXPECT_NE(Sentence(StepAll(accepting, ends.a.get())).find("the same release"), std::string::npos);
}

TEST(HandshakeTest, SeededGarbageNeverOpensAConnection) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const Ends ends = NewEnds();
    auto side = i % 2 == 0 ? Handshake::Accepting(RandomKey())
                           : Handshake::Connecting(RandomKey(), {Purpose::kRoot, {}});
    Bytes garbage(random() % 600);
    for (std::byte& byte : garbage) byte = std::byte(random());
    if (i % 4 == 1 && garbage.size() > 8) std::memcpy(garbage.data(), "TUTTIHS2", 8);
    Write(ends.a.get(), garbage);
    EXPECT_FALSE(Done(StepAll(side, ends.b.get())));
  }
}

}  // namespace
}  // namespace tutti
