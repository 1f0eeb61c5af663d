#pragma once

// Defines the operations that `tutti perf` knows: what each moves for a given size, and how it is
// called.
//
// Sizes follow nccl-tests. The size of an operation is that of the larger buffer of a rank: for
// AllGather all that is received, for ReduceScatter all that is sent, for AlltoAll all that goes
// either way. Algorithm bandwidth is that size over the time; bus bandwidth multiplies it by what
// an ideal algorithm moves per byte over a rank's link, so that it can be compared with the
// hardware whatever the number of ranks.

#include <cstddef>
#include <string_view>
#include <vector>

#include "library.h"

namespace tutti::tools {

enum class Collective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kAlltoAll,
  kGather,
  kScatter,
  kSendRecv,   // Rank r sends to r + 1 and receives from r - 1.
  kHypercube,  // An AllGather made of Send and Recv between ranks whose numbers differ in one bit.
  kAllGatherV,
  kReduceScatterV,
  kAlltoAllV,
};

struct CollectiveInfo {
  Collective collective;
  std::string_view name;
  std::string_view plan_name;  // tuttiPlanDescribe's name for it; empty where it has none.
  bool reduces;
  bool rooted;
  bool has_in_place;
};

const std::vector<CollectiveInfo>& AllCollectives();

// Accepts "all_reduce", "allreduce", "AllReduce", "all-reduce", "all_reduce_perf".
Result<CollectiveInfo> ParseCollective(std::string_view name);

double BusFactor(Collective collective, int num_ranks);

// Says how much one call moves.
struct Shape {
  size_t count = 0;  // The count argument of the call.
  size_t bytes = 0;  // Its size, as above.
  size_t send_count =
      0;  // Elements of the send buffer, the largest over all ranks; of the receive buffer.
  size_t recv_count = 0;
};

// Returns the shape nearest to `bytes` that the ranks can share evenly: rounded down, but to no
// less than an element per rank unless `bytes` is 0.
Shape ShapeFor(Collective collective, size_t bytes, size_t element_size, int num_ranks);

// For collectives with sizes per rank: return how many of `count` elements block `rank` has, and
// where it begins.
size_t BlockCount(size_t count, int rank, int num_ranks);
size_t BlockStart(size_t count, int rank, int num_ranks);
// For AlltoAllV: returns how many elements go between two ranks, which are as many in either
// direction, for blocks of at most `count`.
size_t PairCount(size_t count, int a, int b);

// Elements [begin, begin + count) of a rank's receive buffer, which must hold what stands from
// element `source_begin` on in the input of rank `source_rank`, or in the reduction of all inputs.
struct Region {
  static constexpr int kReduced = -1;
  size_t begin = 0;
  size_t count = 0;
  int source_rank = 0;
  size_t source_begin = 0;
};
std::vector<Region> ExpectedRegions(Collective collective, const Shape& shape, int rank, int root,
                                    int num_ranks);

// Returns how many elements of its send buffer rank `rank` fills.
size_t SendCount(Collective collective, const Shape& shape, int rank, int num_ranks);

// Where the smaller buffer of an in-place call lies within the larger: sendbuff = recvbuff +
// send_offset, or recvbuff = sendbuff + recv_offset.
struct InPlaceOffsets {
  bool shared_is_recv = true;
  size_t offset = 0;
};
InPlaceOffsets InPlaceFor(Collective collective, const Shape& shape, int rank, int num_ranks);

// A call with everything but its buffers settled. Copyable; refers to the library.
class Operation {
 public:
  struct Arguments {
    const NcclLibrary* library = nullptr;
    Collective collective = Collective::kAllReduce;
    Shape shape;
    ncclDataType_t type = ncclFloat32;
    ncclRedOp_t op = ncclSum;
    int root = 0;
    int rank = 0;
    int num_ranks = 1;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
  };
  explicit Operation(const Arguments& arguments);

  // Returns InvalidUsage when the library has no way to run this collective.
  Status Supported() const;
  ncclResult_t Run(const void* send, void* recv) const;

 private:
  ncclResult_t RunAlltoAll(const void* send, void* recv) const;
  ncclResult_t RunGather(const void* send, void* recv) const;
  ncclResult_t RunScatter(const void* send, void* recv) const;
  ncclResult_t RunSendRecv(const void* send, void* recv) const;
  ncclResult_t RunHypercube(const void* send, void* recv) const;
  const char* At(const void* base, size_t element) const;
  char* At(void* base, size_t element) const;

  Arguments a_;
  size_t element_size_;
  // Used by the collectives with sizes per rank only.
  std::vector<size_t> counts_;
};

}  // namespace tutti::tools
