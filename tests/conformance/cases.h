#pragma once

// One collective, run by one rank and checked there: every rank computes from the case alone what
// all ranks bring and what must come out of it, so that the same check serves ranks that are
// threads, processes or on other hosts.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/place.h"
#include "nccl.h"
#include "testing/oracle.h"
#include "testing/ranks.h"

namespace tutti::testing {

enum class Collective {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kReduceScatterV,
  kBroadcast,
  kAllGather,
  kAllGatherV,
  kAlltoAll,
  kAlltoAllV,
  kGather,
  kGatherV,
  kScatter,
  kScatterV,
  kSendRecv,  // Each rank sends to the two ranks after it and receives from the two before.
};
inline constexpr int kNumCollectives = 14;
bool Reduces(Collective collective);
bool HasRoot(Collective collective);

// Where buffers lie: in the program's own memory, or in that of ncclMemAlloc, which other processes
// can map.
enum class Memory { kOwn, kAllocated, kMixed };  // mixed: every second rank has its own

struct Case {
  Collective collective = Collective::kAllReduce;
  ncclDataType_t type = ncclFloat32;
  oracle::Op op = oracle::Op::kSum;
  size_t count = 1;
  int root = 0;
  bool in_place = false;
  // Floats that round, checked within bounds; otherwise floats whose result is exact (where the
  // type allows it).
  bool rounds = false;
  // Elements by which buffers are off a cache line.
  size_t skew = 0;
  uint64_t seed = 1;
  Memory memory = Memory::kOwn;
  // Once is enough for what is large; otherwise it runs twice and must give the same bits.
  bool once = false;
};
std::string Describe(const Case& c, int num_ranks);

// Runs the case as one rank and returns a hash of what it received. Failures are noted in the
// current test. `stream` is synchronized here.
uint64_t RunCase(ncclComm_t comm, const Case& c, cudaStream_t stream = UsualStream());
// The same as a graph: captured on the stream and replayed. GPUs only.
uint64_t RunCaptured(ncclComm_t comm, const Case& c, cudaStream_t stream);
// Runs the case on all ranks of a communicator, which are in the hands of the calling thread, in
// one group.
void RunCaseByOneThread(const std::vector<ncclComm_t>& comms, const Case& c);

// Runs all cases in order on one rank; stops at the first that cannot be run. A hash for each.
std::vector<uint64_t> RunCases(ncclComm_t comm, const std::vector<Case>& cases);

// Ranks that are threads of this process, joined by one communicator.
class ThreadWorld {
 public:
  explicit ThreadWorld(int num_ranks, const Environment::Settings& environment = {});
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int num_ranks() const { return static_cast<int>(comms_.size()); }
  bool ok() const { return ok_; }
  ncclComm_t comm(int rank) const { return comms_[static_cast<size_t>(rank)]; }
  // Returns what tuttiPlanDescribe says on rank 0.
  std::string Plan(const char* collective, size_t count, ncclDataType_t type);

  // Every rank runs all cases; ranks must agree on the bits of each AllReduce.
  void Run(const std::vector<Case>& cases, double deadline_s = 120);

 private:
  std::vector<ncclComm_t> comms_;
  bool ok_ = false;
};

// Polls a communicator until it is at rest and gives its state; ncclInProgress after a minute.
ncclResult_t Settle(ncclComm_t comm);

// How many entries a folder has, such as /proc/self/fd; 0 for one that cannot be opened.
size_t EntriesIn(const char* folder);

// "" for success, else the call's word with the library's sentence.
std::string Explain(ncclResult_t result, ncclComm_t comm = nullptr);

}  // namespace tutti::testing

// The library's calls must succeed.
#define EXPECT_NCCL(call) EXPECT_EQ(::tutti::testing::Explain(call), "") << #call
#define ASSERT_NCCL(call) ASSERT_EQ(::tutti::testing::Explain(call), "") << #call
