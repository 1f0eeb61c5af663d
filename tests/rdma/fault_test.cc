// Faults, in the virtual machine: a killed process, and a cable between rxe2 and rxe3 (veth v0 and
// v1, made by the script `cable`) that loses packets or is cut.

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "bootstrap/auth.h"
#include "transport/net/verbs/verbs_net.h"
#include "transport/testing/net_contract.h"

namespace tutti {
namespace {

using net_contract::NetBuffer;
using net_contract::NetLink;
using net_contract::Transfer;

void Shell(const std::string& command) { EXPECT_EQ(std::system(command.c_str()), 0) << command; }

// Two networks, one at either end of the cable.
class CablePair final : public NetPair {
 public:
  explicit CablePair(Settings settings) : CablePair(settings, {"=rxe2", "=rxe3"}) {}
  CablePair(Settings settings, const std::array<const char*, 2>& devices) {
    VerbsNet::Options options;
    options.address = ParseSocketAddress("127.0.0.1:0").value();
    const Key key = RandomKey();
    for (size_t i = 0; i < 2; ++i) {
      settings.ib_hca = devices[i];
      nets_[i] = VerbsNet::Create(*loop_, key, settings, options).value();
      EXPECT_TRUE(nets_[i]->IsViable().ok()) << nets_[i]->IsViable().message();
    }
  }
  Net& sending() override { return *nets_[0]; }
  Net& receiving() override { return *nets_[1]; }

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("cable").value();
  std::array<std::unique_ptr<Net>, 2> nets_;
};

// One rank of a pair of processes: sends or receives until that fails.
class Rank {
 public:
  // Writes a byte into `busy`, where it is a descriptor, once some messages have passed.
  Rank(const Key& key, const char* device, int busy = -1) : busy_(busy) {
    Settings settings;
    settings.ib_hca = device;
    VerbsNet::Options options;
    options.address = ParseSocketAddress("127.0.0.1:0").value();
    net_ = VerbsNet::Create(*loop_, key, settings, options).value();
  }

  // Writes its handle into `pipe`, for the sender.
  Status Receive(int pipe) {
    TUTTI_ASSIGN(const auto listener, net_->Listen(0));
    const NetHandle& handle = listener->handle();
    EXPECT_EQ(write(pipe, handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
    TUTTI_ASSIGN(const auto comm, listener->Accept(net_contract::Bound()));
    return Repeat(*comm, [&](NetBuffer& buffer) {
      const NetReceive receive = {buffer.data(), buffer.size(), 0, buffer.memory()};
      return comm->Irecv({&receive, 1});
    });
  }
  Status Send(int pipe) {
    NetHandle handle;
    EXPECT_EQ(read(pipe, handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
    TUTTI_ASSIGN(const auto comm, net_->Connect(0, handle, net_contract::Bound()));
    return Repeat(*comm, [&](NetBuffer& buffer) {
      return comm->Isend({buffer.data(), buffer.size(), 0, 0, buffer.memory()});
    });
  }

 private:
  template <class Begin>
  Status Repeat(NetComm& comm, Begin begin) {
    NetBuffer buffer(net_->devices()[0], comm, 50'000);
    NetRequest* request = nullptr;
    int passed = 0;
    for (const Deadline deadline = net_contract::Bound().deadline; !deadline.Passed();) {
      if (!request) {
        TUTTI_ASSIGN(request, begin(buffer));
      }
      TUTTI_ASSIGN(const bool moved, comm.Progress());
      if (!request || !*comm.Test(*request)) {
        // What moved may be the grant for which a send was refused.
        if (!moved) net_contract::SleepOn(comm, deadline);
      } else {
        request = nullptr;
        if (++passed == 10 && busy_ >= 0) {
          EXPECT_EQ(write(busy_, "", 1), 1);
        }
      }
    }
    return Timeout("it went on although the other end was killed");
  }

  const int busy_;
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("killed").value();
  std::unique_ptr<Net> net_;
};

// A process is killed in the middle of transfers; the one at the other end hears of it at once.
class KilledPeerTest : public ::testing::TestWithParam<const char*> {};
TEST_P(KilledPeerTest, IsNoticedAtEitherEnd) {
  for (const bool kills_sender : {true, false}) {
    const Key key = RandomKey();
    int pipe[2] = {-1, -1};
    int busy[2] = {-1, -1};
    ASSERT_EQ(::pipe(pipe), 0);
    ASSERT_EQ(::pipe(busy), 0);
    const pid_t child = fork();
    if (child == 0) {
      Rank rank(key, GetParam(), busy[1]);
      const Status ended = kills_sender ? rank.Send(pipe[0]) : rank.Receive(pipe[1]);
      _exit(ended.ok() ? 0 : 1);
    }
    close(busy[1]);
    std::thread killer([&] {
      std::byte byte;
      EXPECT_EQ(read(busy[0], &byte, 1), 1) << "the other end ended before its transfers";
      kill(child, SIGKILL);
    });
    Rank rank(key, GetParam());
    const Status status = kills_sender ? rank.Receive(pipe[1]) : rank.Send(pipe[0]);
    EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
    killer.join();
    int how = 0;
    EXPECT_EQ(waitpid(child, &how, 0), child);
    EXPECT_TRUE(WIFSIGNALED(how)) << "the other end ended by itself";
    for (const int fd : {pipe[0], pipe[1], busy[0]}) close(fd);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, KilledPeerTest, ::testing::Values("=rxe0", "=siw0"),
                         [](const auto& each) { return each.index == 0 ? "Roce" : "Iwarp"; });

// The cable is whole before and after each test.
class CableTest : public ::testing::Test {
 protected:
  ~CableTest() override { Lose(0); }
  // Loses so many of a hundred packets in either direction.
  static void Lose(int percent) {
    for (const char* side : {"v0", "v1"}) {
      Shell(fmt::format("tc qdisc replace dev {} root netem loss {}%", side, percent));
    }
  }
  // Tries again every second or so, for eight times; shorter ones are too short for this machine.
  static Settings Patient() {
    Settings settings;
    settings.ib_timeout = 18;
    return settings;
  }
};

// Sends one message through a whole cable, and one that was granted before `break_cable`.
void SendOverABrokenCable(NetLink& link, const std::function<void()>& break_cable) {
  NetBuffer to = link.ReceiveBuffer(1000);
  NetBuffer from = link.SendBuffer(1000);
  NetRequest* receiving = nullptr;
  for (int i = 0; i < 2; ++i) ASSERT_NE(receiving = link.Receive(to), nullptr);
  NetRequest* const sending = link.SendSoon(from);
  ASSERT_NE(sending, nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  // The second grant follows the first at once; a moment is time enough.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  break_cable();
  ASSERT_NE(link.Send(from), nullptr);
  // The memory must outlive the requests, which end with the connection's failure.
  EXPECT_FALSE(NetLink::AwaitFailure(*link.sender).ok());
}

TEST_F(CableTest, CarriesMessages) {
  CablePair pair(Patient());
  NetLink link(pair);
  Transfer(link, net_contract::MixedSizes(5, 60));
}

TEST_F(CableTest, LossesAreMadeGood) {
  Lose(2);
  for (const int pairs : {1, 4}) {
    Settings settings = Patient();
    settings.ib_qps = pairs;
    settings.ib_split_data = pairs > 1;
    CablePair pair(settings);
    NetLink link(pair);
    Transfer(link, net_contract::MixedSizes(6, 60));
  }
}

// The packets of iWARP are those of TCP, and within a host they take its loop-back device.
TEST_F(CableTest, LossesAreMadeGoodOverIwarp) {
  Shell("tc qdisc replace dev lo root netem loss 2%");
  CablePair pair(Patient(), {"=siw0", "=siw0"});
  NetLink link(pair);
  Transfer(link, net_contract::MixedSizes(6, 60));
  Shell("tc qdisc del dev lo root");
}

TEST_F(CableTest, ACutOfTwoSecondsIsSurvived) {
  CablePair pair(Patient());
  NetLink link(pair);
  Transfer(link, {1000, 200'000});
  Lose(100);
  std::thread mender([] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    Lose(0);
  });
  Transfer(link, net_contract::MixedSizes(7, 20));
  mender.join();
}

TEST_F(CableTest, ACutForGoodIsToldAtBothEnds) {
  Settings settings = Patient();
  settings.ib_retry_count = 1;
  CablePair pair(settings);
  NetLink link(pair);
  SendOverABrokenCable(link, [] { Lose(100); });
  const Status status = NetLink::AwaitFailure(*link.sender);
  EXPECT_EQ(status.code(), Code::kRemoteError);
  for (const char* part : {"rxe2", "rxe3", "NCCL_IB_TIMEOUT=18", "did not answer"}) {
    EXPECT_NE(status.message().find(part), std::string_view::npos) << status.message();
  }
  EXPECT_EQ(NetLink::AwaitFailure(*link.receiver).code(), Code::kRemoteError);
}

TEST_F(CableTest, APortThatIsDownIsNamed) {
  CablePair pair(Patient());
  NetLink link(pair);
  SendOverABrokenCable(link, [] { Shell("ip link set v0 down"); });
  const Status status = NetLink::AwaitFailure(*link.sender);
  Shell("$TESTS/cable up");
  EXPECT_NE(status.message().find("rxe2"), std::string_view::npos) << status.message();
  EXPECT_FALSE(NetLink::AwaitFailure(*link.receiver).ok());
}

}  // namespace
}  // namespace tutti
