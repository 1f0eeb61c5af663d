// SPDX-License-Identifier: Apache-2.0
#include "reductions.h"

#include <cstring>
#include <numeric>
#include <optional>

#include "checks.h"

namespace tutti_c10d {
namespace {

using c10d::ReduceOp;

// Up to this size in total, all values are gathered on every rank, which takes one round instead of
// two.
constexpr size_t kGatherAllBytes = 64 << 10;

constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                  "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};

std::optional<ncclDataType_t> LibraryType(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return ncclUint8;
    case at::kChar:
      return ncclInt8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kUInt32:
      return ncclUint32;
    case at::kUInt64:
      return ncclUint64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kFloat8_e4m3fn:
      return ncclFloat8e4m3;
    case at::kFloat8_e5m2:
      return ncclFloat8e5m2;
    default:
      return std::nullopt;
  }
}

std::optional<ncclRedOp_t> LibraryOperator(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
      return ncclSum;
    case ReduceOp::PRODUCT:
      return ncclProd;
    case ReduceOp::MAX:
      return ncclMax;
    case ReduceOp::MIN:
      return ncclMin;
    case ReduceOp::AVG:
      return ncclAvg;
    default:
      return std::nullopt;
  }
}

// With bytes that are 0 or 1, "or" is the largest and "and" the smallest.
std::optional<ncclRedOp_t> BoolOperator(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::MAX:
    case ReduceOp::BOR:
      return ncclMax;
    case ReduceOp::PRODUCT:
    case ReduceOp::MIN:
    case ReduceOp::BAND:
      return ncclMin;
    default:
      return std::nullopt;
  }
}

bool IsBitwise(ReduceOp::RedOpType op) {
  return op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
}

template <typename Combine>
void FoldWith(Combine combine, const uint8_t* rows, size_t row_bytes, int count, uint8_t* target) {
  std::memcpy(target, rows, row_bytes);
  for (int row = 1; row < count; ++row) {
    const uint8_t* values = rows + row * row_bytes;
    for (size_t i = 0; i < row_bytes; ++i) target[i] = combine(target[i], values[i]);
  }
}

// Combines the rows, which lie one after another in host memory, and stores the result in `target`,
// outside the rows.
void FoldHere(ReduceOp::RedOpType op, const void* rows, size_t row_bytes, int count, void* target) {
  const auto* from = static_cast<const uint8_t*>(rows);
  auto* to = static_cast<uint8_t*>(target);
  using Byte = uint8_t;
  if (op == ReduceOp::BAND) {
    FoldWith([](Byte a, Byte b) { return Byte(a & b); }, from, row_bytes, count, to);
  } else if (op == ReduceOp::BOR) {
    FoldWith([](Byte a, Byte b) { return Byte(a | b); }, from, row_bytes, count, to);
  } else {
    FoldWith([](Byte a, Byte b) { return Byte(a ^ b); }, from, row_bytes, count, to);
  }
}

// Combines rows of tensors, also on a GPU. `rows` are bytes.
void Fold(ReduceOp::RedOpType op, const at::Tensor& rows, size_t row_bytes, int count,
          const at::Tensor& target) {
  if (row_bytes == 0) return;
  if (rows.is_cpu()) {
    FoldHere(op, rows.data_ptr(), row_bytes, count, target.data_ptr());
    return;
  }
  const auto bytes = static_cast<int64_t>(row_bytes);
  const at::Tensor folded = rows.narrow(0, 0, bytes).clone();
  for (int row = 1; row < count; ++row) {
    const at::Tensor values = rows.narrow(0, row * bytes, bytes);
    if (op == ReduceOp::BAND) {
      folded.bitwise_and_(values);
    } else if (op == ReduceOp::BOR) {
      folded.bitwise_or_(values);
    } else {
      folded.bitwise_xor_(values);
    }
  }
  CopyBytes(target, 0, folded, 0, row_bytes);
}

// Returns `count` bytes of new memory of the kind in which `beside` lies.
at::Tensor NewBytes(size_t count, const at::Tensor& beside) {
  return at::empty({static_cast<int64_t>(count)}, beside.options().dtype(at::kByte));
}

}  // namespace

// How values of one type are reduced with one operator.
struct Reductions::Plan {
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  size_t parts =
      1;  // The number of values that the library sees in one element: 2 for a complex number.
  bool wide = false;     // Values are converted to 32 bits before, and back after.
  bool combine = false;  // Values are combined here, not by the library.

  // Stores the tensors for the library in the two parameters: the caller's own tensors unless
  // values are converted. Adds the step that converts before the call; Convert adds the step after
  // the call.
  void Prepare(Operation& operation, const at::Tensor& source, const at::Tensor& target,
               at::Tensor& from, at::Tensor& to) const {
    from = source;
    to = target;
    if (!wide) return;
    const at::TensorOptions options = source.options().dtype(at::kInt);
    from = at::empty(source.sizes(), options);
    to = target.sizes() == source.sizes() ? from : at::empty(target.sizes(), options);
    operation.Keep({source, target, from, to});
    operation.Then([from, source] { from.copy_(source); });
  }
  void Convert(Operation& operation, const at::Tensor& to, const at::Tensor& target) const {
    if (wide) operation.Then([to, target] { target.copy_(to); });
  }
};

Reductions::Plan Reductions::Choose(Operation& operation, at::ScalarType type,
                                    const ReduceOp& reduce_op) {
  const ReduceOp::RedOpType op = reduce_op.op_;
  Plan plan;
  if (type == at::kBool) {
    if (const auto chosen = BoolOperator(op)) {
      plan.op = *chosen;
      return plan;
    }
  }
  const bool whole = type == at::kBool || at::isIntegralType(type, /*includeBool=*/false) ||
                     at::isBarebonesUnsignedType(type);
  if (IsBitwise(op) && whole) {
    plan.combine = true;
    return plan;
  }
  at::ScalarType seen = type;
  if (at::isComplexType(type)) {
    plan.parts = 2;
    seen = at::toRealValueType(type);
  } else if (type == at::kShort || type == at::kUInt16) {
    plan.wide = true;
    seen = at::kInt;
  }
  const bool linear = op == ReduceOp::SUM || op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM;
  const auto library_type = LibraryType(seen);
  const auto library_op = LibraryOperator(op);
  TORCH_CHECK_VALUE(
      library_type && (library_op || op == ReduceOp::PREMUL_SUM) && (linear || plan.parts == 1),
      "the tutti backend does not reduce ", c10::toString(type), " with ", kNames[op]);
  plan.type = *library_type;
  plan.op = library_op ? *library_op : PreMulSum(operation, seen, *library_type, reduce_op);
  return plan;
}

ncclRedOp_t Reductions::PreMulSum(Operation& operation, at::ScalarType type,
                                  ncclDataType_t library_type, const ReduceOp& op) {
  const auto* supplement = static_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "PREMUL_SUM has no factor");
  const at::Tensor factor = (supplement->tensor_factor.defined()
                                 ? supplement->tensor_factor.cpu()
                                 : at::scalar_tensor(supplement->double_factor, at::kDouble))
                                .to(type);
  std::shared_ptr<void> keep;
  const ncclRedOp_t made = maker_.MakePreMulSum(factor.data_ptr(), library_type, keep);
  operation.Keep(std::move(keep));
  return made;
}

void Reductions::AllReduce(Operation& operation, const at::Tensor& source, const at::Tensor& target,
                           const ReduceOp& op) {
  ReduceWith(maker_.library().ncclAllReduce, operation, source, target, op);
}

void Reductions::Reduce(Operation& operation, const at::Tensor& source, const at::Tensor& target,
                        const ReduceOp& op, int root) {
  const auto reduce = [root, call = maker_.library().ncclReduce](
                          const void* send, void* recv, size_t count, ncclDataType_t type,
                          ncclRedOp_t operator_, ncclComm_t comm, cudaStream_t stream) {
    return call(send, recv, count, type, operator_, root, comm, stream);
  };
  ReduceWith(reduce, operation, source, target, op);
}

template <typename Call>
void Reductions::ReduceWith(const Call& call, Operation& operation, const at::Tensor& source,
                            const at::Tensor& target, const ReduceOp& op) {
  const Plan plan = Choose(operation, source.scalar_type(), op);
  if (plan.combine) {
    CombinedAllReduce(operation, source, target, op.op_);
    return;
  }
  at::Tensor from, to;
  plan.Prepare(operation, source, target, from, to);
  operation.Add([send = from.data_ptr(), recv = to.data_ptr(), plan, call,
                 count = source.numel() * plan.parts](ncclComm_t comm, cudaStream_t stream) {
    return call(send, recv, count, plan.type, plan.op, comm, stream);
  });
  plan.Convert(operation, to, target);
}

void Reductions::ReduceScatter(Operation& operation, const at::Tensor& source,
                               const at::Tensor& target, const ReduceOp& op,
                               const std::vector<size_t>& counts) {
  const Plan plan = Choose(operation, source.scalar_type(), op);
  if (plan.combine) {
    CombinedReduceScatter(operation, source, target, op.op_, counts);
    return;
  }
  at::Tensor from, to;
  plan.Prepare(operation, source, target, from, to);
  if (counts.empty()) {
    operation.Add(
        [send = from.data_ptr(), recv = to.data_ptr(), plan, count = target.numel() * plan.parts,
         call = maker_.library().ncclReduceScatter](ncclComm_t comm, cudaStream_t stream) {
          return call(send, recv, count, plan.type, plan.op, comm, stream);
        });
  } else {
    std::vector<size_t> values = counts;
    for (size_t& count : values) count *= plan.parts;
    operation.Add(
        [send = from.data_ptr(), recv = to.data_ptr(), plan, values,
         call = maker_.library().tuttiReduceScatterV](ncclComm_t comm, cudaStream_t stream) {
          return call(send, recv, values.data(), plan.type, plan.op, comm, stream);
        });
  }
  plan.Convert(operation, to, target);
}

void Reductions::CombinedAllReduce(Operation& operation, const at::Tensor& source,
                                   const at::Tensor& target, ReduceOp::RedOpType op) {
  const size_t bytes = Bytes(source);
  const Library& library = maker_.library();
  operation.Keep({source, target});
  if (bytes * size_ <= kGatherAllBytes) {
    const at::Tensor rows = NewBytes(bytes * size_, source);
    operation.Add([send = source.data_ptr(), recv = rows.data_ptr(), bytes,
                   call = library.ncclAllGather](ncclComm_t comm, cudaStream_t stream) {
      return call(send, recv, bytes, ncclUint8, comm, stream);
    });
    operation.Then(
        [rows, target, op, bytes, size = size_] { Fold(op, rows, bytes, size, target); });
    return;
  }
  // Every rank combines its part of the bytes. Parts are of one size; bytes beyond the tensor are
  // ignored.
  const size_t part = (bytes + size_ - 1) / size_;
  const at::Tensor sent = NewBytes(part * size_, source), rows = NewBytes(part * size_, source);
  const at::Tensor mine = NewBytes(part, source);
  operation.Then([sent, source, bytes] { CopyBytes(sent, 0, source, 0, bytes); });
  operation.Add([send = sent.data_ptr(), recv = rows.data_ptr(), part, call = library.ncclAlltoAll](
                    ncclComm_t comm, cudaStream_t stream) {
    return call(send, recv, part, ncclUint8, comm, stream);
  });
  operation.Then([rows, mine, op, part, size = size_] { Fold(op, rows, part, size, mine); });
  operation.Add([send = mine.data_ptr(), recv = sent.data_ptr(), part,
                 call = library.ncclAllGather](ncclComm_t comm, cudaStream_t stream) {
    return call(send, recv, part, ncclUint8, comm, stream);
  });
  operation.Then([sent, target, bytes] { CopyBytes(target, 0, sent, 0, bytes); });
}

void Reductions::CombinedReduceScatter(Operation& operation, const at::Tensor& source,
                                       const at::Tensor& target, ReduceOp::RedOpType op,
                                       const std::vector<size_t>& counts) {
  const size_t bytes = Bytes(target);
  const at::Tensor rows = NewBytes(bytes * size_, source);
  operation.Keep({source, target});
  size_t offset = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const size_t sent = counts.empty() ? bytes : counts[rank] * source.element_size();
    operation.Add([send = static_cast<const char*>(source.data_ptr()) + offset, sent, rank,
                   call = maker_.library().ncclSend](ncclComm_t comm, cudaStream_t stream) {
      return call(send, sent, ncclUint8, rank, comm, stream);
    });
    operation.Add([recv = static_cast<char*>(rows.data_ptr()) + rank * bytes, bytes, rank,
                   call = maker_.library().ncclRecv](ncclComm_t comm, cudaStream_t stream) {
      return call(recv, bytes, ncclUint8, rank, comm, stream);
    });
    offset += sent;
  }
  operation.Then([rows, target, op, bytes, size = size_] { Fold(op, rows, bytes, size, target); });
}

}  // namespace tutti_c10d
