#pragma once

// Communicators of four ranks as two hosts, for tests of hierarchical operations.

#include <gtest/gtest.h>

#include "coordinator/communicator.h"
#include "coordinator/operations.h"

namespace tutti::coordinator {

struct TwoHosts {
  HierarchyShape shape;
  Communicator all, local, cross;
};

// Joins four ranks, which all call it.
inline void JoinTwoHosts(const ncclUniqueId& id, int rank, TwoHosts& hosts) {
  hosts.shape = {rank % 2, 2, rank / 2, 2};
  ncclComm_t all = nullptr, local = nullptr, cross = nullptr;
  ASSERT_EQ(ncclCommInitRank(&all, 4, id, rank), ncclSuccess);
  hosts.all = Communicator(all);
  ASSERT_EQ(ncclCommSplit(all, hosts.shape.cross_rank, rank, &local, nullptr), ncclSuccess);
  hosts.local = Communicator(local);
  ASSERT_EQ(ncclCommSplit(all, hosts.shape.local_rank, rank, &cross, nullptr), ncclSuccess);
  hosts.cross = Communicator(cross);
}

}  // namespace tutti::coordinator
