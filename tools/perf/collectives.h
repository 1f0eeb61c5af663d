#pragma once

// Defines the operations of `tutti perf`: how much each moves for a given size, and how each is
// called.
//
// Sizes follow nccl-tests. The size of an operation is the size of a rank's larger buffer: for
// AllGather the whole receive buffer, for ReduceScatter the whole send buffer, for AlltoAll the
// bytes of either direction. Algorithm bandwidth is the size over the time. Bus bandwidth
// multiplies algorithm bandwidth by the traffic of an ideal algorithm per byte over a rank's link,
// and can be compared with the hardware whatever the number of ranks.

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
  kSendRecv,   // rank r sends to r + 1 and receives from r - 1
  kHypercube,  // an AllGather made of Send and Recv between ranks whose numbers differ in one bit
  kAllGatherV,
  kReduceScatterV,
  kAlltoAllV,
  kGatherV,
  kScatterV,
};

struct CollectiveInfo {
  Collective collective;
  std::string_view name;
  std::string_view plan_name;  // tuttiPlanDescribe's name; empty for an operation without a plan
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
  size_t count = 0;  // the count argument of the call
  size_t bytes = 0;  // the size, as above
  size_t send_count =
      0;  // elements of the send buffer, the most of all ranks; likewise of the receive buffer
  size_t recv_count = 0;
};

// Returns the shape nearest to `bytes` that the ranks can share evenly: rounded down, but to no
// less than an element per rank unless `bytes` is 0.
Shape ShapeFor(Collective collective, size_t bytes, size_t element_size, int num_ranks);

// Both are for collectives with sizes per rank: return how many of `count` elements block `rank`
// has, and where the block begins.
size_t BlockCount(size_t count, int rank, int num_ranks);
size_t BlockStart(size_t count, int rank, int num_ranks);
// Returns, for AlltoAllV, how many elements go between two ranks, as many in either direction, for
// blocks of at most `count`.
size_t PairCount(size_t count, int a, int b);

// Describes elements [begin, begin + count) of a rank's receive buffer. The elements must equal the
// elements from `source_begin` on in the input of rank `source_rank`, or in the reduction of all
// inputs.
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

// Says where the smaller buffer of an in-place call lies within the larger: sendbuff = recvbuff +
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
  // in use only by the collectives with sizes per rank
  std::vector<size_t> counts_;
};

}  // namespace tutti::tools
