#pragma once

// What a plugin (operations_plugin.h) must do for a group that is all ranks of a job: its
// operations keep their contract, and so does the exchange over them.

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "coordinator/communicator.h"
#include "coordinator/exchange_contract_test.h"
#include "coordinator/operations_contract_test.h"
#include "coordinator/operations_exchange.h"
#include "coordinator/operations_plugin.h"

namespace tutti::coordinator {

// All ranks call it.
inline void ExpectPluginKeepsContracts(const std::string& name, const ncclUniqueId& id, int rank,
                                       int num_ranks) {
  const auto plugin = FindPlugin(name);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRank(&comm, num_ranks, id, rank), ncclSuccess);
  const Communicator owner(comm);
  OperationsGroup group;
  group.rank = rank;
  for (int r = 0; r < num_ranks; ++r) group.members.push_back(r);
  group.gather = [&](const void* mine, size_t bytes, void* all) -> Status {
    EXPECT_EQ(ncclAllGather(mine, all, bytes, ncclUint8, comm, nullptr), ncclSuccess);
    return Status::Ok();
  };
  auto operations = (*plugin)->Open(group);
  ASSERT_TRUE(operations.ok()) << operations.status().message();
  EXPECT_EQ(OperationsContract(**operations, rank, num_ranks).Check(), "");
  const auto exchange = MakeOperationsExchange(std::move(*operations), rank, num_ranks);
  EXPECT_EQ(ExchangeContract(*exchange).Check(), "");
}

}  // namespace tutti::coordinator
