// The connections of a communicator over a network that notes the calls.

#include "operations/connections.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "connection/proxy_connection.h"

namespace tutti {
namespace {

using Calls = std::vector<std::string>;

// The state of the network's end toward a peer.
struct End {
  Status status;
  Status flushed;
  int64_t patience_ns = 0;
  bool is_closed = false;
};

class NotedConnection final : public ProxyConnection {
 public:
  explicit NotedConnection(End& end) : end_(end), memory_(FifoView::BytesFor(64)) {}
  FifoView fifo() const override { return {const_cast<std::byte*>(memory_.data()), 64}; }
  void Begin(uint64_t, uint32_t) override {}
  bool Poll() override { return false; }
  SleepAdvice PrepareToSleep(std::vector<pollfd>&) override { return SleepAdvice::kHandOver; }
  void HandOver() override {}
  uint64_t ChunksDone() const override { return 0; }
  Status Flush(int64_t patience_ns, const std::atomic<bool>*) override {
    end_.patience_ns = patience_ns;
    return end_.flushed;
  }
  void Close(Status) override { end_.is_closed = true; }
  Status status() const override { return end_.status; }
  std::string Describe() const override { return {}; }

 private:
  End& end_;
  const std::vector<std::byte> memory_;
};

struct Noted {
  Calls calls;
  std::map<int, End> sends, recvs;
  int refused = -1;  // The peer that cannot be connected to.
};

class NotedConnector final : public NetConnector {
 public:
  explicit NotedConnector(Noted& noted) : noted_(noted) {}
  Status Invite(const NetEnd& end) override {
    noted_.calls.push_back("invite " + std::to_string(end.peer));
    return Status::Ok();
  }
  Result<std::unique_ptr<ProxyConnection>> ConnectTo(const NetEnd& end, Deadline) override {
    noted_.calls.push_back("connect " + std::to_string(end.peer));
    if (end.peer == noted_.refused) return RemoteError("refused");
    return std::unique_ptr<ProxyConnection>(new NotedConnection(noted_.sends[end.peer]));
  }
  Result<std::unique_ptr<ProxyConnection>> AcceptFrom(const NetEnd& end) override {
    noted_.calls.push_back("accept " + std::to_string(end.peer));
    return std::unique_ptr<ProxyConnection>(new NotedConnection(noted_.recvs[end.peer]));
  }

 private:
  Noted& noted_;
};

// Rank 1 of six. Ranks 0 to 2 share a host.
class ConnectionsTest : public ::testing::Test {
 protected:
  ConnectionsTest() {
    const ArenaLayout layout = {.num_ranks = 3, .stage_bytes = 64, .fifo_slot_bytes = 128};
    const size_t bytes = layout.TotalBytes();
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
    std::memset(memory_.get(), 0, bytes);
    connections_ = std::make_unique<Connections>(
        1, std::vector<int>{0, 1, 2, -1, -1, -1}, Arena::Format(memory_.get(), layout),
        std::make_unique<NotedConnector>(noted_), 1'000'000'000);
  }
  Status Open(const std::vector<int>& sends, const std::vector<int>& recvs) {
    return connections_->Open(sends, recvs);
  }
  struct Freed {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  Noted noted_;
  std::unique_ptr<std::byte, Freed> memory_;
  std::unique_ptr<Connections> connections_;
};

// Ranks that waited before they invite would wait for one another in a circle.
TEST_F(ConnectionsTest, AllInvitationsGoOutBeforeTheFirstWait) {
  ASSERT_TRUE(Open({-1, 3, 4, 3}, {4, 5, -1, 5}).ok());
  EXPECT_EQ(noted_.calls,
            (Calls{"invite 4", "invite 5", "connect 3", "connect 4", "accept 4", "accept 5"}));
  noted_.calls.clear();
  ASSERT_TRUE(Open({4, 5}, {3, 5}).ok());
  EXPECT_EQ(noted_.calls, (Calls{"invite 3", "connect 5", "accept 3"}))
      << "open connections stay open";
}

TEST_F(ConnectionsTest, AFailedOpeningMayBeRepeated) {
  noted_.refused = 3;
  EXPECT_EQ(Open({3}, {4}).code(), Code::kRemoteError);
  noted_.refused = -1;
  noted_.calls.clear();
  EXPECT_TRUE(Open({3}, {4}).ok());
  EXPECT_EQ(noted_.calls, (Calls{"connect 3", "accept 4"})) << "a peer is invited once";
}

// Data of a peer of the host go through the arena's FIFO of the two ranks.
TEST_F(ConnectionsTest, PeersOfTheHostNeedNoNetwork) {
  ASSERT_TRUE(Open({0, 2}, {0, 2}).ok());
  EXPECT_TRUE(noted_.calls.empty());
  EXPECT_EQ(connections_->SendProxy(2), nullptr);
  EXPECT_FALSE(connections_->SendTo(2).remote);
  const FifoView out = connections_->SendTo(2).fifo->view();
  const FifoView in = connections_->RecvFrom(2).fifo->view();
  const ArenaLayout layout = {.num_ranks = 3, .stage_bytes = 64, .fifo_slot_bytes = 128};
  EXPECT_EQ(out.base, memory_.get() + layout.FifoOffset(1, 2));
  EXPECT_EQ(in.base, memory_.get() + layout.FifoOffset(2, 1));
  EXPECT_EQ(out.slot_bytes, 128u);
  ASSERT_TRUE(Open({3}, {}).ok());
  EXPECT_TRUE(connections_->SendTo(3).remote);
  EXPECT_EQ(connections_->SendTo(3).peer, 3);
  EXPECT_NE(connections_->SendProxy(3), nullptr);
}

TEST_F(ConnectionsTest, LinksHaveTheWayOfSmallChunksOfTheirOperation) {
  ASSERT_TRUE(Open({0}, {}).ok());
  EXPECT_TRUE(connections_->SendTo(0).inline_small);
  connections_->set_inline_small(false);
  EXPECT_FALSE(connections_->SendTo(0).inline_small);
}

TEST_F(ConnectionsTest, NamesThePeerOfABrokenConnection) {
  ASSERT_TRUE(Open({0, 3, 4}, {4, 5}).ok());
  EXPECT_EQ(connections_->BrokenPeer(), std::nullopt);
  noted_.sends[3].status = SystemError("an error of this rank");
  EXPECT_EQ(connections_->BrokenPeer(), std::nullopt) << "the peer is not the reason";
  noted_.recvs[5].status = RemoteError("gone");
  EXPECT_EQ(connections_->BrokenPeer(), 5);
  noted_.sends[4].status = RemoteError("gone");
  EXPECT_EQ(connections_->BrokenPeer(), 4);
}

// The remaining peers had their time while the first peer took nothing.
TEST_F(ConnectionsTest, FlushesAllConnectionsAndReturnsTheFirstFailure) {
  ASSERT_TRUE(Open({0, 3, 4, 5}, {}).ok());
  noted_.sends[3].flushed = Timeout("nothing moves");
  noted_.sends[4].flushed = RemoteError("gone");
  const std::atomic<bool> stop = false;
  EXPECT_EQ(connections_->Flush(stop).code(), Code::kTimeout);
  EXPECT_EQ(noted_.sends[3].patience_ns, kFlushNs);
  EXPECT_LT(noted_.sends[4].patience_ns, kFlushNs);
  EXPECT_EQ(noted_.sends[5].patience_ns, noted_.sends[4].patience_ns);
  EXPECT_GT(noted_.sends[5].patience_ns, 0);
}

TEST_F(ConnectionsTest, CloseBreaksBothDirections) {
  ASSERT_TRUE(Open({0, 3}, {4}).ok());
  connections_->Close(RemoteError("a rank is lost"));
  EXPECT_TRUE(noted_.sends[3].is_closed);
  EXPECT_TRUE(noted_.recvs[4].is_closed);
}

}  // namespace
}  // namespace tutti
