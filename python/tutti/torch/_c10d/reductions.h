// SPDX-License-Identifier: Apache-2.0
#pragma once

// torch.distributed's reductions, made of the library's reductions.
//
// The library reduces most types with sum, product, maximum, minimum, average and PreMulSum.
// Missing reductions are made of these: 16-bit integers are reduced as 32-bit integers, sums of
// complex numbers as sums of their parts. Bitwise operators are applied here, to the bytes gathered
// from all ranks.

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "ordered.h"

namespace tutti_c10d {

// Plans the reductions of one communicator of `size` ranks: each function adds the steps of a
// reduction to an operation. Tensors are checked already. The operation keeps further buffers, but
// not the tensors. ValueError for a type that is not reduced with the operator.
class Reductions {
 public:
  Reductions(OperatorMaker& maker, int size) : maker_(maker), size_(size) {}

  // Reduces `source` into `target` on all ranks. The two may be the same tensor.
  void AllReduce(Operation& operation, const at::Tensor& source, const at::Tensor& target,
                 const c10d::ReduceOp& op);

  // Reduces `source` into `target` on the root. Elsewhere `target` is a scratch tensor of the same
  // shape.
  void Reduce(Operation& operation, const at::Tensor& source, const at::Tensor& target,
              const c10d::ReduceOp& op, int root);

  // Reduces `source`, which holds a block for each rank, and leaves each rank its own block in
  // `target`. `counts` are the blocks' elements, on all ranks alike; with an empty list all blocks
  // have as many elements as `target`.
  void ReduceScatter(Operation& operation, const at::Tensor& source, const at::Tensor& target,
                     const c10d::ReduceOp& op, const std::vector<size_t>& counts = {});

 private:
  struct Plan;

  // Returns how values of this type are reduced, and has the operation keep an operator made for
  // the reduction.
  Plan Choose(Operation& operation, at::ScalarType type, const c10d::ReduceOp& op);
  ncclRedOp_t PreMulSum(Operation& operation, at::ScalarType type, ncclDataType_t library_type,
                        const c10d::ReduceOp& op);
  // Adds the common part of AllReduce and Reduce; `call` takes the arguments of ncclAllReduce.
  template <typename Call>
  void ReduceWith(const Call& call, Operation& operation, const at::Tensor& source,
                  const at::Tensor& target, const c10d::ReduceOp& op);
  void CombinedAllReduce(Operation& operation, const at::Tensor& source, const at::Tensor& target,
                         c10d::ReduceOp::RedOpType op);
  void CombinedReduceScatter(Operation& operation, const at::Tensor& source,
                             const at::Tensor& target, c10d::ReduceOp::RedOpType op,
                             const std::vector<size_t>& counts);

  OperatorMaker& maker_;
  const int size_;
};

// Returns how many bytes the tensor's values take.
inline size_t Bytes(const at::Tensor& tensor) { return tensor.nbytes(); }

}  // namespace tutti_c10d
