#pragma once

// Has what tests with a process per rank have in common. The test program itself never uses the
// library: see ranks.h.

#include <functional>
#include <string>
#include <vector>

#include "conformance/cases.h"

namespace tutti::testing {

// Marks and meetings of Board that these functions use; tests take numbers from kFirstFreeMark on.
inline constexpr int kIdReady = 0;
inline constexpr int kFirstFreeMark = 10;

// Joins all ranks: rank 0 makes the id and puts it on the board. Null (with a failure noted) where
// that failed.
ncclComm_t Join(int rank, int num_ranks, Board& board);
// The id that rank 0 made, for all.
ncclUniqueId SharedId(int rank, Board& board);

// The host that each rank plays to be on, by rank; equal names share memory.
using Hosts = std::vector<std::string>;
// Sets NCCL_HOSTID for the rest of this process.
void PlayHost(const Hosts& hosts, int rank);

// Runs all cases on ranks that are processes on these hosts. Ranks agree on the bits of each
// AllReduce.
void RunOnHosts(const Hosts& hosts, const std::vector<Case>& cases, double deadline_s = 120,
                const std::function<void(int rank)>& prepare = {});

}  // namespace tutti::testing
