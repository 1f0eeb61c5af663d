// The collectives that take options for a single call. The options are checked here, and the call
// goes on as one without.

#include "api/context.h"
#include "nccl.h"

namespace tutti::api {
namespace {

// A list of options that is longer is taken for one that goes in circles.
constexpr int kMostOptions = 1024;
constexpr int kMostClusterSize = 8;
constexpr uint64_t kReservedTag = uint64_t{1} << 63;

bool Unset(int value) { return value == NCCL_CONFIG_UNDEF_INT; }

Status CheckBlocks(const ncclCollConfig_t& config) {
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
  return Status::Ok();
}

Status CheckConfig(const ncclCollConfig_t& config) {
  if (config.magic != NCCL_API_MAGIC || config.size < sizeof(ncclCollConfig_t)) {
    return InvalidArgument(
        "the call's config does not begin as NCCL_COLLCONFIG_INITIALIZER has it");
  }
  TUTTI_TRY(CheckBlocks(config));
  int options = 0;
  for (const ncclConfigExt_t* option = config.ext; option != nullptr; option = option->next) {
    if (++options > kMostOptions) {
      return InvalidArgument("the config has more than {} options, or its list has no end",
                             kMostOptions);
    }
  }
  if ((config.userProfilerTag & kReservedTag) != 0) {
    return InvalidArgument("the highest bit of userProfilerTag is reserved");
  }
  if (config.launchCompletionEvent != nullptr) {
    return InvalidUsage(
        "launchCompletionEvent is not implemented yet; record an event after the call");
  }
  if (config.algSelection != nullptr && *config.algSelection != '\0' &&
      config.forceAlgSelection != 0) {
    return InvalidUsage(
        "the algorithms {} cannot be demanded for one call yet: set forceAlgSelection to 0, or "
        "NCCL_ALGO for the whole job",
        config.algSelection);
  }
  return Status::Ok();
}

template <class Call>
ncclResult_t WithConfig(const char* function, const ncclCollConfig_t* config, Call&& plain) {
  if (config != nullptr) {
    const ncclResult_t checked = Return(function, [&] { return CheckConfig(*config); });
    if (checked != ncclSuccess) return checked;
  }
  return plain();
}

}  // namespace
}  // namespace tutti::api

using tutti::api::WithConfig;

ncclResult_t ncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, [&] {
    return ncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
  });
}
ncclResult_t ncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, int root, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, [&] {
    return ncclBroadcast(sendbuff, recvbuff, count, datatype, root, comm, stream);
  });
}
ncclResult_t ncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                              ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, [&] {
    return ncclReduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream);
  });
}
ncclResult_t ncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, [&] {
    return ncclAllGather(sendbuff, recvbuff, sendcount, datatype, comm, stream);
  });
}
ncclResult_t ncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                     cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, [&] {
    return ncclReduceScatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream);
  });
}
ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count,
                                ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, [&] {
    return ncclAlltoAll(sendbuff, recvbuff, count, datatype, comm, stream);
  });
}
ncclResult_t ncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count,
                              ncclDataType_t datatype, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, [&] {
    return ncclGather(sendbuff, recvbuff, count, datatype, root, comm, stream);
  });
}
ncclResult_t ncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config) {
  return WithConfig(__func__, config, [&] {
    return ncclScatter(sendbuff, recvbuff, count, datatype, root, comm, stream);
  });
}

TUTTI_PNCCL(AllReduceConfig);
TUTTI_PNCCL(BroadcastConfig);
TUTTI_PNCCL(ReduceConfig);
TUTTI_PNCCL(AllGatherConfig);
TUTTI_PNCCL(ReduceScatterConfig);
TUTTI_PNCCL(AlltoAllConfig);
TUTTI_PNCCL(GatherConfig);
TUTTI_PNCCL(ScatterConfig);
