// Windows of ranks that are reached by a network. The ranks are threads, and the network is memory.

#include "window/remote_windows.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "operations/testing/local_bootstrap.h"
#include "testing/ranks.h"
#include "window/testing/memory_net.h"

namespace tutti {
namespace {

using testing::LocalBootstrap;
using testing::LocalJob;
using testing::MemoryNet;

size_t At(int rank) { return static_cast<size_t>(rank); }

// One rank with a part of a window and a part of the window of signals.
class Rank {
 public:
  Rank(LocalJob& job, const std::vector<PeerInfo>& peers, EventLoop& loop,
       std::shared_ptr<MemoryNet> memory_net, int rank, int team_size)
      : number(rank),
        net(std::move(memory_net)),
        bootstrap(job, rank),
        watch(bootstrap, {.rank_names = std::vector<std::string>(peers.size(), "a rank")}),
        parts({.ranks = {&bootstrap, peers, Deadline::AfterSeconds(60)},
               .team = LsaTeamOf(rank, team_size),
               .loop = &loop,
               .network = net,
               .watch = &watch}) {
    MakeWindow(window, data);
    MakeWindow(signals, words);
  }
  void Connect() {
    Result<std::unique_ptr<RemoteWindows>> made = RemoteWindows::Connect(parts);
    ASSERT_TRUE(made.ok()) << made.status().message();
    remote = std::move(made).value();
  }
  Status ShareAll() {
    TUTTI_ASSIGN(const Agreement shared, remote->Share(window, false, {}));
    TUTTI_TRY(shared.refusal);
    return remote->Share(signals, true, {}).status();
  }
  Status Put(int peer, uint64_t offset, std::span<const std::byte> bytes) {
    return remote->Put(peer, {window.handle, offset}, bytes,
                       {signals.handle, At(number) * sizeof(uint64_t)});
  }
  // Shares the window once more, under another handle, as a window for signals.
  Result<Agreement> ShareStrict() {
    strict = window;
    strict.handle = reinterpret_cast<ncclWindow_t>(&data[8]);
    strict.flags = NCCL_WIN_STRICT_ORDERING;
    return remote->Share(strict, false, {Deadline::AfterSeconds(60), nullptr});
  }
  void Meet() { EXPECT_TRUE(bootstrap.Barrier(Deadline::Never()).ok()); }

  const int number;
  const std::shared_ptr<MemoryNet> net;
  LocalBootstrap bootstrap;
  Watch watch;
  const RemoteWindows::Parts parts;
  std::array<std::byte, 4096> data = {};
  std::array<uint64_t, 8> words = {};
  Window window, signals, strict;
  std::unique_ptr<RemoteWindows> remote;

 private:
  // A handle is an address of this rank, and means nothing to the others.
  template <class Memory>
  void MakeWindow(Window& made, Memory& memory) {
    made.handle = reinterpret_cast<ncclWindow_t>(&memory);
    made.own = std::as_writable_bytes(std::span(memory));
    made.bytes.assign(parts.ranks.peers.size(), made.own.size());
    made.team = parts.team;
  }
};

class RemoteWindowsTest : public ::testing::Test {
 protected:
  void Run(int num_ranks, int team_size, const std::function<void(Rank&)>& body) {
    Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create("remote_windows");
    ASSERT_TRUE(loop.ok());
    LocalJob job(num_ranks);
    const std::vector<PeerInfo> peers(At(num_ranks));
    testing::RunRankThreads(num_ranks, [&](int number) {
      Rank rank(job, peers, **loop, net_, number, team_size);
      body(rank);
      rank.Meet();  // No rank ends while another may reach its memory.
    });
  }
  const std::shared_ptr<MemoryNet> net_ = std::make_shared<MemoryNet>();
};

std::vector<std::byte> BytesOf(int from, int to) {
  return std::vector<std::byte>(64, static_cast<std::byte>(16 * from + to + 1));
}

TEST_F(RemoteWindowsTest, EveryRankPutsToAllRanksOutsideOfItsTeam) {
  for (const auto& [num_ranks, team_size] : {std::pair(2, 1), {3, 1}, {6, 2}, {6, 3}}) {
    Run(num_ranks, team_size, [&, n = num_ranks](Rank& rank) {
      rank.Connect();
      ASSERT_TRUE(rank.ShareAll().ok());
      const auto outside = [&](int peer) { return !rank.parts.team.Has(peer); };
      for (int peer = 0; peer < n; ++peer)
        if (outside(peer)) {
          EXPECT_EQ(rank.Put(peer, At(rank.number) * 64, BytesOf(rank.number, peer)).message(), "");
        }
      rank.remote->Finish(Deadline::AfterSeconds(60));
      rank.Meet();
      for (int from = 0; from < n; ++from) {
        const std::vector<std::byte> expected =
            outside(from) ? BytesOf(from, rank.number) : std::vector<std::byte>(64);
        const auto at = rank.data.begin() + from * 64;
        EXPECT_EQ(std::vector<std::byte>(at, at + 64), expected) << from;
        EXPECT_EQ(rank.words[At(from)], outside(from) ? 1u : 0u) << from;
      }
    });
  }
}

TEST_F(RemoteWindowsTest, OnlyConnectionsWithPutsAreFlushed) {
  Run(3, 1, [&](Rank& rank) {
    rank.Connect();
    ASSERT_TRUE(rank.ShareAll().ok());
    if (rank.number == 0) {
      EXPECT_TRUE(rank.Put(1, 0, BytesOf(0, 1)).ok());
      rank.remote->Finish(Deadline::AfterSeconds(60));
      rank.remote->Finish(Deadline::AfterSeconds(60));
      EXPECT_EQ(net_->num_flushes, 1);
    }
    rank.Meet();
  });
}

TEST_F(RemoteWindowsTest, BeganOperationsWaitForRoomAndEndInAnyOrder) {
  Run(2, 1, [&](Rank& rank) {
    rank.Connect();
    ASSERT_TRUE(rank.ShareAll().ok());
    if (rank.number == 0) {
      net_->room = 2;
      std::iota(rank.words.begin(), rank.words.end(), 5);
      RmaConnection& connection = rank.remote->connection(1);
      const RmaConnection::Inside inside(connection);
      const RemoteWindows::Place from = {rank.signals.handle, 8}, to = {rank.window.handle, 100};
      const RemoteWindows::Added added = {{rank.signals.handle, 56}, 7, true};
      const Result<NetRequest*> put = rank.remote->BeginPut(1, from, to, 16, &added);
      const Result<NetRequest*> get =
          rank.remote->BeginGet(1, {rank.window.handle, 200}, {rank.window.handle, 100}, 16);
      ASSERT_TRUE(put.ok() && get.ok());
      const Result<NetRequest*> third = rank.remote->BeginPut(1, {}, {}, 0, &added);
      ASSERT_TRUE(third.ok());
      EXPECT_EQ(*third, nullptr) << "there is room for two";
      net_->backwards = true;
      EXPECT_FALSE(*connection.Test(**put));
      EXPECT_TRUE(*connection.Test(**get));
      EXPECT_TRUE(*connection.Test(**put));
      uint64_t got = 0;
      std::memcpy(&got, &rank.data[208], sizeof(got));
      EXPECT_EQ(got, 7u) << "the third word of this rank, by way of the peer";
    }
    rank.Meet();
    EXPECT_EQ(rank.words[7], rank.number == 1 ? 7u : 12u);
  });
}

TEST_F(RemoteWindowsTest, AForgottenWindowIsRefusedHereAndBreaksThePeersConnection) {
  Run(2, 1, [&](Rank& rank) {
    rank.Connect();
    ASSERT_TRUE(rank.ShareAll().ok());
    if (rank.number == 1) rank.remote->Forget(rank.window.handle);
    rank.Meet();
    if (rank.number == 1) {
      EXPECT_EQ(rank.Put(0, 0, BytesOf(1, 0)).code(), Code::kInvalidUsage);
      EXPECT_TRUE(rank.Put(0, 0, {}).ok()) << "a signal alone needs no other window";
      EXPECT_EQ(rank.remote->BeginGet(0, {rank.window.handle, 0}, {rank.window.handle, 0}, 8)
                    .status()
                    .code(),
                Code::kInvalidUsage);
    } else {
      const Status broken = rank.Put(1, 0, BytesOf(0, 1));
      EXPECT_EQ(broken.code(), Code::kRemoteError);
      EXPECT_NE(broken.message().find("rank 1"), std::string::npos) << broken.message();
      EXPECT_EQ(rank.Put(1, 0, {}).code(), Code::kRemoteError) << "it stays broken";
    }
    rank.Meet();
  });
}

// Where the additions of the network are not atomic with those of processors, the ranks of a team
// add to words by the network, too, in windows where signals may lie.
TEST_F(RemoteWindowsTest, TheTeamAddsByTheNetworkWhereProcessorsMayNot) {
  for (const bool alone : {false, true}) {
    net_->adds_alone = alone;
    Run(4, 2, [&](Rank& rank) {
      rank.Connect();
      EXPECT_EQ(rank.remote->ProcessorsAdd(), !alone);
      ASSERT_TRUE(rank.ShareAll().ok());
      EXPECT_EQ(rank.remote->FindConnection(rank.number), nullptr) << "no window has signals";
      ASSERT_TRUE(rank.ShareStrict().ok());
      for (int peer = 0; peer < 4; ++peer) {
        RmaConnection* const connection = rank.remote->FindConnection(peer);
        EXPECT_EQ(connection != nullptr, alone || !rank.parts.team.Has(peer)) << peer;
        if (connection == nullptr) continue;
        const RmaConnection::Inside inside(*connection);
        const RemoteWindows::Added added = {{rank.strict.handle, 16}, 5, true};
        const Result<NetRequest*> put = rank.remote->BeginPut(peer, {}, {}, 0, &added);
        ASSERT_TRUE(put.ok() && *put != nullptr);
        EXPECT_TRUE(*connection->Test(**put));
      }
      rank.remote->Finish(Deadline::AfterSeconds(60));
      rank.Meet();
      uint64_t sum = 0;
      std::memcpy(&sum, &rank.data[16], sizeof(sum));
      EXPECT_EQ(sum, alone ? 20u : 10u);
      rank.Meet();
      rank.remote->Forget(rank.strict.handle);
    });
  }
}

// No rank is joined to its team where another rank is not, and a later attempt joins all.
TEST_F(RemoteWindowsTest, ATeamThatOneRankCannotJoinIsJoinedByNone) {
  net_->adds_alone = true;
  Run(4, 2, [&](Rank& rank) {
    rank.Connect();
    ASSERT_TRUE(rank.ShareAll().ok());
    rank.Meet();
    if (rank.number == 0) net_->num_refused = 1;
    rank.Meet();
    const Result<Agreement> shared = rank.ShareStrict();
    ASSERT_TRUE(shared.ok()) << shared.status().message();
    EXPECT_EQ(shared->refusal.code(), Code::kRemoteError);
    EXPECT_NE(shared->refusal.message().find("the network is down"), std::string::npos);
    rank.remote->Forget(rank.strict.handle);
    const std::vector<int> team = {rank.parts.team.first, rank.parts.team.first + 1};
    for (const int peer : team) EXPECT_EQ(rank.remote->FindConnection(peer), nullptr);
    EXPECT_TRUE(rank.ShareStrict()->go_on());
    for (const int peer : team) EXPECT_NE(rank.remote->FindConnection(peer), nullptr);
  });
}

// A part beyond the window reaches no memory.
TEST_F(RemoteWindowsTest, APutBeyondTheRegistrationBreaksTheConnection) {
  Run(2, 1, [&](Rank& rank) {
    rank.Connect();
    ASSERT_TRUE(rank.ShareAll().ok());
    if (rank.number == 0) {
      EXPECT_EQ(rank.Put(1, 4096 - 63, BytesOf(0, 1)).code(), Code::kRemoteError);
    }
    rank.Meet();
    EXPECT_EQ(rank.data, (std::array<std::byte, 4096>{}));
  });
}

// Messages of an attempt that failed stay in the bootstrap, and belong to no later attempt.
TEST_F(RemoteWindowsTest, MessagesOfAFailedAttemptArePassedOver) {
  Run(3, 1, [&](Rank& rank) {
    net_->refuses = true;
    rank.Meet();
    EXPECT_FALSE(RemoteWindows::Connect(rank.parts).ok());
    rank.Meet();
    net_->refuses = false;
    rank.Meet();
    RemoteWindows::Parts parts = rank.parts;
    parts.attempt = 1;
    Result<std::unique_ptr<RemoteWindows>> made = RemoteWindows::Connect(parts);
    ASSERT_TRUE(made.ok()) << made.status().message();
    rank.remote = std::move(made).value();
    EXPECT_TRUE(rank.ShareAll().ok());
    const int next = (rank.number + 1) % 3, before = (rank.number + 2) % 3;
    EXPECT_EQ(rank.Put(next, 0, BytesOf(rank.number, next)).message(), "");
    rank.Meet();
    EXPECT_EQ(rank.data[63], BytesOf(before, rank.number)[63]);
  });
}

}  // namespace
}  // namespace tutti
