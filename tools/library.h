#pragma once

// Loads any library with NCCL's binary interface at run time: Tutti itself, NCCL, RCCL, or the
// tests' fake library.
//
// A library may lack functions that are newer than NCCL 2.2, or Tutti's own. Such a function is
// replaced by an equivalent group of sends and receives where one exists, and refused with a
// sentence elsewhere. Thread-safe after Load, as far as the library itself is.

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "nccl.h"
#include "tutti/tutti.h"

namespace tutti::tools {

// Pointers to the functions of the table below, by NCCL's names without the prefix; null where the
// library lacks the function.
#define TUTTI_TOOLS_REQUIRED_FUNCTIONS(X) \
  X(GetVersion)                           \
  X(GetErrorString)                       \
  X(GetUniqueId)                          \
  X(CommInitRank)                         \
  X(CommDestroy)                          \
  X(CommAbort)                            \
  X(Reduce)                               \
  X(Broadcast)                            \
  X(AllReduce)                            \
  X(ReduceScatter)                        \
  X(AllGather)                            \
  X(Send)                                 \
  X(Recv)                                 \
  X(GroupStart)                           \
  X(GroupEnd)
#define TUTTI_TOOLS_OPTIONAL_FUNCTIONS(X) \
  X(GetLastError)                         \
  X(AlltoAll)                             \
  X(Gather)                               \
  X(Scatter)                              \
  X(MemAlloc)                             \
  X(MemFree)                              \
  X(CommWindowRegister)                   \
  X(CommRegister)                         \
  X(CommDeregister)                       \
  X(CommWindowDeregister)                 \
  X(RedOpCreatePreMulSum)                 \
  X(RedOpDestroy)                         \
  X(CommGetAsyncError)                    \
  X(GroupSimulateEnd)
#define TUTTI_TOOLS_OWN_FUNCTIONS(X) \
  X(StreamCreate)                    \
  X(StreamDestroy)                   \
  X(StreamSynchronize)               \
  X(AllGatherV)                      \
  X(ReduceScatterV)                  \
  X(AlltoAllV)                       \
  X(GatherV)                         \
  X(ScatterV)                        \
  X(GetVersion)                      \
  X(PlanDescribe)

struct NcclFunctions {
#define X(name) decltype(&::nccl##name) name = nullptr;
  TUTTI_TOOLS_REQUIRED_FUNCTIONS(X)
  TUTTI_TOOLS_OPTIONAL_FUNCTIONS(X)
#undef X
#define X(name) decltype(&::tutti##name) tutti##name = nullptr;
  TUTTI_TOOLS_OWN_FUNCTIONS(X)
#undef X
};

class NcclLibrary {
 public:
  // Loads `path`, which is understood as by dlopen(3). The library is never unloaded, because it
  // may have threads.
  static Result<NcclLibrary> Load(const std::string& path);

  // Returns the absolute path of the file that was loaded.
  const std::string& path() const { return path_; }
  // Returns the library's name and version: "NCCL 2.30.7", or "Tutti 0.1.0 (NCCL 2.30.7)".
  std::string Version() const;

  const NcclFunctions* operator->() const { return &functions_; }
  const NcclFunctions& functions() const { return functions_; }

  // Turns a result into a Status. A failure has the library's own sentence, and `doing` names the
  // action that failed. `comm` may be null.
  Status Check(ncclResult_t result, std::string_view doing, ncclComm_t comm = nullptr) const;

 private:
  NcclFunctions functions_;
  std::string path_;
};

// Returns the path of the library to load. An empty `name` stands for the library of this build or
// installation, searched beside the running program, and otherwise for libtutti.so as the loader
// finds it. Any further `name` is returned unchanged, but made absolute where it names a file.
std::string FindLibrary(const std::string& name);

// Formats NCCL's version code: "2.30.7" for 23007. Versions before 2.9 had a shorter code.
std::string VersionText(int code);

// Returns the number of bytes of one element.
size_t ElementSize(ncclDataType_t type);

}  // namespace tutti::tools
