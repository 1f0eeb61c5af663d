// SPDX-License-Identifier: Apache-2.0
#pragma once

// How torch.distributed's reductions are done with those that the library has.
//
// The library reduces most types with sum, product, maximum, minimum, average and PreMulSum. What
// it lacks is made of that: 16-bit integers are reduced as 32-bit ones, sums of complex numbers as
// sums of their parts. Bitwise operators are applied here, to the bytes that were gathered from all
// ranks.

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "ordered.h"

namespace tutti_c10d {

// Plans the reductions of one communicator of `size` ranks: each function adds the steps of one to
// an operation. Tensors are checked already; the operation keeps what it makes beside them, not
// them. ValueError for a type that is not reduced with the operator.
class Reductions {
 public:
  Reductions(OperatorMaker& maker, int size) : maker_(maker), size_(size) {}

  // Reduces `source` into `target` on all ranks. The two may be the same tensor.
  void AllReduce(Operation& operation, const at::Tensor& source, const at::Tensor& target,
                 const c10d::ReduceOp& op);

  // Reduces `source` into `target` on the root. Elsewhere `target` is a tensor of the same shape
  // that may be written to.
  void Reduce(Operation& operation, const at::Tensor& source, const at::Tensor& target,
              const c10d::ReduceOp& op, int root);

  // Reduces `source`, which holds a block for each rank, and leaves each rank its own in `target`.
  // `counts` are the blocks' elements, on all ranks alike; an empty one says that all have as many
  // as `target`.
  void ReduceScatter(Operation& operation, const at::Tensor& source, const at::Tensor& target,
                     const c10d::ReduceOp& op, const std::vector<size_t>& counts = {});

 private:
  struct Plan;

  // Returns how values of this type are reduced, and has the operation keep an operator made for
  // it.
  Plan Choose(Operation& operation, at::ScalarType type, const c10d::ReduceOp& op);
  ncclRedOp_t PreMulSum(Operation& operation, at::ScalarType type, ncclDataType_t library_type,
                        const c10d::ReduceOp& op);
  // Adds what AllReduce and Reduce have in common; `call` takes the arguments of ncclAllReduce.
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
