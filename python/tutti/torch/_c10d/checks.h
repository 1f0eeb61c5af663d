// SPDX-License-Identifier: Apache-2.0
#pragma once

// The demands of the backend's functions on their tensors. A ValueError names the fault.

#include <ATen/ATen.h>

#include <cstring>
#include <vector>

namespace tutti_c10d {

// Returns the tensor, whose values lie one after another, in host memory or on a GPU. `name` is the
// name of the argument, for sentences.
inline const at::Tensor& Checked(const at::Tensor& tensor, const char* name = "tensor") {
  TORCH_CHECK_VALUE((tensor.is_cpu() || tensor.is_cuda()) && tensor.layout() == at::kStrided,
                    "the tutti backend takes dense tensors in host memory or on GPUs of CUDA, but "
                    "the ",
                    name, " is ", tensor.layout(), " on ", tensor.device());
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "the ", name, " must be contiguous, but its shape is ",
                    tensor.sizes(), " and its strides are ", tensor.strides(),
                    "; use its contiguous()");
  // The memory of a conjugated or negated view does not have the view's values.
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "the ", name,
                    " is a conjugated or negated view; use its resolve_conj() or resolve_neg()");
  return tensor;
}

// Returns the only tensor of the list, checked.
inline const at::Tensor& Only(const std::vector<at::Tensor>& tensors, const char* name = "tensor") {
  TORCH_CHECK_VALUE(tensors.size() == 1, "one tensor is wanted, not ", tensors.size());
  return Checked(tensors[0], name);
}

// Returns the only list, which has a tensor for each rank.
inline const std::vector<at::Tensor>& ForEachRank(const std::vector<std::vector<at::Tensor>>& lists,
                                                  int size) {
  TORCH_CHECK_VALUE(lists.size() == 1, "one list of tensors is wanted, not ", lists.size());
  TORCH_CHECK_VALUE(lists[0].size() == static_cast<size_t>(size), "the list has ", lists[0].size(),
                    " tensors, but there are ", size, " ranks");
  return lists[0];
}

inline void CheckAsMany(const std::vector<at::Tensor>& outputs,
                        const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "there are ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
}

inline void CheckSameType(const at::Tensor& output, const at::Tensor& input, const char* what) {
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(), what, " of ", input.scalar_type(),
                    " does not give ", output.scalar_type());
}

// Returns whether the caller of torch.distributed waits for the operation at once. Older versions
// of PyTorch do not tell.
template <typename Options>
bool Waits(const Options& options) {
  if constexpr (requires { options.asyncOp; }) {
    return !options.asyncOp;
  } else {
    return false;
  }
}

// Returns the memory of a checked tensor, as bytes.
inline at::Tensor BytesOf(const at::Tensor& tensor) { return tensor.reshape({-1}).view(at::kByte); }

// Copies `bytes` bytes from a place in a tensor to a place in another, which may be of another
// type. Both are on the host, or on the same GPU, whose current stream copies.
inline void CopyBytes(const at::Tensor& to, size_t to_at, const at::Tensor& from, size_t from_at,
                      size_t bytes) {
  if (bytes == 0) return;
  if (to.is_cpu()) {
    std::memcpy(static_cast<char*>(to.data_ptr()) + to_at,
                static_cast<const char*>(from.data_ptr()) + from_at, bytes);
    return;
  }
  const auto part = [bytes](const at::Tensor& tensor, size_t at) {
    return BytesOf(tensor).narrow(0, static_cast<int64_t>(at), static_cast<int64_t>(bytes));
  };
  part(to, to_at).copy_(part(from, from_at));
}

// Copies the parts into `whole`, one after another. All are checked.
inline void Join(const std::vector<at::Tensor>& parts, const at::Tensor& whole) {
  size_t at = 0;
  for (const at::Tensor& part : parts) {
    CopyBytes(whole, at, part, 0, part.nbytes());
    at += part.nbytes();
  }
}

// Copies `whole` into the parts, one after another.
inline void Share(const at::Tensor& whole, const std::vector<at::Tensor>& parts) {
  size_t at = 0;
  for (const at::Tensor& part : parts) {
    CopyBytes(part, 0, whole, at, part.nbytes());
    at += part.nbytes();
  }
}

}  // namespace tutti_c10d
