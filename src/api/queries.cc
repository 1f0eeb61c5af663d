// The queries of a communicator: its state, its last error, its shape, its plans.

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "api/collectives.h"
#include "api/context.h"
#include "api/making.h"
#include "nccl.h"
#include "tutti/tutti.h"

namespace tutti::api {
namespace {

Status AsyncError(ncclComm_t comm, ncclResult_t* out) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  if (out == nullptr) return InvalidArgument("asyncError is null");
  *out = ncclSuccess;
  // Read first: work notes its failure before it stops being pending.
  const bool in_progress = comm->in_progress();
  if (const Status error = comm->Error(); !error.ok()) {
    *out = static_cast<ncclResult_t>(error.code());
  } else if (in_progress) {
    *out = ncclInProgress;
  } else if (comm->comm && comm->comm->watch().stopped() && !comm->revoked) {
    *out = static_cast<ncclResult_t>(comm->comm->watch().StopReason().code());
  }
  return Status::Ok();
}

template <class F>
Status Query(ncclComm_t comm, int* out, F value) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (out == nullptr) return InvalidArgument("the place for the answer is null");
  *out = value(*comm->comm);
  return Status::Ok();
}

Status CopyText(const std::string& text, char* buffer, size_t capacity, size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (buffer == nullptr || capacity == 0) return Status::Ok();
  const size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
  return Status::Ok();
}

Status DescribeComm(ncclComm_t comm, char* buffer, size_t capacity, size_t* needed) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  return CopyText(comm->comm->DescribeAsJson(), buffer, capacity, needed);
}

// Stores the list of ranks that `which` of the watch returns.
Status GetRanks(ncclComm_t comm, std::vector<int> (Watch::*which)() const, int* ranks, int capacity,
                int* count) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (count == nullptr) return InvalidArgument("count is null");
  if (capacity < 0 || (ranks == nullptr && capacity > 0))
    return InvalidArgument("there is no place for {} ranks at {}", capacity,
                           static_cast<const void*>(ranks));
  const std::vector<int> listed = (comm->comm->watch().*which)();
  *count = static_cast<int>(listed.size());
  std::copy_n(listed.begin(), std::min(*count, capacity), ranks);
  return Status::Ok();
}

Status SetTimeout(ncclComm_t comm, double seconds) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  TUTTI_TRY(CheckTimeout("seconds", seconds));
  CollectiveTask task = {.collective = Collective::kAllReduce};
  task.wishes.timeout_ns = 1;  // A time-out of a call has the same demands on the ranks.
  TUTTI_TRY(comm->comm->operations().CheckWishes(task));
  comm->comm->watch().SetTimeout(static_cast<int64_t>(seconds * 1e9));
  return Status::Ok();
}

// The collectives that tuttiPlanDescribe knows. A plan of any other collective needs more than a
// count.
constexpr Collective kPlannedCollectives[] = {Collective::kAllReduce,     Collective::kReduce,
                                              Collective::kBroadcast,     Collective::kAllGather,
                                              Collective::kReduceScatter, Collective::kAlltoAll,
                                              Collective::kGather,        Collective::kScatter};
// A walk through the algorithm, chunk by chunk, finds a plan: some 10^9 chunks at this size.
constexpr size_t kMostPlannedBytes = size_t{1} << 44;

Status DescribePlan(ncclComm_t comm, const char* collective, size_t count, ncclDataType_t type,
                    ncclRedOp_t op, char* buffer, size_t capacity, size_t* needed) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (collective == nullptr) return InvalidArgument("the collective's name is null");
  TUTTI_TRY(CheckType(type));
  if (count > kMostPlannedBytes / SizeOf(static_cast<DataType>(type)))
    return InvalidArgument(
        "a plan for {} elements of {} would be too long to lay out: {} bytes is "
        "the most",
        count, Name(static_cast<DataType>(type)), kMostPlannedBytes);
  for (const Collective one : kPlannedCollectives) {
    if (Name(one) != std::string_view(collective)) continue;
    CollectiveTask task = {.collective = one, .count = count, .type = static_cast<DataType>(type)};
    if (task.is_reduction()) {
      TUTTI_ASSIGN(task.op, ResolveOp(comm, op, task.type));
    }
    return CopyText(comm->comm->operations().Describe(task), buffer, capacity, needed);
  }
  return InvalidArgument("\"{}\" is no collective; they are written as in AllReduce", collective);
}

}  // namespace
}  // namespace tutti::api

using namespace tutti;  // NOLINT(google-build-using-namespace): the C API below is outside of it
using api::Return;

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  return Return(__func__, [&] { return api::AsyncError(comm, asyncError); });
}

const char* ncclGetLastError(ncclComm_t comm) {
  // A communicator's asynchronous error has its own sentence. Without an error, the last failed
  // call of this thread has the sentence.
  thread_local std::string text;
  text.clear();
  const Status asked = WithoutExceptions([&] {
    const HandleUse use(comm);
    if (!use.inside()) return Status::Ok();
    Status error = use->Error();
    if (error.ok() && use->comm && use->comm->watch().stopped())
      error = use->comm->watch().StopReason();
    if (!error.ok()) text = error.message();
    return Status::Ok();
  });
  return asked.ok() && text.empty() ? api::LastError() : text.c_str();
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return Return(__func__, [&] {
    return api::Query(comm, count, [](Communicator& c) { return c.num_ranks(); });
  });
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return Return(__func__,
                [&] { return api::Query(comm, rank, [](Communicator& c) { return c.rank(); }); });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return Return(__func__, [&] {
    return api::Query(comm, device, [comm](Communicator& c) {
      return comm->device >= 0 ? comm->device : c.LocalRank();
    });
  });
}

ncclResult_t tuttiCommDescribe(ncclComm_t comm, char* buffer, size_t capacity, size_t* needed) {
  return Return(__func__, [&] { return api::DescribeComm(comm, buffer, capacity, needed); });
}

ncclResult_t tuttiCommGetLostRanks(ncclComm_t comm, int* ranks, int capacity, int* count) {
  return Return(__func__,
                [&] { return api::GetRanks(comm, &Watch::LostRanks, ranks, capacity, count); });
}

ncclResult_t tuttiCommGetHungRanks(ncclComm_t comm, int* ranks, int capacity, int* count) {
  return Return(__func__,
                [&] { return api::GetRanks(comm, &Watch::HungRanks, ranks, capacity, count); });
}

ncclResult_t tuttiCommSetTimeout(ncclComm_t comm, double seconds) {
  return Return(__func__, [&] { return api::SetTimeout(comm, seconds); });
}

ncclResult_t tuttiPlanDescribe(ncclComm_t comm, const char* collective, size_t count,
                               ncclDataType_t datatype, ncclRedOp_t op, char* buffer,
                               size_t capacity, size_t* needed) {
  return Return(__func__, [&] {
    return api::DescribePlan(comm, collective, count, datatype, op, buffer, capacity, needed);
  });
}

TUTTI_PNCCL(CommGetAsyncError);
TUTTI_PNCCL(GetLastError);
TUTTI_PNCCL(CommCount);
TUTTI_PNCCL(CommUserRank);
TUTTI_PNCCL(CommCuDevice);
