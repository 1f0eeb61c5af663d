#pragma once

// Tests the contract of a plugin (operations_plugin.h) for a group of all ranks of a job: its
// operations keep their contract, as does the exchange over them.

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/communicator.h"
#include "coordinator/exchange.h"
#include "coordinator/operations_plugin.h"
#include "coordinator/testing/exchange_contract.h"
#include "coordinator/testing/operations_contract.h"
#include "coordinator/testing/two_hosts.h"

namespace tutti::coordinator {

// Returns a plugin's operations for a group of ranks of the job, which gathers over a communicator
// of the ranks.
inline Result<std::unique_ptr<Operations>> OpenGroup(OperationsPlugin& plugin,
                                                     std::vector<int> members, int rank,
                                                     ncclComm_t comm) {
  OperationsGroup group;
  group.members = std::move(members);
  group.rank = rank;
  group.gather = [comm](const void* mine, size_t bytes, void* all) -> Status {
    EXPECT_EQ(ncclAllGather(mine, all, bytes, ncclUint8, comm, nullptr), ncclSuccess);
    return Status::Ok();
  };
  return plugin.Open(group);
}

// Called by all ranks.
inline void ExpectPluginKeepsContracts(const std::string& name, const ncclUniqueId& id, int rank,
                                       int num_ranks) {
  const auto plugin = FindViablePlugin(name, rank, num_ranks);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRank(&comm, num_ranks, id, rank), ncclSuccess);
  const Communicator owner(comm);
  std::vector<int> everybody(static_cast<size_t>(num_ranks));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto operations = OpenGroup(**plugin, everybody, rank, comm);
  ASSERT_TRUE(operations.ok()) << operations.status().message();
  EXPECT_EQ(OperationsContract(**operations, rank, num_ranks).Check(), "");
  const auto exchange = MakeOperationsExchange(std::move(*operations), rank, num_ranks);
  EXPECT_EQ(ExchangeContract(*exchange).Check(), "");
}

// Four ranks as two hosts. Called by all ranks.
inline void ExpectPluginKeepsContractInTwoLevels(const std::string& name, const ncclUniqueId& id,
                                                 int rank) {
  const auto plugin = FindViablePlugin(name, rank, 4);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  TwoHosts hosts;
  ASSERT_NO_FATAL_FAILURE(JoinTwoHosts(id, rank, hosts));
  auto inside = OpenGroup(**plugin, {rank / 2 * 2, rank / 2 * 2 + 1}, hosts.shape.local_rank,
                          hosts.local.get());
  ASSERT_TRUE(inside.ok()) << inside.status().message();
  auto across =
      OpenGroup(**plugin, {rank % 2, rank % 2 + 2}, hosts.shape.cross_rank, hosts.cross.get());
  ASSERT_TRUE(across.ok()) << across.status().message();
  const auto operations = MakeHierarchicalOperations(
      std::move(*inside), std::move(*across), hosts.shape, std::make_shared<HierarchySwitches>());
  EXPECT_EQ(OperationsContract(*operations, rank, 4).CheckTwoLevels(), "");
}

}  // namespace tutti::coordinator
