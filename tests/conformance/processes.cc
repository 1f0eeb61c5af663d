#include "conformance/processes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace tutti::testing {

ncclUniqueId SharedId(int rank, Board& board) {
  ncclUniqueId id = {};
  if (rank == 0) {
    EXPECT_NCCL(ncclGetUniqueId(&id));
    std::memcpy(board.bytes(0).data(), &id, sizeof(id));
    board.Set(kIdReady, 1);
  } else {
    EXPECT_TRUE(board.Await(kIdReady, 1)) << "rank 0 made no id";
    std::memcpy(&id, board.bytes(0).data(), sizeof(id));
  }
  return id;
}

ncclComm_t Join(int rank, int num_ranks, Board& board) {
  const ncclUniqueId id = SharedId(rank, board);
  ncclComm_t comm = nullptr;
  UseDevice(rank);
  EXPECT_NCCL(ncclCommInitRank(&comm, num_ranks, id, rank));
  return comm;
}

void PlayHost(const Hosts& hosts, int rank) {
  const std::string& host = hosts[static_cast<size_t>(rank)];
  if (!host.empty()) setenv("NCCL_HOSTID", host.c_str(), 1);
}

void RunOnHosts(const Hosts& hosts, const std::vector<Case>& cases, double deadline_s,
                const std::function<void(int rank)>& prepare) {
  const int num_ranks = static_cast<int>(hosts.size());
  RankProcesses processes(num_ranks, [&](int rank, Board& board) {
    if (prepare) prepare(rank);
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, num_ranks, board);
    if (comm == nullptr) return;
    const std::vector<uint64_t> hashes = RunCases(comm, cases);
    EXPECT_EQ(hashes.size(), cases.size());
    uint64_t all = 0;
    for (size_t i = 0; i < hashes.size(); ++i)
      if (cases[i].collective == Collective::kAllReduce) all = all * 31 + hashes[i];
    board.result(rank) = all;
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  processes.Wait(deadline_s);
  for (int rank = 1; rank < num_ranks; ++rank)
    EXPECT_EQ(processes.board().result(rank), processes.board().result(0))
        << "rank " << rank << " has other bits than rank 0";
}

}  // namespace tutti::testing
