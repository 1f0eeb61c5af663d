// SPDX-License-Identifier: Apache-2.0
#pragma once

// The functions of libtutti that the backend uses. They are looked up in the copy of the library
// that the Python package has loaded, because a process should have a single copy; nothing here is
// linked with the library.

#include <chrono>
#include <memory>
#include <string>

#define TUTTI_NO_CUDA
#include "nccl.h"
#include "tutti/tutti.h"

// The table of all functions: X(name).
#define TUTTI_C10D_FUNCTIONS(X) \
  X(ncclGetUniqueId)            \
  X(tuttiGetUniqueIdFor)        \
  X(tuttiCommInitRankConfig)    \
  X(ncclCommDestroy)            \
  X(ncclCommAbort)              \
  X(ncclCommGetAsyncError)      \
  X(ncclGetLastError)           \
  X(ncclGroupStart)             \
  X(ncclGroupEnd)               \
  X(ncclAllReduce)              \
  X(ncclReduce)                 \
  X(ncclBroadcast)              \
  X(ncclAllGather)              \
  X(ncclReduceScatter)          \
  X(ncclAlltoAll)               \
  X(ncclSend)                   \
  X(ncclRecv)                   \
  X(ncclRedOpCreatePreMulSum)   \
  X(ncclRedOpDestroy)           \
  X(ncclParamGetParameter)      \
  X(tuttiCommGetLostRanks)      \
  X(tuttiCommSetTimeout)        \
  X(tuttiReduceScatterV)        \
  X(tuttiBarrier)               \
  X(tuttiStreamCreate)          \
  X(tuttiStreamDestroy)         \
  X(tuttiStreamQuery)           \
  X(tuttiStreamLaunchHostFunc)

namespace tutti_c10d {

// Throws a DistBackendError with this sentence. The text of a time-out begins with a word about
// time-outs, by which programs know Gloo's.
[[noreturn]] void ThrowFailure(ncclResult_t result, const std::string& sentence);

// The functions of a copy of the library, under their own names. Any thread may use them.
class Library {
 public:
  // Looks up all functions in the library that was loaded under this name. The copy remains loaded
  // as long as the process. RuntimeError without the library or for a missing function.
  static std::shared_ptr<const Library> Open(const std::string& name);

  // Throws the library's sentence after a failed call (ThrowFailure). `comm` is the communicator of
  // the call, or null.
  void Check(ncclResult_t result, ncclComm_t comm) const;

  // Returns the value of a setting in seconds, such as TUTTI_TIMEOUT_S.
  std::chrono::milliseconds SecondsOf(const char* setting) const;

#define TUTTI_C10D_MEMBER(name) decltype(&::name) name = nullptr;
  TUTTI_C10D_FUNCTIONS(TUTTI_C10D_MEMBER)
#undef TUTTI_C10D_MEMBER
};

}  // namespace tutti_c10d
