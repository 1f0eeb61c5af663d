#pragma once

// The performer: runs a batch of responses through the first of its operations that takes the
// batch, with the fusion buffer in between for fusing, scaling and converting. The performer never
// touches a tensor itself: tensor_memory.h does, and the same code therefore serves tensors on
// GPUs.
//
// One thread at a time; all ranks perform the same batches in the same order.

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/operations.h"
#include "coordinator/response.h"
#include "coordinator/tensor_memory.h"

namespace tutti::coordinator {

struct AdasumVectors;

class Performer {
 public:
  // Told when the tensors of a batch begin a part of the work, for the timeline.
  using Activity =
      std::function<void(const std::vector<Response>& batch, std::string_view activity)>;

  // `members` are the global ranks of the set, by which broadcast names its root. `memory` is the
  // memory of the tensors.
  Performer(std::vector<std::unique_ptr<Operations>> operations, int rank, std::vector<int> members,
            Activity activity,
            std::unique_ptr<TensorMemory> memory = std::make_unique<HostTensorMemory>());

  // Returns whether any of its operations takes the request. The answer is the same on all ranks.
  bool Takes(const Request& request, int64_t bytes) const;
  // Returns the name of the operations that move the request.
  std::string_view MoverOf(const Request& request, int64_t bytes) const {
    return Choose(request, bytes).name();
  }
  // Fills in the tickets of the tensors, apart from `done` and `status`.
  Status Perform(std::vector<Response>& batch);

  // The first step of alltoall: shares the numbers of rows from each rank, which lie in host memory
  // whatever the tensor lies in. Perform takes the step unless ShareSplits was called before.
  Status ShareSplits(Response& response);

 private:
  Operations& Choose(const Request& request, int64_t bytes) const;
  void Tell(const std::vector<Response>& batch, std::string_view activity) const;
  void TellIfGrowing(const std::vector<Response>& batch, size_t bytes) const;
  bool Stages(const Request& request) const;
  Result<ncclRedOp_t> OpFor(const Request& request, Operations& operations) const;

  Status Allreduce(std::vector<Response>& batch);
  Status AllreduceOne(Response& response, Operations& operations);
  Status Pack(const Response& response, std::byte* place);
  Status AllreduceFused(std::vector<Response>& batch, Operations& operations);
  Status AllreduceScattered(std::vector<Response>& batch, Operations& operations);
  Status ConvertForAdasum(const std::vector<Response>& batch, const AdasumVectors& vectors,
                          bool widens);
  Status AllreduceAdasum(std::vector<Response>& batch, Operations& operations);
  Status Allgather(std::vector<Response>& batch);
  Status AllgatherFused(std::vector<Response>& batch, Operations& operations);
  Status Broadcast(Response& response);
  Status Alltoall(Response& response);
  Status Reducescatter(Response& response);

  const std::vector<std::unique_ptr<Operations>> operations_;
  const int rank_;
  const int num_ranks_;
  const std::vector<int> members_;
  const Activity activity_;
  const std::unique_ptr<TensorMemory> memory_;
  Scattered scattered_;
};

// Stores the result of a tensor whose data came with the states. Any thread.
Status DeliverInlineData(Response& response);

// Returns the rows of a reducescatter by rank: the first dim0 mod n ranks get one row more.
std::vector<int64_t> ReducescatterRows(int64_t first_dim, int num_ranks);

}  // namespace tutti::coordinator
