// LL all-to-all exchanges between kernels of ranks that are threads, against plain arithmetic.

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "devcomm/testing/lsa_threads.h"
#include "tutti/host_kernel.h"

namespace tutti {
namespace {

// A team with room for exchanges.
struct Exchanges {
  Exchanges(int num_ranks, int blocks, int slots) : team(num_ranks) {
    ncclDevResourceRequirements_t element;
    EXPECT_TRUE(FillLLA2ARequirement(blocks, slots, &handle, &element).ok());
    ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    requirements.resourceRequirementsList = &element;
    comms = team.MakeDevComms(requirements);
  }
  LsaThreads team;
  ncclLLA2AHandle handle = {};
  std::vector<ncclDevComm> comms;
};

struct Odd {
  uint32_t a, b, c;  // 12 bytes: two lines, the second half full
};
bool operator==(const Odd& x, const Odd& y) { return x.a == y.a && x.b == y.b && x.c == y.c; }

template <typename T>
T ValueOf(int from, int to, int element, int epoch) {
  return static_cast<T>(from * 1000 + to * 100 + element * 10 + epoch % 7);
}
template <>
Odd ValueOf(int from, int to, int element, int epoch) {
  const auto number = ValueOf<uint32_t>(from, to, element, epoch);
  return {number, ~number, number * 3};
}

// In every epoch each rank sends `per_peer` elements to each rank, and checks what it gets.
template <typename T>
__global__ void SendToAll(ncclDevComm comm, ncclLLA2AHandle handle, int per_peer, int first_epoch,
                          int epochs, std::atomic<int>* wrong) {
  const int elements = comm.nRanks * per_peer;
  ncclLLA2ASession<ncclCoopCta> session(ncclCoopCta(), comm, ncclTeamLsa(comm), handle, blockIdx.x,
                                        elements);
  for (int epoch = first_epoch; epoch < first_epoch + epochs; ++epoch) {
    for (int i = static_cast<int>(threadIdx.x); i < elements; i += static_cast<int>(blockDim.x)) {
      const int peer = i / per_peer;
      const int element = i % per_peer;
      session.send(peer, comm.rank * per_peer + element,
                   ValueOf<T>(comm.rank, peer, element, epoch));
    }
    for (int i = static_cast<int>(threadIdx.x); i < elements; i += static_cast<int>(blockDim.x)) {
      const T got = session.template recv<T>(i);
      if (!(got == ValueOf<T>(i / per_peer, comm.rank, i % per_peer, epoch))) ++*wrong;
    }
    session.endEpoch(ncclCoopCta());
  }
}

template <typename T>
int WrongElements(Exchanges& exchanges, int per_peer, int launches, int epochs) {
  std::atomic<int> wrong = 0;
  exchanges.team.Run([&](int rank) {
    const ncclDevComm& comm = exchanges.comms[static_cast<size_t>(rank)];
    for (int i = 0; i < launches; ++i)
      EXPECT_EQ(Launch(SendToAll<T>, {2, 2}, comm, exchanges.handle, per_peer, i * epochs, epochs,
                       &wrong),
                ncclSuccess);
  });
  return wrong;
}

TEST(LLAllToAllTest, ElementsOfAllSizesArrive) {
  Exchanges exchanges(3, 2, 3 * 4 * 2);
  EXPECT_EQ(WrongElements<int8_t>(exchanges, 4, 2, 3), 0);
  EXPECT_EQ(WrongElements<float>(exchanges, 4, 2, 3), 0);
  EXPECT_EQ(WrongElements<double>(exchanges, 4, 2, 3), 0);
  EXPECT_EQ(WrongElements<Odd>(exchanges, 4, 2, 3), 0);
}

TEST(LLAllToAllTest, EpochsGoOnOverLaunches) {
  Exchanges exchanges(2, 2, 2);
  EXPECT_EQ(WrongElements<int>(exchanges, 1, 100, 5), 0);
}

TEST(LLAllToAllTest, EpochsWrapAround) {
  Exchanges exchanges(3, 2, 3 * 2);
  for (const ncclDevComm& comm : exchanges.comms) {
    auto* const lines = static_cast<device::LLLine*>(
        ncclGetResourceBufferLocalPointer(comm, exchanges.handle.bufHandle));
    for (unsigned block = 0; block < 2; ++block)
      lines[block * (1 + 2 * exchanges.handle.nSlots)].data_low = UINT32_MAX - 6;
  }
  EXPECT_EQ(WrongElements<int64_t>(exchanges, 2, 4, 3), 0);
}

__global__ void SumOfAll(ncclDevComm comm, ncclLLA2AHandle handle, std::vector<std::string>* sums) {
  ncclLLA2ASession<ncclCoopThread> session(ncclCoopThread(), comm, ncclTeamLsa(comm), handle, 0,
                                           comm.nRanks);
  session.bcast(comm.rank, static_cast<char>('a' + comm.rank));
  // A reduction that shows the order of its operands.
  (*sums)[static_cast<size_t>(comm.rank)] = session.recvReduce<2, char>(
      0, comm.nRanks, 1, [](char c) { return std::string(1, c); },
      [](const std::string& a, const std::string& b) { return a + b; });
  session.endEpoch(ncclCoopThread());
}

TEST(LLAllToAllTest, ReducesInOrder) {
  Exchanges exchanges(5, 1, 5);
  std::vector<std::string> sums(5);
  exchanges.team.Run([&](int rank) {
    EXPECT_EQ(Launch(SumOfAll, {1, 1}, exchanges.comms[static_cast<size_t>(rank)], exchanges.handle,
                     &sums),
              ncclSuccess);
  });
  for (const std::string& sum : sums) EXPECT_EQ(sum, "abcde");
}

TEST(LLAllToAllTest, AnAbortEndsTheWait) {
  Exchanges exchanges(2, 1, 2);
  std::atomic<bool> waiting = false;
  std::thread receiver([&] {
    ncclLLA2ASession<ncclCoopThread> session(ncclCoopThread(), exchanges.comms[0],
                                             ncclTeamLsa(exchanges.comms[0]), exchanges.handle, 0,
                                             2);
    session.send(1, 0, 5);
    waiting = true;
    EXPECT_EQ(session.recv<int>(1), 0);
  });
  while (!waiting) std::this_thread::yield();
  cuda::atomic_ref<uint32_t>(*exchanges.team.abort_flag()).store(1);
  receiver.join();
}

}  // namespace
}  // namespace tutti
