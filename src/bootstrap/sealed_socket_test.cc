#include "bootstrap/sealed_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <string>

#include "bootstrap/testing/sealed_pair.h"
#include "bootstrap/testing/thread_ranks.h"

namespace tutti {
namespace {

using testing::ToBytes;
using testing::ToText;

// Limits of a wait that begins now.
WaitLimits Limits() { return {Deadline::AfterSeconds(60), nullptr}; }

// A connection whose bytes pass through the test's hands.
struct Wire {
  Wire() {
    int left[2];
    int right[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, left), 0);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, right), 0);
    const SecretKey there{Random<Key>()};
    const SecretKey back{Random<Key>()};
    sender = SealedSocket(UniqueFd(left[0]), there, back);
    receiver = SealedSocket(UniqueFd(right[0]), back, there);
    from_sender.Reset(left[1]);
    to_receiver.Reset(right[1]);
  }

  // Returns the records in which `text` leaves.
  Bytes Records(std::string_view text) {
    EXPECT_EQ(*sender.TrySend(ToBytes(text)), text.size());
    Bytes bytes(text.size() + 100);
    bytes.resize(static_cast<size_t>(*TryRecv(from_sender.get(), bytes)));
    return bytes;
  }
  // Returns what the receiver makes of the bytes.
  Result<std::string> Deliver(std::span<const std::byte> bytes) {
    EXPECT_TRUE(SendAll(to_receiver.get(), bytes, Limits()).ok());
    Bytes opened;
    for (;;) {
      TUTTI_ASSIGN(const int64_t got, receiver.TryRecv(opened));
      if (got == kEndOfStream) return RemoteError("the end");
      if (got == 0) return ToText(opened);
    }
  }

  SealedSocket sender;
  SealedSocket receiver;
  UniqueFd from_sender;
  UniqueFd to_receiver;
};

TEST(SealedSocketTest, CarriesBytesInAnyPieces) {
  auto [a, b] = testing::SealedPair();
  std::mt19937 random(5);
  Bytes sent(1'000'000);
  for (std::byte& byte : sent) byte = std::byte(random());
  Bytes received;
  for (size_t at = 0; received.size() < sent.size();) {
    const size_t most = 1 + random() % 200'000;
    const auto taken = a.TrySend(std::span(sent).subspan(at, std::min(most, sent.size() - at)));
    ASSERT_TRUE(taken.ok());
    at += *taken;
    if (random() % 3 == 0) continue;
    const auto got = b.TryRecv(received);
    ASSERT_TRUE(got.ok()) << got.status().message();
  }
  EXPECT_EQ(received, sent);
}

TEST(SealedSocketTest, WaitsUntilAllHasMoved) {
  auto [a, b] = testing::SealedPair();
  const Bytes sent(3'000'000, std::byte{5});
  Bytes received(sent.size());
  testing::ForEach(2, [&, &from = a, &to = b](int side) {
    const Status status = side == 0 ? from.SendAll(sent, Limits()) : to.RecvAll(received, Limits());
    EXPECT_TRUE(status.ok()) << status.message();
  });
  EXPECT_EQ(received, sent);
  // A read of few bytes keeps the rest for the next.
  ASSERT_TRUE(a.SendAll(ToBytes("headbody"), Limits()).ok());
  Bytes part(4);
  ASSERT_TRUE(b.RecvAll(part, Limits()).ok());
  EXPECT_EQ(ToText(part), "head");
  ASSERT_TRUE(b.RecvAll(part, Limits()).ok());
  EXPECT_EQ(ToText(part), "body");
  a.Reset();
  EXPECT_EQ(b.RecvAll(part, Limits()).code(), Code::kRemoteError);
}

TEST(SealedSocketTest, NothingReadableTravels) {
  Wire wire;
  const std::string secret = "a unique id that nobody may read";
  const std::string travelled = ToText(wire.Records(secret));
  EXPECT_EQ(travelled.find(secret.substr(0, 8)), std::string::npos);
  EXPECT_EQ(travelled.size(), secret.size() + RecordSeal::kMostHeaderBytes);
}

TEST(SealedSocketTest, AnyChangedBitBreaksTheConnection) {
  const size_t bits = Wire().Records("word").size() * 8;
  for (size_t bit = 0; bit < bits; ++bit) {
    Wire wire;
    Bytes records = wire.Records("word");
    records[bit / 8] ^= std::byte(1 << (bit % 8));
    const auto got = wire.Deliver(records);
    EXPECT_FALSE(got.ok()) << bit;
  }
}

TEST(SealedSocketTest, RepeatedMissingAndInjectedRecordsBreakTheConnection) {
  const auto deliver = [](const std::function<Bytes(Bytes one, Bytes two)>& change) {
    Wire wire;
    Bytes one = wire.Records("one");
    Bytes two = wire.Records("two");
    return wire.Deliver(change(std::move(one), std::move(two)));
  };
  const auto both = [](Bytes first, const Bytes& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  EXPECT_EQ(*deliver([&](Bytes one, Bytes two) { return both(one, two); }), "onetwo");
  EXPECT_FALSE(deliver([&](Bytes one, Bytes) { return both(one, one); }).ok());
  EXPECT_FALSE(deliver([&](Bytes, Bytes two) { return two; }).ok());
  EXPECT_FALSE(deliver([&](Bytes one, Bytes two) { return both(two, one); }).ok());
  EXPECT_FALSE(deliver([&](Bytes one, Bytes) { return both(one, Wire().Records("one")); }).ok());
}

// Bytes that the sender itself would receive do not open at the sender (reflection).
TEST(SealedSocketTest, ARecordDoesNotOpenAtItsSender) {
  Wire wire;
  const Bytes records = wire.Records("mirror");
  EXPECT_TRUE(SendAll(wire.from_sender.get(), records, Limits()).ok());
  Bytes opened;
  EXPECT_FALSE(wire.sender.TryRecv(opened).ok());
}

TEST(SealedSocketTest, TheEndWithinARecordIsADamageAndBetweenRecordsAnEnd) {
  for (const bool whole : {false, true}) {
    Wire wire;
    Bytes records = wire.Records("word");
    if (!whole) records.pop_back();
    ASSERT_TRUE(SendAll(wire.to_receiver.get(), records, Limits()).ok());
    wire.to_receiver.Reset();
    Bytes opened;
    ASSERT_TRUE(wire.receiver.TryRecv(opened).ok());
    const auto end = wire.receiver.TryRecv(opened);
    EXPECT_EQ(end.ok(), whole);
    if (whole) {
      EXPECT_EQ(*end, kEndOfStream);
    } else {
      EXPECT_NE(end.status().message().find("within a record"), std::string_view::npos);
    }
  }
}

}  // namespace
}  // namespace tutti
