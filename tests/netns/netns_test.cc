// Collectives between hosts that are network namespaces.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "conformance/place.h"
#include "conformance/processes.h"
#include "conformance/suites.h"
#include "netns/hosts.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

class NetnsTest : public OnHosts<TwoHosts> {
 protected:
  void RunEverythingOn(const std::string& sides) {
    const int n = static_cast<int>(sides.size());
    RunCasesOn(sides, EveryTypeAndOperator(n, 70));
    std::vector<Case> cases = EveryTypeMoved(n, 129);
    for (const Case& c : EveryCount(n, {0, 1, 2, 3, 7, 31, 33, 1000, 4097})) cases.push_back(c);
    for (const Case& c : EveryRoot(n, 300)) cases.push_back(c);
    for (const Case& c : EverySkew(n, 515)) cases.push_back(c);
    for (const Case& c : Long(n, 300007)) cases.push_back(c);
    RunCasesOn(sides, cases);
  }
};

TEST_F(NetnsTest, OneRankEachRunsEverything) { RunEverythingOn("ab"); }
TEST_F(NetnsTest, TwoRanksEachRunEverything) { RunEverythingOn("aabb"); }
TEST_F(NetnsTest, RanksInTurnsRunEverything) { RunEverythingOn("abab"); }

TEST_F(NetnsTest, OverIpv6RunEverything) {
  if (!hosts_->has_v6()) GTEST_SKIP() << "this machine has no IPv6";
  const Environment environment(Environment::Settings{{"NCCL_SOCKET_FAMILY", "AF_INET6"}});
  RunEverythingOn("aabb");
}

TEST_F(NetnsTest, OverIpv6LinkLocalAddressesRun) {
  if (!hosts_->has_v6()) GTEST_SKIP() << "this machine has no IPv6";
  ASSERT_TRUE(hosts_->KeepLinkLocalOnly());
  const Environment environment(Environment::Settings{{"NCCL_SOCKET_FAMILY", "AF_INET6"}});
  RunCasesOn("abab", EveryCount(4, {1, 70001}));
}

TEST_F(NetnsTest, OverAnInterfaceNamedRun) {
  const Environment environment(Environment::Settings{{"NCCL_SOCKET_IFNAME", "=tutti0"}});
  RunCasesOn("ab", EveryCount(2, {1, 70001}));
}

TEST_F(NetnsTest, ByTheInterfaceOfTheNamedHostRun) {
  ASSERT_TRUE(hosts_->AddDeadEnds());
  for (const char* variable : {"MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR"}) {
    const Environment environment(Environment::Settings{{variable, "10.213.77.1"}});
    RunCasesOn("abab", EveryCount(4, {1, 70001}));
  }
  const Environment environment(Environment::Settings{{"TUTTI_ADDR", "10.213.77.2:4712"}});
  RunCasesOn("ab", EveryCount(2, {1, 70001}));
}

// Two ranks of a host and two cables that are as good: each rank has one of them.
TEST_F(NetnsTest, RanksShareTwoInterfaces) {
  ASSERT_TRUE(hosts_->AddCable());
  const Environment environment({{"NCCL_SOCKET_IFNAME", "=tutti0,tutti1"}, {"NCCL_ALGO", "ring"}});
  std::vector<Case> cases = EveryCount(4, {1, 70001});
  for (const Case& c : Long(4, 300007)) cases.push_back(c);
  RunCasesOn("aabb", cases);
  for (const char* interface : {"tutti0", "tutti1"})
    EXPECT_GT(hosts_->ReceivedBy(interface), 300'000) << interface;
}

// Two hosts of two GPUs and two rails: ranks send for one another what goes to the other rail
// (PXN).
TEST_F(NetnsTest, MessagesOfGpusGoByTheReceiversRail) {
  TUTTI_FOR_GPUS();
  ASSERT_TRUE(hosts_->AddCable());
  const Environment environment(Environment::Settings{{"NCCL_SOCKET_IFNAME", "=tutti0,tutti1"}});
  std::vector<Case> cases;
  for (const Case& c : EveryCount(4, {1, 1000, 70001, 1000003})) {
    if (c.collective == Collective::kSendRecv || c.collective == Collective::kAlltoAll ||
        c.collective == Collective::kAlltoAllV || c.collective == Collective::kGather)
      cases.push_back(c);
  }
  RunCasesOn("aabb", cases);
  for (const char* interface : {"tutti0", "tutti1"})
    EXPECT_GT(hosts_->ReceivedBy(interface), 10'000'000) << interface;
}

// A fixed address in place of an id that was handed round.
TEST_F(NetnsTest, MeetAtAFixedAddress) {
  const Environment environment(
      {{"NCCL_COMM_ID", "10.213.77.1:29733"}, {"TUTTI_COMM_KEY", "two hosts, one key"}});
  RunRankProcesses(2, [&](int rank, Board&) {
    hosts_->Enter(rank == 0 ? 'a' : 'b');
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    int sum = rank + 1;
    EXPECT_NCCL(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, comm, nullptr));
    EXPECT_EQ(sum, 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

enum Mark { kRounds = kFirstFreeMark, kCutAtMs, kKnown, kEnough };

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// AllReduces until that fails, which must be within `bound_ms` of the cut, with one of `lost`
// named.
void ReduceUntilCut(TwoHosts& hosts, int rank, int64_t bound_ms, const std::vector<int>& lost,
                    Board& board) {
  hosts.Enter(rank < 2 ? 'a' : 'b');
  ncclComm_t comm = Join(rank, 4, board);
  ASSERT_NE(comm, nullptr);
  Array<float> data(100000);
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) {
    result =
        ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, comm, nullptr);
    if (result == ncclSuccess) result = Finish(comm);
    board.Add(kRounds, 1);
  }
  EXPECT_LT(NowMs() - board.Get(kCutAtMs), bound_ms) << ncclGetLastError(comm);
  const std::string error = ncclGetLastError(comm);
  EXPECT_TRUE(std::any_of(
      lost.begin(), lost.end(),
      [&](int other) { return error.find(fmt::format("rank {} ", other)) != std::string::npos; }))
      << "rank " << rank << ": " << error;
  board.Add(kKnown, 1);
  EXPECT_NCCL(ncclCommAbort(comm));
}

// Exchanges between all ranks until that fails, as ReduceUntilCut. The others then go on.
void ExchangeUntilCut(TwoHosts& hosts, int rank, int64_t bound_ms, Board& board) {
  hosts.Enter(rank < 2 ? 'a' : 'b');
  ncclComm_t comm = Join(rank, 4, board);
  ASSERT_NE(comm, nullptr);
  constexpr size_t kCount = 30000;
  Array<float> from(4 * kCount), to(4 * kCount);
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) {
    result = ncclAlltoAll(from.data(), to.data(), kCount, ncclFloat32, comm, nullptr);
    if (result == ncclSuccess) result = Finish(comm);
    board.Add(kRounds, 1);
  }
  EXPECT_LT(NowMs() - board.Get(kCutAtMs), bound_ms) << ncclGetLastError(comm);
  EXPECT_NE(std::string(ncclGetLastError(comm)).find("rank 1 "), std::string::npos)
      << "rank " << rank << ": " << ncclGetLastError(comm);
  int victim = 1;
  ncclComm_t fewer = nullptr;
  ASSERT_NCCL(ncclCommShrink(comm, &victim, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
  EXPECT_NCCL(ncclCommAbort(comm));
  RunCases(fewer, EveryCount(3, {1, 70001}));
  EXPECT_NCCL(ncclCommDestroy(fewer));
}

// What rank 0 has for rank 3 is on its way by rank 1, as far as it may be before rank 3 takes it.
void AbortUnderWay(TwoHosts& hosts, int rank, int64_t bound_ms, Board& board) {
  hosts.Enter(rank < 2 ? 'a' : 'b');
  ncclComm_t comm = Join(rank, 4, board);
  ASSERT_NE(comm, nullptr);
  Array<float> data(size_t{8} << 20);
  if (rank == 0) {
    ASSERT_NCCL(ncclSend(data.data(), data.size(), ncclFloat32, 3, comm, nullptr));
  }
  board.Add(kRounds, 1);
  ASSERT_TRUE(board.Await(kRounds, 4));
  const int64_t since_ms = NowMs();
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_LT(NowMs() - since_ms, bound_ms);
}

TEST_F(NetnsTest, AnAbortEndsWhatAGpuSendsForAnother) {
  TUTTI_FOR_GPUS();
  ASSERT_TRUE(hosts_->AddCable());
  const Environment environment(Environment::Settings{{"NCCL_SOCKET_IFNAME", "=tutti0,tutti1"}});
  const auto bound_ms = static_cast<int64_t>(5000 * GpuTimeScale());
  RankProcesses processes(
      4, [&](int rank, Board& board) { AbortUnderWay(*hosts_, rank, bound_ms, board); });
  processes.Wait(60);
}

// Rank 1 sends what rank 0 has for rank 3.
TEST_F(NetnsTest, TheDeathOfAGpuThatSendsForOthersIsNamed) {
  TUTTI_FOR_GPUS();
  ASSERT_TRUE(hosts_->AddCable());
  const Environment environment(Environment::Settings{{"NCCL_SOCKET_IFNAME", "=tutti0,tutti1"}});
  const auto bound_ms = static_cast<int64_t>(5000 * GpuTimeScale());
  RankProcesses processes(
      4, [&](int rank, Board& board) { ExchangeUntilCut(*hosts_, rank, bound_ms, board); });
  ASSERT_TRUE(processes.board().Await(kRounds, 20));
  processes.board().Set(kCutAtMs, NowMs());
  processes.Signal(1, SIGKILL);
  processes.Wait(120);
}

TEST_F(NetnsTest, DeathOnTheOtherHostIsNamed) {
  RankProcesses processes(
      4, [&](int rank, Board& board) { ReduceUntilCut(*hosts_, rank, 20'000, {3}, board); });
  ASSERT_TRUE(processes.board().Await(kRounds, 20));
  processes.board().Set(kCutAtMs, NowMs());
  processes.Signal(3, SIGKILL);
  processes.Wait(60);
}

// Nothing comes back over a cable that was pulled, no goodbye and no reset: only time tells.
using SlowNetnsTest = NetnsTest;

// AllReduces of a mebibyte until there have been enough, all of them right.
void ReduceUntilEnough(TwoHosts& hosts, int rank, Board& board) {
  hosts.Enter(rank == 0 ? 'a' : 'b');
  ncclComm_t comm = Join(rank, 2, board);
  ASSERT_NE(comm, nullptr);
  std::vector<float> data(size_t{1} << 18);
  // All ranks see in the same round that it is the last one.
  for (float last = 0; last == 0;) {
    std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
    data[0] = static_cast<float>(board.Get(kEnough));
    ASSERT_NCCL(
        ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, comm, nullptr));
    last = data[0];
    ASSERT_TRUE(std::all_of(data.begin() + 1, data.end(), [](float each) { return each == 3; }));
    board.Add(kRounds, 1);
  }
  EXPECT_NCCL(ncclCommDestroy(comm));
}

// Each connection goes by both cables. One is pulled, and put back.
TEST_F(SlowNetnsTest, OneOfTwoCablesIsPulledAndPutBack) {
  ASSERT_TRUE(hosts_->AddCable());
  const Environment environment({{"NCCL_SOCKET_IFNAME", "=tutti0,tutti1"},
                                 {"TUTTI_HOST_TIMEOUT_S", "2"},
                                 {"NCCL_ALGO", "ring"}});
  RankProcesses processes(2,
                          [&](int rank, Board& board) { ReduceUntilEnough(*hosts_, rank, board); });
  Board& board = processes.board();
  const auto await_rounds = [&](int64_t more) {
    return board.Await(kRounds, board.Get(kRounds) + more);
  };
  const auto await_bytes = [&](const std::string& interface, int64_t more) {
    const int64_t enough = hosts_->ReceivedBy(interface) + more;
    for (const int64_t since_ms = NowMs(); hosts_->ReceivedBy(interface) < enough;) {
      if (NowMs() - since_ms > 60'000) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  };
  EXPECT_TRUE(await_rounds(20));
  for (const char* interface : {"tutti0", "tutti1"}) {
    EXPECT_TRUE(await_bytes(interface, 2'000'000)) << interface;
  }
  hosts_->SetCable(false, "tutti1");
  EXPECT_TRUE(await_bytes("tutti0", 20'000'000));
  EXPECT_TRUE(await_rounds(20));
  hosts_->SetCable(true, "tutti1");
  EXPECT_TRUE(await_bytes("tutti1", 5'000'000));
  EXPECT_TRUE(await_rounds(20));
  board.Set(kEnough, 1);
  processes.Wait(60);
}

TEST_F(SlowNetnsTest, APulledCableIsAnErrorInBoundedTime) {
  const int64_t bound_ms = 60'000;  // twice what is waited for an answer
  RankProcesses processes(4, [&](int rank, Board& board) {
    const std::vector<int> beyond = rank < 2 ? std::vector{2, 3} : std::vector{0, 1};
    ReduceUntilCut(*hosts_, rank, bound_ms, beyond, board);
  });
  ASSERT_TRUE(processes.board().Await(kRounds, 20));
  processes.board().Set(kCutAtMs, NowMs());
  hosts_->SetCable(false);
  processes.Wait(90);
}

using SlowSwitchedNetnsTest = OnHosts<FourHosts>;

// More ranks than a window serves, eight on each host.
TEST_F(SlowSwitchedNetnsTest, EightRanksOnEachOfFourHosts) {
  std::string letters;
  for (int rank = 0; rank < 32; ++rank) letters += "abcd"[rank / 8];
  std::vector<Case> cases = EveryCount(32, {0, 1, 1000, 4097});
  for (const Case& c : EveryTypeAndOperatorOfAllReduce(70)) cases.push_back(c);
  for (const Case& c : EverySkew(32, 515)) cases.push_back(c);
  RunCasesOn(letters, cases, 600);
}

}  // namespace
}  // namespace tutti::testing
