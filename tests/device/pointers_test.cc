// Teams, and where memory of a window lies.

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "devcomm/testing/lsa_threads.h"
#include "tutti/host_kernel.h"

namespace tutti {
namespace {

ncclDevComm CommOf(int rank, int num_ranks, int lsa_size) {
  const ResourcePlan plan;
  return MakeDevComm({.rank = rank, .num_ranks = num_ranks, .lsa_size = lsa_size, .plan = &plan});
}

TEST(TeamTest, DivisionByReciprocalIsExact) {
  const uint32_t values[] = {0,    1,     2,     6,          7,          8,
                             1000, 65535, 65536, 0x7fffffff, 0x80000000, UINT32_MAX};
  for (uint32_t divisor = 1; divisor < 3000; ++divisor)
    for (const uint32_t base : values)
      for (const uint32_t value :
           {base, base * divisor, base * divisor - 1, base / divisor * divisor})
        ASSERT_EQ(device::DivideBy(value, divisor, device::Reciprocal32(divisor)), value / divisor)
            << value << " / " << divisor;
}

TEST(TeamTest, RailsCrossLsaTeams) {
  for (int lsa_size : {1, 2, 3, 4, 6, 12}) {
    for (int rank = 0; rank < 12; ++rank) {
      const ncclDevComm comm = CommOf(rank, 12, lsa_size);
      const ncclTeam world = ncclTeamWorld(comm);
      const ncclTeam lsa = ncclTeamLsa(comm);
      const ncclTeam rail = ncclTeamRail(comm);
      EXPECT_EQ(rail.nRanks, 12 / lsa_size);
      for (int i = 0; i < lsa.nRanks; ++i)
        EXPECT_EQ(ncclTeamRankToWorld(comm, lsa, i), rank / lsa_size * lsa_size + i);
      for (int i = 0; i < rail.nRanks; ++i) {
        const int other = ncclTeamRankToWorld(comm, rail, i);
        EXPECT_EQ(other, i * lsa_size + rank % lsa_size);
        EXPECT_EQ(ncclTeamRankToTeam(rail, world, other), i);
      }
      for (int other = 0; other < 12; ++other) {
        EXPECT_EQ(ncclTeamRankIsMember(lsa, world, other), other / lsa_size == rank / lsa_size);
        EXPECT_EQ(ncclTeamRankIsMember(rail, world, other), other % lsa_size == rank % lsa_size);
      }
    }
  }
}

// Every subset whose ranks lie evenly, forwards and backwards, against plain counting.
TEST(TeamTest, DifferenceHasTheOtherRanksInOrder) {
  constexpr int kRanks = 12;
  for (int first = 0; first < kRanks; ++first) {
    for (int step = -kRanks; step <= kRanks; ++step) {
      if (step == 0) continue;
      for (int count = 1; first + (count - 1) * step >= 0 && first + (count - 1) * step < kRanks;
           ++count) {
        const int own = count / 2;  // The caller is in both teams.
        const ncclTeam parent = {kRanks, first + own * step, 1};
        const ncclTeam subset = {count, own, step};
        std::set<int> members;
        for (int i = 0; i < count; ++i) members.insert(first + i * step);
        int index = 0;
        for (int rank = 0; rank < kRanks; ++rank) {
          if (members.count(rank) != 0) continue;
          ASSERT_EQ(ncclTeamRankInDifference(parent, subset, index++), rank)
              << first << " + i * " << step << ", " << count;
        }
      }
    }
  }
}

TEST(PointersTest, AllWaysLeadToTheSameByte) {
  LsaThreads team(3);
  const std::vector<ncclWindow_t> first = team.MakeWindow(8192);
  const std::vector<ncclWindow_t> window = team.MakeWindow(8192);
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  const std::vector<ncclDevComm> comms = team.MakeDevComms(requirements);
  for (int rank = 0; rank < 3; ++rank) {
    const ncclWindow_t own = window[static_cast<size_t>(rank)];
    const ncclDevComm& comm = comms[static_cast<size_t>(rank)];
    EXPECT_EQ(ncclGetLocalPointer(own, 100), team.At<char>(own, rank) + 100);
    EXPECT_NE(ncclGetLocalPointer(own, 0), ncclGetLocalPointer(first[0], 0));
    const ncclSymPtr<int> elements = ncclSymPtr<int>(own, 400) + 25;
    for (int peer = 0; peer < 3; ++peer) {
      char* const expected = team.At<char>(window[0], peer) + 500;
      EXPECT_EQ(ncclGetLsaPointer(own, 500, peer), expected);
      EXPECT_EQ(ncclGetPeerPointer(own, 500, peer), expected);
      EXPECT_EQ(ncclGetPeerPointer(own, 500, ncclTeamLsa(comm), peer), expected);
      EXPECT_EQ(static_cast<void*>(elements.lsaPtr(peer)), expected);
      EXPECT_EQ(static_cast<void*>(elements.peerPtr(peer)), expected);
      EXPECT_EQ(ncclGetResourceBufferLsaPointer(comm, 3, peer),
                ncclGetResourceBuffer(comm, 3).lsaPtr(peer));
    }
  }
}

TEST(PointersTest, WindowsAreFoundByAddress) {
  ncclWindow_vidmem records[40] = {};
  ncclDevCommWindowTable tables[2] = {};
  tables[0].next = &tables[1];
  for (uintptr_t i = 0; i < 40; ++i)
    tables[i / 32].entries[i % 32] = {0x10000 + 0x1000 * i, 0x800, &records[i]};
  tables[0].entries[7] = {};  // given back
  ncclDevComm comm = {};
  comm.windowTable = tables;
  const auto find = [&](uintptr_t address) {
    return ncclFindWindow(ncclCoopThread(), comm, reinterpret_cast<void*>(address));
  };
  EXPECT_EQ(find(0x10000), &records[0]);
  EXPECT_EQ(find(0x107ff), &records[0]);
  EXPECT_EQ(find(0x10800), nullptr);
  EXPECT_EQ(find(0x17000), nullptr);
  EXPECT_EQ(find(0x10000 + 0x1000 * 39), &records[39]);
  EXPECT_EQ(find(0xffff), nullptr);
}

}  // namespace
}  // namespace tutti
