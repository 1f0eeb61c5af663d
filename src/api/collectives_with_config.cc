// The collectives that take options for a single call. The options are checked here, and become the
// call's wishes.

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "api/collectives.h"
#include "api/context.h"
#include "nccl.h"
#include "plan/plan.h"
#include "tutti/tutti.h"

namespace tutti::api {
namespace {

// A longer list of options is taken for a circle.
constexpr int kMostOptions = 1024;
constexpr int kMostClusterSize = 8;
constexpr uint64_t kReservedTag = uint64_t{1} << 63;
constexpr int64_t kNsInMs = 1'000'000;
// NCCL 2.31's form of the struct, which ends before the event.
constexpr size_t kOldestSize = offsetof(ncclCollConfig_t, launchCompletionEvent);
constexpr int kMostPolicy = NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO;

bool Unset(int value) { return value == NCCL_CONFIG_UNDEF_INT; }

Status ReadBlocks(const ncclCollConfig_t& config, CallWishes& wishes) {
  for (const int value : {config.minCTAs, config.maxCTAs, config.nvlsCTAs}) {
    if (!Unset(value) && value < 1) {
      return InvalidArgument("minCTAs, maxCTAs and nvlsCTAs of a call are at least 1, not {}",
                             value);
    }
  }
  if (!Unset(config.minCTAs) && !Unset(config.maxCTAs) && config.minCTAs > config.maxCTAs) {
    return InvalidArgument("minCTAs {} is greater than maxCTAs {}", config.minCTAs, config.maxCTAs);
  }
  if (!Unset(config.cgaClusterSize) &&
      (config.cgaClusterSize < 0 || config.cgaClusterSize > kMostClusterSize)) {
    return InvalidArgument("cgaClusterSize is 0 to {}, not {}", kMostClusterSize,
                           config.cgaClusterSize);
  }
  if (!Unset(config.maxCTAs)) wishes.most_blocks = static_cast<uint32_t>(config.maxCTAs);
  return Status::Ok();
}

// Reads an option with a number of Tutti.
Status ReadOption(const ncclConfigExt_t& option, CallWishes& wishes) {
  const int value = option.val.i;
  switch (option.key.optionId) {
    case tuttiCallDeterministic:
      if (value != 0 && value != 1)
        return InvalidArgument("tuttiCallDeterministic is 0 or 1, not {}", value);
      wishes.deterministic = value == 1;
      return Status::Ok();
    case tuttiCallTimeoutMs:
      if (value < 1) return InvalidArgument("tuttiCallTimeoutMs is at least 1, not {}", value);
      wishes.timeout_ns = value * kNsInMs;
      return Status::Ok();
    default:
      return InvalidArgument("this release of Tutti knows no option {} of a call",
                             option.key.optionId);
  }
}

Status ReadOptions(const ncclCollConfig_t& config, CallWishes& wishes) {
  int options = 0;
  for (const ncclConfigExt_t* option = config.ext; option != nullptr; option = option->next) {
    if (++options > kMostOptions) {
      return InvalidArgument("the config has more than {} options, or its list has no end",
                             kMostOptions);
    }
    if (option->key.vendorId == TUTTI_VENDOR_ID) TUTTI_TRY(ReadOption(*option, wishes));
  }
  return Status::Ok();
}

Status ReadAlgorithms(const ncclCollConfig_t& config, CallWishes& wishes) {
  if (config.algSelection == nullptr || *config.algSelection == '\0') return Status::Ok();
  TUTTI_ASSIGN(wishes.algorithms, ReadAlgorithmNames(config.algSelection));
  wishes.demands_algorithms = config.forceAlgSelection != 0;
  if (wishes.algorithms == 0 && wishes.demands_algorithms)
    return InvalidUsage("algSelection {} names nothing that is there", config.algSelection);
  return Status::Ok();
}

// Copies the known part of a config. The further fields of a newer header's struct are not looked
// at.
Result<ncclCollConfig_t> CopyConfig(const ncclCollConfig_t& config) {
  if (config.magic != NCCL_API_MAGIC || config.size < kOldestSize) {
    return InvalidArgument(
        "the call's config does not begin as NCCL_COLLCONFIG_INITIALIZER has it");
  }
  ncclCollConfig_t copy = NCCL_COLLCONFIG_INITIALIZER;
  std::memcpy(&copy, &config, std::min(config.size, sizeof(copy)));
  return copy;
}

Status ReadConfig(const ncclCollConfig_t& given, CollectiveCall& call) {
  TUTTI_ASSIGN(const ncclCollConfig_t config, CopyConfig(given));
  if (config.forceAlgSelection != 0 && config.forceAlgSelection != 1)
    return InvalidArgument("forceAlgSelection is 0 or 1, not {}", config.forceAlgSelection);
  if (!Unset(config.CTAPolicy) && (config.CTAPolicy < 0 || config.CTAPolicy > kMostPolicy)) {
    return InvalidArgument("CTAPolicy of a call is made of NCCL_CTA_POLICY_*, 0 to {}, not {}",
                           kMostPolicy, config.CTAPolicy);
  }
  TUTTI_TRY(ReadBlocks(config, call.wishes));
  TUTTI_TRY(ReadOptions(config, call.wishes));
  if ((config.userProfilerTag & kReservedTag) != 0)
    return InvalidArgument("the highest bit of userProfilerTag is reserved");
  call.profiler_tag = config.userProfilerTag;
  call.launch_event = config.launchCompletionEvent;
  return ReadAlgorithms(config, call.wishes);
}

// Calls `collective` with the wishes of the config, which may be null.
template <class Collective>
ncclResult_t WithConfig(const char* function, const ncclCollConfig_t* config, CollectiveCall call,
                        Collective&& collective) {
  return Return(function, [&]() -> Status {
    if (config != nullptr) TUTTI_TRY(ReadConfig(*config, call));
    return collective(call);
  });
}

}  // namespace
}  // namespace tutti::api

namespace api = tutti::api;
using api::WithConfig;

ncclResult_t ncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, {sendbuff, recvbuff, count, datatype, comm, stream},
                    [&](const auto& call) { return api::AllReduce(call, op); });
}
ncclResult_t ncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, int root, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, {sendbuff, recvbuff, count, datatype, comm, stream},
                    [&](const auto& call) { return api::Broadcast(call, root); });
}
ncclResult_t ncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                              ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, {sendbuff, recvbuff, count, datatype, comm, stream},
                    [&](const auto& call) { return api::Reduce(call, op, root); });
}
ncclResult_t ncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, {sendbuff, recvbuff, sendcount, datatype, comm, stream},
                    api::AllGather);
}
ncclResult_t ncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                     cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, {sendbuff, recvbuff, recvcount, datatype, comm, stream},
                    [&](const auto& call) { return api::ReduceScatter(call, op); });
}
ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count,
                                ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, {sendbuff, recvbuff, count, datatype, comm, stream},
                    api::AlltoAll);
}
ncclResult_t ncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count,
                              ncclDataType_t datatype, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, {sendbuff, recvbuff, count, datatype, comm, stream},
                    [&](const auto& call) { return api::Gather(call, root); });
}
ncclResult_t ncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, {sendbuff, recvbuff, count, datatype, comm, stream},
                    [&](const auto& call) { return api::Scatter(call, root); });
}

TUTTI_PNCCL(AllReduceConfig);
TUTTI_PNCCL(BroadcastConfig);
TUTTI_PNCCL(ReduceConfig);
TUTTI_PNCCL(AllGatherConfig);
TUTTI_PNCCL(ReduceScatterConfig);
TUTTI_PNCCL(AlltoAllConfig);
TUTTI_PNCCL(GatherConfig);
TUTTI_PNCCL(ScatterConfig);
