// Tests the messages of the control socket: whole, in parts, and damaged.

#include "transport/net/verbs/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "bootstrap/testing/sealed_pair.h"
#include "transport/net/verbs/fault.h"
#include "transport/net/verbs/table.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

VerbsEnd SomeEnd() {
  VerbsEnd end;
  end.ethernet = end.iwarp = end.notices = true;
  end.managed.port = 40'000;
  end.managed.token[15] = std::byte{3};
  end.first_packet = 0xabcdef;
  end.table_address = 0x7f0012345000;
  end.ports.resize(2);
  end.ports[0].mtu = 5;
  end.ports[1].lid = 17;
  end.ports[1].gid[15] = 9;
  end.ports[1].speed_mbps = 400'000;
  end.ports[1].table_key = 0xdeadbeef;
  end.queue_pairs = {{17, 0}, {0xffffff, 1}, {3, 0}};
  end.name = "mlx5_0 (10.0.0.1)";
  return end;
}

struct Sockets {
  Sockets() {
    auto [a, b] = testing::SealedPair();
    here = ControlSocket(std::move(a));
    there = ControlSocket(std::move(b));
  }
  ControlSocket here;
  ControlSocket there;
};

TEST(VerbsEndTest, ReadsBackWhatItWrote) {
  const VerbsEnd end = SomeEnd();
  const auto read = VerbsEnd::Decode(end.Encode());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->ethernet, end.ethernet);
  EXPECT_EQ(read->iwarp, end.iwarp);
  EXPECT_EQ(read->notices, end.notices);
  EXPECT_EQ(read->managed.port, end.managed.port);
  EXPECT_EQ(read->managed.token, end.managed.token);
  EXPECT_EQ(read->first_packet, end.first_packet);
  EXPECT_EQ(read->table_address, end.table_address);
  EXPECT_EQ(read->own, end.own);
  ASSERT_EQ(read->ports.size(), 2u);
  EXPECT_EQ(read->ports[0].mtu, 5);
  EXPECT_EQ(read->ports[1].lid, 17);
  EXPECT_EQ(read->ports[1].gid, end.ports[1].gid);
  EXPECT_EQ(read->ports[1].speed_mbps, 400'000u);
  EXPECT_EQ(read->ports[1].table_key, 0xdeadbeefu);
  ASSERT_EQ(read->queue_pairs.size(), 3u);
  EXPECT_EQ(read->queue_pairs[1].number, 0xffffffu);
  EXPECT_EQ(read->queue_pairs[1].port, 1);
  EXPECT_EQ(read->name, end.name);
}

TEST(VerbsEndTest, TheMostQueuePairsFitIntoAMessage) {
  VerbsEnd end = SomeEnd();
  end.queue_pairs.assign(kMaxQueuePairs, {1, 3});
  end.ports.resize(kMaxPorts);
  EXPECT_LE(end.Encode().size(), kMaxControlPayload);
  EXPECT_TRUE(VerbsEnd::Decode(end.Encode()).ok());
}

TEST(VerbsEndTest, RefusesWhatCannotBe) {
  const auto refused = [](const std::function<void(VerbsEnd&)>& change) {
    VerbsEnd end = SomeEnd();
    change(end);
    const auto read = VerbsEnd::Decode(end.Encode());
    return read.status().code() == Code::kRemoteError;
  };
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.ports[1].mtu = 0; }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.ports[0].mtu = 6; }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.own = 0; }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.own = 3; }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.ports.clear(); }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.ports.resize(kMaxPorts + 1); }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.ports.resize(1); }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.queue_pairs.clear(); }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.queue_pairs.assign(kMaxQueuePairs + 1, {}); }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.queue_pairs[1].port = 2; }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.first_packet = 1 << 24; }));
  EXPECT_TRUE(refused([](VerbsEnd& end) { end.table_address += 1; }));
}

TEST(AnswerAgainTest, ReadsBackWhatItWrote) {
  AnswerAgain answer;
  answer.groups.posted = 1000;
  for (const uint64_t group : {745, 900, 1000}) answer.groups.Miss(group);
  answer.end = SomeEnd();
  answer.end.queue_pairs.resize(kMaxQueuePairs, {7, 1});
  answer.end.ports.resize(kMaxPorts);
  const Bytes bytes = answer.Encode();
  EXPECT_LE(bytes.size(), kMaxControlPayload);
  const auto read = AnswerAgain::Decode(bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->end.name, answer.end.name);
  for (const uint64_t group : {1, 743, 746, 899, 999})
    EXPECT_TRUE(read->groups.Has(group)) << group;
  for (const uint64_t group : {745, 900, 1000, 1001})
    EXPECT_FALSE(read->groups.Has(group)) << group;
  // The slot of a missing group belonged to an earlier group, which has come.
  EXPECT_TRUE(read->groups.Has(1000 - 256));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(AnswerAgain::Decode(std::span(bytes).first(length)).ok()) << length;
  }
  answer.groups.posted = ~uint64_t{0};
  EXPECT_FALSE(AnswerAgain::Decode(answer.Encode()).ok());
}

TEST(VerbsEndTest, AnotherVersionIsNamed) {
  Bytes bytes = SomeEnd().Encode();
  bytes[0] = std::byte{99};
  EXPECT_THAT(std::string(VerbsEnd::Decode(bytes).status().message()), HasSubstr("version 99"));
}

TEST(VerbsEndTest, NoDamageIsReadPastTheEnd) {
  const Bytes whole = SomeEnd().Encode();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(VerbsEnd::Decode(std::span(whole).first(length)).ok()) << length;
  }
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    Bytes damaged = whole;
    damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    const auto read = VerbsEnd::Decode(damaged);
    if (read.ok()) {
      EXPECT_LE(read->queue_pairs.size(), kMaxQueuePairs);
    }
  }
}

TEST(ControlSocketTest, CarriesMessagesInOrder) {
  Sockets sockets;
  const Bytes payload(100, std::byte{7});
  ASSERT_TRUE(sockets.here.Send(ControlType::kOffer, payload).ok());
  ASSERT_TRUE(sockets.here.Send(ControlType::kReady, {}).ok());
  ControlMessage message;
  ASSERT_TRUE(*sockets.there.Receive(message));
  EXPECT_EQ(message.type, ControlType::kOffer);
  EXPECT_EQ(message.payload, payload);
  ASSERT_TRUE(*sockets.there.Receive(message));
  EXPECT_EQ(message.type, ControlType::kReady);
  EXPECT_TRUE(message.payload.empty());
  EXPECT_FALSE(*sockets.there.Receive(message));
}

// The socket does not wake a sleeper for a message that was read together with an earlier message.
TEST(ControlSocketTest, SaysThatAFurtherMessageHasCome) {
  Sockets sockets;
  ASSERT_TRUE(sockets.here.Send(ControlType::kReady, {}).ok());
  ASSERT_TRUE(sockets.here.Send(ControlType::kWake, Bytes(8)).ok());
  EXPECT_FALSE(sockets.there.HasStaged());
  ControlMessage message;
  ASSERT_TRUE(*sockets.there.Receive(message));
  EXPECT_TRUE(sockets.there.HasStaged());
  ASSERT_TRUE(*sockets.there.Receive(message));
  EXPECT_EQ(message.type, ControlType::kWake);
  EXPECT_FALSE(sockets.there.HasStaged());
}

TEST(ControlSocketTest, PutsPartsTogether) {
  Sockets sockets;
  const Bytes payload(40, std::byte{9});
  ASSERT_TRUE(sockets.here.Send(ControlType::kAnswer, payload).ok());
  std::byte bytes[24 + 48];  // the header of a record, and the message
  ASSERT_EQ(::recv(sockets.there.fd(), bytes, sizeof(bytes), 0), 24 + 48);
  for (const std::byte byte : bytes) {
    ControlMessage message;
    EXPECT_FALSE(*sockets.there.Receive(message));
    ASSERT_EQ(::send(sockets.here.fd(), &byte, 1, 0), 1);
  }
  ControlMessage message;
  ASSERT_TRUE(*sockets.there.Receive(message));
  EXPECT_EQ(message.payload, payload);
}

TEST(ControlSocketTest, RefusesNonsenseAndTheEnd) {
  for (const char* nonsense : {"12345678", "\x56\x76\x0b\0\0\0\0\0", "\x56\x76\x01\0\0\0\0\x01"}) {
    auto [here, there] = testing::SealedPair();
    ASSERT_EQ(*here.TrySend(std::as_bytes(std::span(nonsense, 8))), 8u);
    ControlMessage message;
    EXPECT_EQ(ControlSocket(std::move(there)).Receive(message).status().code(), Code::kRemoteError);
  }
  Sockets sockets;
  sockets.here.Shutdown();
  ControlMessage message;
  EXPECT_EQ(sockets.there.Receive(message).status().code(), Code::kRemoteError);
}

TEST(ControlSocketTest, ToOneThatDoesNotReadIsAFailureAndNoGrowth) {
  Sockets sockets;
  const Bytes payload(kMaxControlPayload, std::byte{1});
  Status status;
  for (int i = 0; i < 10'000 && status.ok(); ++i) {
    status = sockets.here.Send(ControlType::kOffer, payload);
  }
  EXPECT_EQ(status.code(), Code::kSystemError);
}

TEST(TableTest, AnEntryIsWholeWhenBothItsNumbersAreTheGroups) {
  GrantEntry entry;
  EXPECT_FALSE(IsWhole(entry, 1));
  entry.number = 1;
  EXPECT_FALSE(IsWhole(entry, 1));
  entry.number_again = 1;
  EXPECT_TRUE(IsWhole(entry, 1));
  EXPECT_FALSE(IsWhole(entry, 257));
  EXPECT_TRUE(IsWhole(entry, (uint64_t{1} << 32) + 1));
}

VerbsLibrary Words() {
  VerbsLibrary library;
  library.wc_status_str = [](ibv_wc_status) { return "transport retry counter exceeded"; };
  library.event_type_str = [](ibv_event_type) { return "port error"; };
  return library;
}

TEST(FaultTest, NamesPortPeerStatusAndWhatToTry) {
  ibv_wc completion = {};
  completion.status = IBV_WC_RETRY_EXC_ERR;
  completion.vendor_err = 0x81;
  const Status status = DescribeCompletion(Words(), completion, "writing 4096 bytes",
                                           "mlx5_0 (10.0.0.1)", "mlx5_3 (10.0.0.2)", {});
  EXPECT_EQ(status.code(), Code::kRemoteError);
  const std::string text(status.message());
  for (const char* part : {"writing 4096 bytes", "mlx5_0 (10.0.0.1)", "mlx5_3 (10.0.0.2)",
                           "transport retry counter exceeded", "0x81", "NCCL_IB_TIMEOUT=20"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(FaultTest, BlamesTheHostThatIsTheCause) {
  ibv_wc completion = {};
  completion.status = IBV_WC_LOC_PROT_ERR;
  EXPECT_EQ(DescribeCompletion(Words(), completion, "writing", "a", "b", {}).code(),
            Code::kSystemError);
  completion.status = IBV_WC_REM_ACCESS_ERR;
  EXPECT_EQ(DescribeCompletion(Words(), completion, "writing", "a", "b", {}).code(),
            Code::kRemoteError);
}

TEST(FaultTest, TellsFatalEventsFromOthers) {
  EXPECT_TRUE(IsFatal(IBV_EVENT_DEVICE_FATAL));
  EXPECT_TRUE(IsFatal(IBV_EVENT_QP_FATAL));
  EXPECT_FALSE(IsFatal(IBV_EVENT_PORT_ERR));
  EXPECT_FALSE(IsFatal(IBV_EVENT_PORT_ACTIVE));
  EXPECT_THAT(DescribeEvent(Words(), IBV_EVENT_PORT_ERR, "mlx5_0", 2), HasSubstr("mlx5_0 port 2"));
}

TEST(FaultTest, SaysThatMemoryMayBeLocked) {
  EXPECT_THAT(std::string(DescribeRefusal(ENOMEM, "registering", "mlx5_0").message()),
              HasSubstr("ulimit -l"));
}

}  // namespace
}  // namespace tutti
