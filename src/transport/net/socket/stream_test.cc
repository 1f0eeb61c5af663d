// Sealed streams: what is written comes out whatever the pieces and places, and nothing damaged
// does. And streams over TCP, whose reader may leave bytes in the socket for a while.

#include "transport/net/socket/stream.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <random>

#include "sys/tcp.h"
#include "transport/net/socket/fuzz_targets.h"

namespace tutti {
namespace {

constexpr Sealing kSealings[] = {Sealing::kChecksum, Sealing::kEncryption};

struct Ends {
  SocketStream connector;
  SocketStream acceptor;
};

Ends Join(Sealing sealing) {
  auto [a, b] = fuzz::JoinedSockets();
  const SessionKeys keys = {RandomKey(), RandomKey()};
  return {SocketStream::Create(std::move(a), sealing, keys, true),
          SocketStream::Create(std::move(b), sealing, keys, false)};
}

std::vector<std::byte> RandomBytes(std::mt19937& random, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Cuts what follows `done` into a few pieces.
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
  for (const Sealing sealing : kSealings) {
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

// Returns what one end writes, as it travels.
std::vector<std::byte> Travelling(SocketStream& stream, int far_end, std::span<std::byte> bytes) {
  const iovec piece = {bytes.data(), bytes.size()};
  EXPECT_EQ(stream.Write({&piece, 1}), static_cast<ssize_t>(bytes.size()));
  std::vector<std::byte> raw(bytes.size() + 100);
  const ssize_t got = ::recv(far_end, raw.data(), raw.size(), 0);
  raw.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return raw;
}

TEST(SocketStreamTest, GivesOutNothingThatWasDamagedAnywhere) {
  for (const Sealing sealing : kSealings) {
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
  for (const Sealing sealing : kSealings) {
    Ends ends = Join(sealing);
    std::vector<std::byte> bytes(100, std::byte{7});
    const std::vector<std::byte> raw = Travelling(ends.connector, ends.acceptor.fd(), bytes);
    const iovec where = {bytes.data(), bytes.size()};
    for (const ssize_t expected : {ssize_t{100}, ssize_t{-1}}) {
      ASSERT_EQ(::send(ends.connector.fd(), raw.data(), raw.size(), 0), ssize_t(raw.size()));
      EXPECT_EQ(ends.acceptor.Read({&where, 1}), expected);
    }
  }
  Ends ends = Join(Sealing::kEncryption);
  std::vector<std::byte> bytes(100, std::byte{7});
  const std::vector<std::byte> raw = Travelling(ends.connector, ends.acceptor.fd(), bytes);
  EXPECT_TRUE(std::search(raw.begin(), raw.end(), bytes.begin(), bytes.begin() + 8) == raw.end());
  ASSERT_EQ(::send(ends.acceptor.fd(), raw.data(), raw.size(), 0), ssize_t(raw.size()));
  const iovec where = {bytes.data(), bytes.size()};
  EXPECT_EQ(ends.connector.Read({&where, 1}), -1);  // reflected
}

// Two ends over this host's loopback.
Ends JoinByTcp(Sealing sealing) {
  SocketAddress address = ParseSocketAddress("127.0.0.1:0").value();
  const UniqueFd listening = Listen(address).value();
  UniqueFd a = Connect(address, {Deadline::AfterSeconds(10), nullptr}).value();
  UniqueFd b;
  while (!b.valid()) b = Accept(listening.get(), nullptr).value();
  const SessionKeys keys = {RandomKey(), RandomKey()};
  return {SocketStream::Create(std::move(a), sealing, keys, true),
          SocketStream::Create(std::move(b), sealing, keys, false)};
}

size_t BytesInSocket(const SocketStream& stream) {
  int bytes = 0;
  EXPECT_EQ(ioctl(stream.fd(), FIONREAD, &bytes), 0);
  return static_cast<size_t>(bytes);
}

void WriteAll(SocketStream& stream, std::span<std::byte> bytes) {
  const iovec piece = {bytes.data(), bytes.size()};
  ASSERT_EQ(stream.Write({&piece, 1}), static_cast<ssize_t>(bytes.size()));
}

// Looks at the stream, which must have nothing.
void ExpectNothing(SocketStream& stream, size_t awaited) {
  std::byte byte;
  const iovec place = {&byte, 1};
  ASSERT_EQ(stream.Read({&place, 1}, awaited), -1);
  ASSERT_EQ(errno, EAGAIN);
}
void AwaitInput(const SocketStream& stream) {
  pollfd entry = {stream.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 10'000), 1);
}
std::vector<std::byte> ReadOnce(SocketStream& stream, size_t awaited) {
  std::vector<std::byte> bytes(1000);
  const iovec place = {bytes.data(), bytes.size()};
  const ssize_t got = stream.Read({&place, 1}, awaited);
  EXPECT_GT(got, 0);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}

TEST(SocketStreamTest, LeavesFewAwaitedBytesInTheSocketUntilTheyAreTakenOut) {
  std::mt19937 random(1);
  Ends ends = JoinByTcp(Sealing::kNone);
  for (int i = 0; i < 50; ++i) {
    ExpectNothing(ends.acceptor, 32);
    std::vector<std::byte> bytes = RandomBytes(random, 32);
    WriteAll(ends.connector, bytes);
    AwaitInput(ends.acceptor);
    EXPECT_EQ(ReadOnce(ends.acceptor, 32), bytes);
    EXPECT_EQ(BytesInSocket(ends.acceptor), 32u);
    if (i % 2 == 0) {
      ends.acceptor.TakeOut();
      EXPECT_EQ(BytesInSocket(ends.acceptor), 0u);
    }
    if (i % 5 == 0) WriteAll(ends.acceptor, bytes);  // As grants are.
  }
}

TEST(SocketStreamTest, TakesOutAtOnceWhatIsLongOrNotAwaitedOrWasThereBefore) {
  std::mt19937 random(2);
  Ends ends = JoinByTcp(Sealing::kNone);
  std::vector<std::byte> bytes = RandomBytes(random, 32);
  for (const size_t awaited : {0, 1000, 60'000}) {
    for (int i = 0; i < 40; ++i) {
      ExpectNothing(ends.acceptor, awaited);
      WriteAll(ends.connector, bytes);
      AwaitInput(ends.acceptor);
      EXPECT_EQ(ReadOnce(ends.acceptor, awaited), bytes);
      EXPECT_EQ(BytesInSocket(ends.acceptor), 0u);
    }
  }
  WriteAll(ends.connector, bytes);
  AwaitInput(ends.acceptor);
  EXPECT_EQ(ReadOnce(ends.acceptor, 32), bytes);
  EXPECT_EQ(BytesInSocket(ends.acceptor), 0u);
}

// Sockets of other kinds cannot take bytes out unseen.
TEST(SocketStreamTest, LeavesNothingInSocketsThatAreNotOfTcp) {
  std::mt19937 random(3);
  auto [a, b] = fuzz::JoinedSockets();
  Ends ends = {std::move(a), std::move(b)};
  for (int i = 0; i < 3; ++i) {
    ExpectNothing(ends.acceptor, 32);
    std::vector<std::byte> bytes = RandomBytes(random, 32);
    WriteAll(ends.connector, bytes);
    EXPECT_EQ(ReadOnce(ends.acceptor, 32), bytes);
    EXPECT_EQ(BytesInSocket(ends.acceptor), 0u);
  }
}

TEST(SocketStreamTest, GivesOutEveryByteOnceHoweverItIsAwaited) {
  for (const Sealing sealing : {Sealing::kNone, Sealing::kChecksum, Sealing::kEncryption}) {
    for (unsigned seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937 random(seed);
      Ends ends = JoinByTcp(sealing);
      std::vector<std::byte> sent = RandomBytes(random, 100'000);
      std::vector<std::byte> received(sent.size() + 1000);
      size_t written = 0;
      size_t read = 0;
      while (read < sent.size()) {
        if (written < sent.size() && random() % 4 == 0) {
          const size_t part = std::min<size_t>(1 + random() % 300, sent.size() - written);
          WriteAll(ends.connector, std::span(sent).subspan(written, part));
          written += part;
        }
        const iovec place = {&received[read], 1 + random() % 1000};
        const ssize_t got = ends.acceptor.Read({&place, 1}, random() % 8 == 0 ? 0 : 100);
        ASSERT_TRUE(got > 0 || (got < 0 && errno == EAGAIN));
        if (got > 0) read += static_cast<size_t>(got);
        if (random() % 8 == 0) ends.acceptor.TakeOut();
      }
      received.resize(sent.size());
      EXPECT_TRUE(sent == received);
    }
  }
}

TEST(SocketStreamTest, TellsOfAResetThatComesWhileBytesAreLeftInTheSocket) {
  std::mt19937 random(4);
  Ends ends = JoinByTcp(Sealing::kNone);
  ExpectNothing(ends.acceptor, 32);
  std::vector<std::byte> bytes = RandomBytes(random, 32);
  WriteAll(ends.connector, bytes);
  AwaitInput(ends.acceptor);
  EXPECT_EQ(ReadOnce(ends.acceptor, 32), bytes);
  ends.connector.Reset();
  pollfd entry = {ends.acceptor.fd(), 0, 0};
  ASSERT_EQ(poll(&entry, 1, 10'000), 1);
  ends.acceptor.TakeOut();
  std::byte byte;
  const iovec place = {&byte, 1};
  EXPECT_EQ(ends.acceptor.Read({&place, 1}, 32), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

}  // namespace
}  // namespace tutti
