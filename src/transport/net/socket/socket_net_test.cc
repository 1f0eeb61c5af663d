// Setting connections up: listeners, tokens, keys, and peers without the key.

#include "transport/net/socket/socket_net.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <random>
#include <thread>

#include "bootstrap/auth.h"
#include "bootstrap/wire.h"
#include "testing/threads.h"
#include "transport/net/socket/listener.h"
#include "transport/testing/socket_fuzz_targets.h"

namespace tutti {
namespace {

class SocketNetTest : public ::testing::Test {
 protected:
  std::unique_ptr<Net> MakeNet(const Key& key, const Settings& settings = {},
                               const char* address = "127.0.0.1:0") {
    SocketNet::Options options;
    options.address = ParseSocketAddress(address).value();
    return SocketNet::Create(*loop_, key, settings, options).value();
  }
  static WaitLimits Within(double seconds) { return {Deadline::AfterSeconds(seconds), nullptr}; }
  // Returns the listening address in a handle; the format is in socket_net.cc.
  static SocketAddress AddressIn(const NetHandle& handle) {
    WireReader reader(handle);
    reader.U64();
    return reader.Address();
  }
  // Sends one chunk over a fresh connection.
  static void ProveConnected(NetSendComm& sender, NetRecvComm& receiver) {
    const std::byte sent{42};
    std::byte received{0};
    NetRequest* const receiving = fuzz::ReceiveOne(receiver, &received, 1).value();
    NetRequest* const sending = sender.Isend({&sent, 1, 0, 7}).value();
    ASSERT_TRUE(receiving && sending);
    for (const Deadline deadline = Deadline::AfterSeconds(20); !deadline.Passed();) {
      ASSERT_TRUE(sender.Progress().ok());
      ASSERT_TRUE(receiver.Progress().ok());
      if (receiver.Test(*receiving).value()) break;
    }
    EXPECT_EQ(received, sent);
    EXPECT_EQ(receiving->received[0].op_tag, 7u);
  }

  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("net-test").value();
  const Key key_ = RandomKey();
};

TEST_F(SocketNetTest, ConnectsWithoutAnyoneInAccept) {
  for (const char* address : {"127.0.0.1:0", "[::1]:0"}) {
    const auto net = MakeNet(key_, {}, address);
    EXPECT_TRUE(net->IsViable().ok());
    ASSERT_EQ(net->devices().size(), 1u);
    EXPECT_EQ(net->devices()[0].name, "lo");
    const auto listener = net->Listen(0).value();
    const auto sender = net->Connect(0, listener->handle(), Within(20)).value();
    const auto receiver = listener->Accept(Within(20)).value();
    ProveConnected(*sender, *receiver);
  }
}

TEST_F(SocketNetTest, ATokenLeadsToItsListener) {
  const auto net = MakeNet(key_);
  const auto first = net->Listen(0).value();
  const auto second = net->Listen(0).value();
  const auto to_second = net->Connect(0, second->handle(), Within(20)).value();
  const auto to_first = net->Connect(0, first->handle(), Within(20)).value();
  const auto at_first = first->Accept(Within(20)).value();
  const auto at_second = second->Accept(Within(20)).value();
  ProveConnected(*to_first, *at_first);
  ProveConnected(*to_second, *at_second);
}

TEST_F(SocketNetTest, TheConnectingSideChoosesTheDataSockets) {
  Settings many;
  many.nsocks_perthread = 3;
  many.socket_nthreads = 2;
  const auto sending = MakeNet(key_, many);
  const auto receiving = MakeNet(key_);
  const auto listener = receiving->Listen(0).value();
  const auto sender = sending->Connect(0, listener->handle(), Within(20)).value();
  const auto receiver = listener->Accept(Within(20)).value();
  ProveConnected(*sender, *receiver);
  std::vector<int> fds;
  receiver->AppendFds(fds);
  EXPECT_EQ(fds.size(), 7u);  // control and six data sockets, driven without helpers here
}

TEST_F(SocketNetTest, RefusesAnotherKeyOnBothSides) {
  const auto net = MakeNet(key_);
  const auto listener = net->Listen(0).value();
  const auto outsider = MakeNet(RandomKey());
  const auto refused = outsider->Connect(0, listener->handle(), Within(20));
  EXPECT_FALSE(refused.ok());
  const auto none = listener->Accept(Within(0.1));
  EXPECT_EQ(none.status().code(), Code::kTimeout);
  // The job goes on.
  const auto sender = net->Connect(0, listener->handle(), Within(20)).value();
  const auto receiver = listener->Accept(Within(20)).value();
  ProveConnected(*sender, *receiver);
}

TEST_F(SocketNetTest, GarbageAndHalfOpenConnectionsHaveNoEffect) {
  const auto net = MakeNet(key_);
  const auto listener = net->Listen(0).value();
  const SocketAddress address = AddressIn(listener->handle());
  std::mt19937 random(3);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 60; ++i) {
    UniqueFd fd = tutti::Connect(address, Within(20)).value();
    std::vector<std::byte> garbage(random() % 2000);
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random());
    ::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (i % 3 != 0) silent.push_back(std::move(fd));  // the others hang up at once
  }
  const auto sender = net->Connect(0, listener->handle(), Within(20)).value();
  const auto receiver = listener->Accept(Within(20)).value();
  ProveConnected(*sender, *receiver);
  EXPECT_EQ(listener->Accept(Within(0.05)).status().code(), Code::kTimeout);
}

TEST_F(SocketNetTest, MembersWithNonsensicalHellosAreTurnedAway) {
  const auto net = MakeNet(key_);
  const auto listener = net->Listen(0).value();
  const SocketAddress address = AddressIn(listener->handle());
  WireReader reader(listener->handle());
  reader.U64();
  reader.Address();
  const uint64_t token = reader.U64();
  const auto turned_away = [&](Bytes payload) {
    Result<SealedSocket> socket =
        ConnectAuthenticated(address, key_, {Purpose::kData, std::move(payload)}, Within(20));
    if (!socket.ok()) return false;
    std::byte byte;
    const Status status = socket->RecvAll(std::span(&byte, 1), Within(20));
    return status.code() == Code::kRemoteError;  // closed
  };
  EXPECT_TRUE(turned_away({}));
  EXPECT_TRUE(turned_away(Bytes(100, std::byte{1})));
  EXPECT_TRUE(turned_away(DataHello{token + 1, 1, 0, 0}.Encode()));  // nobody's token
  EXPECT_TRUE(turned_away(DataHello{token, 1, 5, 4}.Encode()));      // socket 5 of 4
  EXPECT_TRUE(turned_away(DataHello{token, 1, 0, 65535}.Encode()));  // too many data sockets
  Bytes other_version = DataHello{token, 1, 0, 0}.Encode();
  other_version[0] = std::byte{99};
  EXPECT_TRUE(turned_away(other_version));
  // A socket that comes twice is closed. The set of the first socket stays open for the rest.
  const auto first = ConnectAuthenticated(
      address, key_, {Purpose::kData, DataHello{token, 9, 0, 1}.Encode()}, Within(20));
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(turned_away(DataHello{token, 9, 0, 1}.Encode()));
  EXPECT_TRUE(turned_away(DataHello{token, 9, 1, 2}.Encode()));  // disagrees about the number
  const auto last = ConnectAuthenticated(
      address, key_, {Purpose::kData, DataHello{token, 9, 1, 1}.Encode()}, Within(20));
  EXPECT_TRUE(listener->Accept(Within(20)).ok());
}

TEST_F(SocketNetTest, AnIncompleteSetIsNotAccepted) {
  const auto net = MakeNet(key_);
  const auto listener = net->Listen(0).value();
  WireReader reader(listener->handle());
  reader.U64();
  reader.Address();
  const uint64_t token = reader.U64();
  const auto control =
      ConnectAuthenticated(AddressIn(listener->handle()), key_,
                           {Purpose::kData, DataHello{token, 1, 0, 2}.Encode()}, Within(20));
  ASSERT_TRUE(control.ok());
  EXPECT_EQ(listener->Accept(Within(0.1)).status().code(), Code::kTimeout);
}

TEST_F(SocketNetTest, AClosedListenerTurnsConnectionsAway) {
  const auto net = MakeNet(key_);
  auto listener = net->Listen(0).value();
  const NetHandle handle = listener->handle();
  listener.reset();
  // The handshake succeeds, since the port is shared. The connection then ends at its first use.
  const auto sender = net->Connect(0, handle, Within(20));
  ASSERT_TRUE(sender.ok());
  const std::byte byte{1};
  Status status;
  for (const Deadline deadline = Deadline::AfterSeconds(20); status.ok() && !deadline.Passed();) {
    status = sender.value()->Isend({&byte, 1}).status();
    if (status.ok()) status = sender.value()->Progress().status();
  }
  EXPECT_EQ(status.code(), Code::kRemoteError);
}

TEST_F(SocketNetTest, WaitsEndAtTheDeadlineAndWithTheAbortFlag) {
  const auto net = MakeNet(key_);
  const auto listener = net->Listen(0).value();
  std::atomic<bool> abort = false;
  std::thread aborter([&, waiting = testing::ThisThread()] {
    EXPECT_TRUE(testing::AwaitAsleep(waiting));
    abort.store(true);
  });
  const int64_t before_ns = NowNs();
  const auto aborted = listener->Accept({Deadline::Never(), &abort});
  aborter.join();
  EXPECT_FALSE(aborted.ok());
  EXPECT_LT(NowNs() - before_ns, 10'000'000'000);
  // A listener that never answers.
  SocketAddress silent = ParseSocketAddress("127.0.0.1:0").value();
  const UniqueFd listening = tutti::Listen(silent).value();
  NetHandle handle = listener->handle();
  WireWriter writer;
  writer.Address(silent);
  const Bytes bytes = std::move(writer).Take();
  std::memcpy(&handle[8], bytes.data(), bytes.size());
  EXPECT_EQ(net->Connect(0, handle, Within(0.1)).status().code(), Code::kTimeout);
}

TEST_F(SocketNetTest, RefusesHandlesAndDevicesThatAreNone) {
  const auto net = MakeNet(key_);
  EXPECT_FALSE(net->Connect(0, NetHandle{}, Within(1)).ok());
  EXPECT_FALSE(net->Listen(1).ok());
  EXPECT_FALSE(net->Listen(-1).ok());
}

TEST_F(SocketNetTest, SaysWhyNoInterfaceIsLeft) {
  Settings settings;
  settings.socket_ifname = "=no-such-interface";
  const auto net = SocketNet::Create(*loop_, key_, settings, {}).value();
  EXPECT_EQ(net->IsViable().code(), Code::kInvalidUsage);
  EXPECT_TRUE(net->devices().empty());
}

}  // namespace
}  // namespace tutti
