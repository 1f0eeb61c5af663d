#pragma once

// Whether a deterministic communicator gives the very bits that docs/determinism.md promises.
//
// The inputs of a (type, operator) are one pattern of elements per rank, repeated without end; what
// must come of it is found once, by the scalar oracle. An operation on any stretch of it must then
// give that stretch of the result, bit by bit, so that long arrays and all lengths are quickly
// checked.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/cases.h"
#include "nccl.h"
#include "testing/oracle.h"

namespace tutti::testing {

struct OrderCase {
  Collective collective = Collective::kAllReduce;  // or kReduce, kReduceScatter, kReduceScatterV
  size_t count = 1;                                // per rank for a reduce-scatter
  size_t from = 0;                                 // the element of the pattern that comes first
  size_t skew = 0;                                 // elements by which buffers are off a cache line
  int root = 0;
  bool in_place = false;
  bool many = false;      // AllReduce only: through tuttiAllReduceMany, in buffers of odd lengths
  bool captured = false;  // GPUs only: as a graph that is launched twice
  bool asks = false;      // The call asks for the order; not for kReduceScatterV, nor with `many`.
};

// The inputs and results of one type and operator for one number of ranks.
class OrderOracle {
 public:
  OrderOracle(ncclDataType_t type, oracle::Op op, int num_ranks);

  // Runs the case as one rank of a communicator of num_ranks and checks what comes out. Failures
  // are noted in the current test. False where it failed.
  bool Check(ncclComm_t comm, int rank, const OrderCase& c,
             cudaStream_t stream = UsualStream()) const;

 private:
  struct Extent;
  size_t size() const { return oracle::SizeOf(type_); }
  // Stretches of a pattern, which goes on without end.
  void Fill(std::byte* to, const std::vector<std::byte>& pattern, size_t from, size_t count) const;
  bool Matches(const std::byte* actual, size_t from, size_t count, const OrderCase& c,
               int rank) const;
  ncclResult_t Call(const OrderCase& c, const Extent& extent, const void* send, void* recv,
                    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) const;

  ncclDataType_t type_;
  oracle::Op op_;
  int num_ranks_;
  std::vector<uint64_t> scalars_;               // Those of PreMulSum, one for each rank.
  std::vector<std::vector<std::byte>> inputs_;  // a pattern for each rank
  std::vector<std::byte> expected_;
};

// All types and operators whose result may depend on the order, and some of those whose does not.
std::vector<std::pair<ncclDataType_t, oracle::Op>> TypesAndOperatorsInOrder();

// Checks as one rank: `counts` with every collective, types and operators taking turns; and every
// type and operator with some counts.
void CheckOrderOfCounts(ncclComm_t comm, int rank, int num_ranks,
                        const std::vector<size_t>& counts);
void CheckOrderOfTypes(ncclComm_t comm, int rank, int num_ranks, bool captured = false);

}  // namespace tutti::testing
