// SPDX-License-Identifier: Apache-2.0
// The sum of sparse tensors. Ranks gather the indices and values of all, and each rank adds them
// up, in the same order.

#include <ATen/core/grad_mode.h>

#include "backend.h"
#include "checks.h"

namespace tutti_c10d {
namespace {

// Returns a number made of the tensor's element type and sizes, which are the same on all ranks.
int64_t ShapeHash(const at::Tensor& tensor) {
  size_t hash = c10::get_hash(static_cast<int>(tensor.scalar_type()), tensor.sparse_dim());
  for (const int64_t size : tensor.sizes()) hash = c10::hash_combine(hash, c10::get_hash(size));
  return static_cast<int64_t>(hash);
}

// Returns a new tensor that has `size` elements along one dimension, and is otherwise like `like`.
at::Tensor NewLike(const at::Tensor& like, int64_t dimension, int64_t size) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[dimension] = size;
  return at::empty(sizes, like.options());
}

}  // namespace

std::vector<int64_t> TuttiBackend::GatherNumbers(int64_t number) {
  std::vector<int64_t> numbers(size_);
  Operation operation;
  operation.Add([send = &number, recv = numbers.data(), call = library_->ncclAllGather](
                    ncclComm_t comm, cudaStream_t stream) {
    return call(send, recv, 1, ncclInt64, comm, stream);
  });
  const auto work = c10::make_intrusive<TuttiWork>(c10d::OpType::ALLGATHER, nullptr, Tensors(),
                                                   Tensors(), sequence_);
  ordered_->Run(std::move(operation), work, /*waits=*/true, "tutti:all_reduce_sparse");
  work->wait();
  return numbers;
}

WorkPtr TuttiBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const Asked asked = {c10d::OpType::_ALLREDUCE_SPARSE, "tutti:sparse_all_reduce", tensors,
                       tensors};
  TORCH_CHECK_VALUE(tensors.size() == 1, "one tensor is wanted, not ", tensors.size());
  const at::Tensor& tensor = tensors[0];
  TORCH_CHECK_VALUE(tensor.is_cpu(),
                    "the tutti backend takes sparse tensors in host memory, not on ",
                    tensor.device());
  TORCH_CHECK_VALUE(opts.reduceOp == c10d::ReduceOp::SUM,
                    "the tutti backend reduces sparse tensors with SUM only");
  const at::NoGradGuard no_gradients;
  const at::Tensor mine = tensor.coalesce();
  const at::Tensor indices = mine.indices().contiguous(), values = mine.values().contiguous();
  const std::vector<int64_t> counts = GatherNumbers(mine._nnz());
  const std::vector<int64_t> hashes = GatherNumbers(ShapeHash(mine));
  for (int rank = 0; rank < size_; ++rank)
    TORCH_CHECK_VALUE(hashes[rank] == hashes[rank_], "rank ", rank,
                      " brings a sparse tensor of another type or other sizes than rank ", rank_);

  Tensors all_indices, all_values;
  std::vector<Message> sends, receives;
  for (int rank = 0; rank < size_; ++rank) {
    all_indices.push_back(NewLike(indices, 1, counts[rank]));
    all_values.push_back(NewLike(values, 0, counts[rank]));
    sends.emplace_back(indices, rank);
    receives.emplace_back(all_indices.back(), rank);
    sends.emplace_back(values, rank);
    receives.emplace_back(all_values.back(), rank);
  }
  const Place place(*this, {indices}, Waits(opts));
  Operation operation;
  operation.Keep({indices, values});
  AddExchange(operation, sends, receives);
  operation.Then([tensor, all_indices, all_values] {
    // To coalesce adds the values that have the same indices.
    tensor.copy_(at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values), tensor.sizes(),
                                       tensor.options())
                     .coalesce());
  });
  return Run(place, std::move(operation), asked);
}

}  // namespace tutti_c10d
