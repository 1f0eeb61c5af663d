// The operators of reductions, built in and made by callers.

#include <cstring>

#include "api/collectives.h"
#include "api/context.h"
#include "base/reduce.h"
#include "nccl.h"

namespace tutti::api {
namespace {

// The numbers of ncclRedOp_t are the five built-in operators, then the operators of
// ncclRedOpCreatePreMulSum.
constexpr int kBuiltInOps = 5;
constexpr uint8_t kPreMulSumNumber = 5;

Status CreatePreMulSum(ncclRedOp_t* op, const void* scalar, ncclDataType_t type,
                       ncclScalarResidence_t residence, ncclComm_t comm) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  if (op == nullptr) return InvalidArgument("op is null");
  if (scalar == nullptr) return InvalidArgument("the scalar is null");
  if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
    return InvalidArgument(
        "residence is {}, but must be ncclScalarDevice or ncclScalarHostImmediate",
        static_cast<int>(residence));
  TuttiUserOp user_op = {static_cast<DataType>(type), 0};
  if (residence == ncclScalarDevice)
    user_op.live = scalar;
  else
    std::memcpy(&user_op.scalar, scalar, SizeOf(user_op.type));
  const MutexLock lock(comm->mutex);
  const int number = kBuiltInOps + comm->next_user_op++;
  comm->user_ops[number] = user_op;
  *op = static_cast<ncclRedOp_t>(number);
  return Status::Ok();
}

Status DestroyOp(ncclRedOp_t op, ncclComm_t comm) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  const int number = static_cast<int>(op);
  if (number >= 0 && number < kBuiltInOps)
    return InvalidArgument("operator {} is built in and cannot be destroyed", number);
  const MutexLock lock(comm->mutex);
  if (comm->user_ops.erase(number) == 0)
    return InvalidArgument("{} is no operator of this communicator", number);
  return Status::Ok();
}

}  // namespace

Result<ReduceOp> ResolveOp(ncclComm* comm, ncclRedOp_t op, DataType type) {
  ReduceOp result;
  result.number = static_cast<uint8_t>(op);
  switch (static_cast<int>(op)) {
    case ncclSum:
      return result;
    case ncclProd:
      result.kind = ReduceKind::kProd;
      return result;
    case ncclMax:
      result.kind = ReduceKind::kMax;
      return result;
    case ncclMin:
      result.kind = ReduceKind::kMin;
      return result;
    case ncclAvg:
      result.average = true;
      return result;
    default:
      break;
  }
  const MutexLock lock(comm->mutex);
  const auto user_op = comm->user_ops.find(static_cast<int>(op));
  if (user_op == comm->user_ops.end()) {
    return InvalidArgument(
        "{} is no reduction operator: 0 to {} are, and those made by ncclRedOpCreatePreMulSum for "
        "this communicator",
        static_cast<int>(op), kBuiltInOps - 1);
  }
  if (user_op->second.type != type) {
    return InvalidArgument("the operator was made for {} and is used with {}",
                           Name(user_op->second.type), Name(type));
  }
  result.pre_multiply = true;
  result.scalar = user_op->second.scalar;
  result.live_scalar = user_op->second.live;
  result.number = kPreMulSumNumber;
  return result;
}

}  // namespace tutti::api

using namespace tutti;  // NOLINT(google-build-using-namespace): the C API below is outside of it
using api::Return;

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return Return(__func__,
                [&] { return api::CreatePreMulSum(op, scalar, datatype, residence, comm); });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return Return(__func__, [&] { return api::DestroyOp(op, comm); });
}

TUTTI_PNCCL(RedOpCreatePreMulSum);
TUTTI_PNCCL(RedOpDestroy);
