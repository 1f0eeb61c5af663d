#pragma once

// The performer: runs a batch of responses through the first of its operations that takes it, with
// the fusion buffer in between where there is something to fuse, scale or convert.
//
// One thread at a time; all ranks perform the same batches in the same order.

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/operations.h"
#include "coordinator/tensor.h"

namespace tutti::coordinator {

class Performer {
 public:
  // Told when the tensors of a batch begin a part of the work, for the timeline.
  using Activity =
      std::function<void(const std::vector<Response>& batch, std::string_view activity)>;

  // `members` are the global ranks of the set: broadcast names its root by them.
  Performer(std::vector<std::unique_ptr<Operations>> operations, int rank, std::vector<int> members,
            Activity activity);

  // Fills in the tickets of the tensors, apart from `done` and `status`.
  Status Perform(std::vector<Response>& batch);

 private:
  Operations& Choose(const Request& request, int64_t bytes) const;
  void Tell(const std::vector<Response>& batch, std::string_view activity) const;
  Result<std::byte*> Scratch(OwnedBytes& buffer, size_t& capacity, size_t bytes);

  Status Allreduce(std::vector<Response>& batch);
  Status AllreduceOne(Response& response, Operations& operations);
  Status AllreduceFused(std::vector<Response>& batch, Operations& operations);
  Status AllreduceScattered(std::vector<Response>& batch, Operations& operations);
  Status AllreduceAdasum(Response& response, Operations& operations);
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
  OwnedBytes fusion_;
  size_t fusion_capacity_ = 0;
  Scattered scattered_;
  OwnedBytes second_;
  size_t second_capacity_ = 0;
};

// Hands over the result of a tensor whose data rode with the states. Any thread.
Status DeliverRide(Response& response);

// Rows of a reducescatter that rank r gets: the first dim0 mod n ranks get one more.
std::vector<int64_t> ReducescatterRows(int64_t first_dim, int num_ranks);

}  // namespace tutti::coordinator
