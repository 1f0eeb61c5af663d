// Sealed streams: written bytes come out unchanged with any pieces and places, and no damaged byte
// comes out.

#include "transport/net/socket/stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <random>

#include "bootstrap/testing/sealed_pair.h"
#include "transport/testing/socket_fuzz_targets.h"

namespace tutti {
namespace {

// Returns the sealings that this processor can use.
std::vector<Sealing> AllSealings() {
  std::vector<Sealing> all = {Sealing::kChecksum, Sealing::kEncryption};
  if (HasAes()) all.push_back(Sealing::kAesEncryption);
  return all;
}

struct Ends {
  SocketStream connector;
  SocketStream acceptor;
};

Ends Join(Sealing sealing) {
  auto [a, b] = testing::SealedPair();
  return {SocketStream::Create(std::move(a), sealing), SocketStream::Create(std::move(b), sealing)};
}

std::vector<std::byte> RandomBytes(std::mt19937& random, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Divides the bytes behind `done` into a few pieces.
std::vector<iovec> Pieces(std::mt19937& random, std::vector<std::byte>& bytes, size_t done) {
  std::vector<iovec> pieces;
  for (size_t at = done; at < bytes.size() && pieces.size() < 4;) {
    const size_t most = random() % 2 == 0 ? 100 : 200'000;
    const size_t part = std::min<size_t>(1 + random() % most, bytes.size() - at);
    pieces.push_back({&bytes[at], part});
    at += part;
  }
  return pieces;
}

TEST(SocketStreamTest, CarriesBytesInOrderInAnyPieces) {
  for (const Sealing sealing : AllSealings()) {
    for (unsigned seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937 random(seed);
      Ends ends = Join(sealing);
      std::vector<std::byte> sent = RandomBytes(random, 1'000'000);
      std::vector<std::byte> received(sent.size());
      size_t written = 0;
      size_t read = 0;
      std::vector<iovec> places;
      while (read < sent.size()) {
        if (written < sent.size()) {
          const ssize_t took = ends.connector.Write(Pieces(random, sent, written));
          ASSERT_TRUE(took > 0 || errno == EAGAIN);
          if (took > 0) written += static_cast<size_t>(took);
        }
        if (places.empty()) places = Pieces(random, received, read);
        const ssize_t got = ends.acceptor.Read(places);
        ASSERT_TRUE(got > 0 || errno == EAGAIN);
        if (got <= 0) continue;
        read += static_cast<size_t>(got);
        places.clear();
      }
      EXPECT_TRUE(sent == received);
      EXPECT_FALSE(ends.acceptor.HasInput());
    }
  }
}

// Returns the output of one end in the form in which it travels.
std::vector<std::byte> Travelling(SocketStream& stream, int far_end, std::span<std::byte> bytes) {
  const iovec piece = {bytes.data(), bytes.size()};
  EXPECT_EQ(stream.Write({&piece, 1}), static_cast<ssize_t>(bytes.size()));
  std::vector<std::byte> raw(bytes.size() + 100);
  const ssize_t got = ::recv(far_end, raw.data(), raw.size(), 0);
  raw.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return raw;
}

TEST(SocketStreamTest, GivesOutNothingThatWasDamagedAnywhere) {
  for (const Sealing sealing : AllSealings()) {
    for (const size_t size : {1, 300, 20'000}) {
      std::mt19937 random(5);
      for (size_t trial = 0; trial < 150; ++trial) {
        Ends ends = Join(sealing);
        std::vector<std::byte> bytes = RandomBytes(random, size);
        std::vector<std::byte> raw = Travelling(ends.connector, ends.acceptor.fd(), bytes);
        const size_t header = sealing == Sealing::kChecksum ? 12 : 24;
        ASSERT_EQ(raw.size(), header + size);
        // Every byte of the header, and some of the rest.
        const size_t at = trial < header ? trial : random() % raw.size();
        raw[at] ^= static_cast<std::byte>(1u << random() % 8);
        ASSERT_EQ(::send(ends.connector.fd(), raw.data(), raw.size(), 0), ssize_t(raw.size()));
        std::vector<std::byte> place(size);
        const iovec where = {place.data(), place.size()};
        for (int again = 0; again < 2; ++again) {
          EXPECT_EQ(ends.acceptor.Read({&where, 1}), -1);
          EXPECT_EQ(errno, EBADMSG) << "byte " << at;
        }
      }
    }
  }
}

// A record that comes twice, or from another direction or socket, is damage.
TEST(SocketStreamTest, RefusesRecordsOutOfTheirPlace) {
  for (const Sealing sealing : AllSealings()) {
    Ends ends = Join(sealing);
    std::vector<std::byte> bytes(100, std::byte{7});
    const std::vector<std::byte> raw = Travelling(ends.connector, ends.acceptor.fd(), bytes);
    const iovec where = {bytes.data(), bytes.size()};
    for (const ssize_t expected : {ssize_t{100}, ssize_t{-1}}) {
      ASSERT_EQ(::send(ends.connector.fd(), raw.data(), raw.size(), 0), ssize_t(raw.size()));
      EXPECT_EQ(ends.acceptor.Read({&where, 1}), expected);
    }
  }
  for (const Sealing sealing : AllSealings()) {
    if (sealing == Sealing::kChecksum) continue;
    Ends ends = Join(sealing);
    std::vector<std::byte> bytes(100, std::byte{7});
    const std::vector<std::byte> raw = Travelling(ends.connector, ends.acceptor.fd(), bytes);
    EXPECT_TRUE(std::search(raw.begin(), raw.end(), bytes.begin(), bytes.begin() + 8) == raw.end());
    ASSERT_EQ(::send(ends.acceptor.fd(), raw.data(), raw.size(), 0), ssize_t(raw.size()));
    const iovec where = {bytes.data(), bytes.size()};
    EXPECT_EQ(ends.connector.Read({&where, 1}), -1);  // reflected
  }
}

TEST(SealingTest, TheFasterCipherIsTakenOnlyWhereBothEndsHaveIt) {
  EXPECT_EQ(FastestSealing(Sealing::kEncryption, false), Sealing::kEncryption);
  EXPECT_EQ(FastestSealing(Sealing::kEncryption, true), Sealing::kAesEncryption);
  for (const Sealing other : {Sealing::kNone, Sealing::kChecksum}) {
    EXPECT_EQ(FastestSealing(other, true), other);
    EXPECT_FALSE(Takes(other, true, Sealing::kAesEncryption));
    EXPECT_FALSE(Takes(Sealing::kEncryption, true, other)) << "encryption cannot be talked away";
  }
  EXPECT_TRUE(Takes(Sealing::kEncryption, false, Sealing::kEncryption));
  EXPECT_TRUE(Takes(Sealing::kEncryption, true, Sealing::kAesEncryption));
  EXPECT_FALSE(Takes(Sealing::kEncryption, false, Sealing::kAesEncryption));
}

}  // namespace
}  // namespace tutti
