// Connections over several addresses of the receiver, some of which cannot be used for a while.

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "transport/testing/cable.h"
#include "transport/testing/message_stream.h"

namespace tutti {
namespace {

using message_stream::Plan;
using message_stream::Stream;

// Two networks whose connections go by two addresses, with a cable in front of each.
struct TwoPaths {
  std::unique_ptr<EventLoop> loop = EventLoop::Create("two-paths").value();
  std::array<std::unique_ptr<Net>, 2> nets;
  std::unique_ptr<NetListener> listener;
  std::array<std::unique_ptr<Cable>, 2> cables;
  std::unique_ptr<NetSendComm> sender;
  std::unique_ptr<NetRecvComm> receiver;

  TwoPaths(const Settings& settings, const NetSpread& spread, int64_t patience_ns = 100'000'000) {
    SocketNet::Options options;
    options.address = ParseSocketAddress("127.0.0.1:0").value();
    options.others = {ParseSocketAddress("127.0.0.2:0").value()};
    options.path_times = {patience_ns, 20'000'000};
    const Key key = RandomKey();
    for (auto& net : nets) {
      net = SocketNet::Create(*loop, key, settings, options).value();
      net->Spread(0, spread);
    }
    listener = nets[1]->Listen(0).value();
    for (size_t i = 0; i < 2; ++i) {
      cables[i] = std::make_unique<Cable>(AddressIn(listener->handle(), i));
    }
  }
  void Connect() {
    NetHandle handle = listener->handle();
    for (size_t i = 0; i < 2; ++i) handle = Through(*cables[i], handle, i);
    sender = nets[0]->Connect(0, handle, net_contract::Bound()).value();
    receiver = listener->Accept(net_contract::Bound()).value();
  }
  // Lets nothing pass a cable any more, not even new connections.
  void Break(size_t path) {
    cables[path]->Hold(true);
    cables[path]->Cut();
  }
  // Sends messages until `ready`.
  template <class Ready>
  void StreamUntil(Ready ready) {
    const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
    while (!ready()) {
      Stream(*this, {std::vector<size_t>(10, 100'000)}, [](size_t) {});
      ASSERT_FALSE(::testing::Test::HasFailure());
      ASSERT_FALSE(deadline.Passed());
    }
  }
  // Sends messages until `bytes` more bytes have passed a cable.
  void StreamThrough(size_t path, size_t bytes) {
    const size_t before = cables[path]->passed();
    StreamUntil([&] { return cables[path]->passed() >= before + bytes; });
  }
};

Settings WithHelpers(int threads) {
  Settings settings;
  settings.socket_nthreads = threads;
  settings.nsocks_perthread = 2;
  return settings;
}

TEST(SeveralPathsTest, DataSocketsAreSpreadOverAllNics) {
  TwoPaths link({}, {{1}, {}}, 20'000'000'000);
  link.Connect();
  EXPECT_EQ(link.cables[0]->accepted(), 2);  // control, and a data socket
  EXPECT_EQ(link.cables[1]->accepted(), 1);
  Stream(link, {std::vector<size_t>(20, 100'000)}, [](size_t) {});
  for (const auto& cable : link.cables) EXPECT_GT(cable->passed(), 900'000u);
}

void LeaveAndTakeAgain(int threads, size_t dead) {
  TwoPaths link(WithHelpers(threads), {{1}, {}});
  link.Connect();
  Stream(link, {std::vector<size_t>(40, 100'000)}, [&](size_t i) {
    if (i == 20) link.Break(dead);
  });
  link.StreamThrough(1 - dead, 1'000'000);
  link.cables[dead]->Hold(false);
  link.StreamThrough(dead, 500'000);
  link.StreamThrough(1 - dead, 500'000);
}
TEST(SeveralPathsTest, TheFirstPathIsLeftWhenDeadAndTakenAgain) { LeaveAndTakeAgain(1, 0); }
TEST(SeveralPathsTest, AnotherPathIsLeftWhenDeadAndTakenAgain) { LeaveAndTakeAgain(2, 1); }

// The patience is long enough for a busy machine to answer while the connection is made. The second
// stream begins after the break, since bytes in the receiver's kernel outlive a reset and would not
// pass the spare.
TEST(SlowSeveralPathsTest, ASpareCarriesAllWhileTheOwnNicIsDead) {
  TwoPaths link({}, {{}, {1}}, 1'000'000'000);
  link.Connect();
  Stream(link, {std::vector<size_t>(20, 20'000)}, [](size_t) {});
  EXPECT_EQ(link.cables[1]->accepted(), 0);
  link.Break(0);
  Stream(link, {std::vector<size_t>(20, 20'000)}, [](size_t) {});
  EXPECT_GE(link.cables[1]->passed(), 400'000u);
  link.cables[0]->Hold(false);
  link.StreamThrough(0, 500'000);
}

TEST(SeveralPathsTest, APathThatIsDeadFromTheBeginningIsLeftOut) {
  TwoPaths link(WithHelpers(1), {{1}, {}});
  link.cables[1]->Hold(true);
  link.Connect();
  link.StreamThrough(0, 1'000'000);
  link.cables[1]->Hold(false);
  link.StreamThrough(1, 500'000);
}

TEST(SeveralPathsTest, MovesBackWhileNothingIsSent) {
  TwoPaths link(WithHelpers(1), {{1}, {}});
  link.Connect();
  Stream(link, {std::vector<size_t>(20, 100'000)}, [&](size_t i) {
    if (i == 10) link.Break(1);
  });
  link.cables[1]->Hold(false);
  const int before = link.cables[0]->accepted();
  const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
  // A whole set of sockets comes by both paths, and the sender says that nothing more will be
  // tried.
  while ((link.cables[0]->accepted() == before || link.sender->Care() == NetCare::kSoon ||
          !link.sender->Drained()) &&
         !deadline.Passed()) {
    ASSERT_TRUE(link.sender->Progress().ok());
    ASSERT_TRUE(link.receiver->Progress().ok());
  }
  EXPECT_FALSE(deadline.Passed());
  Stream(link, {std::vector<size_t>(20, 100'000)}, [](size_t) {});
}

// Everything is broken for a while, and paths that were given up before are tried as well.
TEST(SeveralPathsTest, BothPathsAreDeadForAWhile) {
  TwoPaths link(WithHelpers(1), {{1}, {}});
  link.Connect();
  Stream(link, {std::vector<size_t>(20, 100'000)}, [&](size_t i) {
    if (i == 10) link.Break(0);
  });
  link.Break(1);
  const int before = link.cables[0]->accepted();
  link.cables[0]->Hold(false);
  Stream(link, {std::vector<size_t>(20, 100'000)}, [](size_t) {});
  EXPECT_GT(link.cables[0]->accepted(), before);
  link.cables[1]->Hold(false);
  link.StreamThrough(1, 500'000);
}

}  // namespace
}  // namespace tutti
