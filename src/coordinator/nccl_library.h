#pragma once

// Libraries with NCCL's interface, loaded when they are asked for: NVIDIA's, or another's. Only
// look-ups; library_operations.h and gpu_communicator.h use the functions.
//
// A loaded library stays loaded until the process ends, because the library has threads of its own.

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "nccl.h"

namespace tutti::coordinator {

// The functions that every such library has, by the types that nccl.h gives them.
#define TUTTI_NCCL_FUNCTIONS(X) \
  X(ncclGetUniqueId)            \
  X(ncclCommInitRank)           \
  X(ncclCommDestroy)            \
  X(ncclGetLastError)           \
  X(ncclAllReduce)              \
  X(ncclBroadcast)              \
  X(ncclReduce)                 \
  X(ncclAllGather)              \
  X(ncclReduceScatter)          \
  X(ncclRedOpCreatePreMulSum)   \
  X(ncclRedOpDestroy)           \
  X(ncclSend)                   \
  X(ncclRecv)                   \
  X(ncclGroupStart)             \
  X(ncclGroupEnd)

// The further functions for ending a communicator whatever its peers do: NVIDIA's library has them
// since 2.14.
#define TUTTI_NCCL_GPU_FUNCTIONS(X) \
  X(ncclGetVersion)                 \
  X(ncclGetErrorString)             \
  X(ncclCommInitRankConfig)         \
  X(ncclCommFinalize)               \
  X(ncclCommAbort)                  \
  X(ncclCommGetAsyncError)

struct NcclFunctions {
#define TUTTI_FUNCTION(name) decltype(&::name) name = nullptr;
  TUTTI_NCCL_FUNCTIONS(TUTTI_FUNCTION)
  TUTTI_NCCL_GPU_FUNCTIONS(TUTTI_FUNCTION)
#undef TUTTI_FUNCTION
};

// Returns this library's own functions.
NcclFunctions OwnNcclFunctions();

class NcclLibrary {
 public:
  // Opens a library by a path, or by a name that the loader looks for. InvalidUsage where the
  // library cannot be loaded, or lacks a function that every such library has.
  static Result<std::shared_ptr<const NcclLibrary>> Load(const std::string& file);

  const NcclFunctions& functions() const { return functions_; }
  bool is_tutti() const { return is_tutti_; }
  // Returns the names of TUTTI_NCCL_GPU_FUNCTIONS that the library lacks, or "".
  Status ServesGpus() const;
  // Returns the version as ncclGetVersion tells the version, such as 22703; 0 where the library
  // does not tell.
  int version() const { return version_; }
  // Returns the path of the loaded file.
  const std::string& path() const { return path_; }
  // Returns a name such as "NCCL 2.27.3".
  std::string Name() const;

 private:
  NcclLibrary() = default;
  NcclFunctions functions_;
  bool is_tutti_ = false;
  int version_ = 0;
  std::string path_;
};

// Returns the places in which to look for a library for GPUs when none is named: the files that the
// process has loaded already, the loader's folders, and the usual folders.
std::vector<std::string> NcclCandidates();

// Returns the library for tensors on GPUs: the named library, or else the first candidate that is
// not Tutti's own. InvalidUsage, with the places of the search, where there is none, and where the
// named library is Tutti's.
Result<std::shared_ptr<const NcclLibrary>> FindNcclForGpus(
    const std::string& named, const std::vector<std::string>& candidates);

}  // namespace tutti::coordinator
