#pragma once

// The common base of the API functions: the process behind them, the check of handles, and the way
// from a Status to an ncclResult_t with a sentence in the log and in ncclGetLastError.

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/exceptions.h"
#include "base/status.h"
#include "comm/handle.h"
#include "comm/handle_table.h"
#include "comm/process.h"
#include "config/settings.h"
#include "nccl.h"

namespace tutti::api {

// Returns this process's Process, made on first use and again after a fork.
Result<Process*> ThisProcess();

// Makes later communicators encrypt all data that crosses sockets, with keys derived also from
// `key`; empty: as the environment says.
void SetEncryptionKey(std::string_view key);
// Returns the settings of a new communicator: the process's environment, and the key of
// SetEncryptionKey.
Result<Settings> ReadSettings();

// Keeps the sentence for ncclGetLastError, writes it to the log, and returns the code. Inside a
// group, a failure also fails the group.
ncclResult_t Return(const char* function, const Status& status) noexcept;
// Runs `call` and does the same with its Status. Every function of the API is such a call: no
// exception leaves the function, and the thread is not cancelled inside.
template <class F>
requires std::is_invocable_r_v<Status, F> ncclResult_t Return(const char* function, F&& call) {
  return Return(function, WithoutExceptions(std::forward<F>(call)));
}
// Returns the last sentence of this thread; "" when nothing has failed.
const char* LastError();

// Returns InvalidArgument for null, foreign and destroyed handles, InvalidUsage for handles of the
// process from which this one was forked.
Status CheckHandle(const HandleUse& use);
// CheckHandle, and the communicator must be initialised.
Status CheckReady(const HandleUse& use);
// CheckReady, and the communicator must be neither revoked nor finalized.
Status CheckInService(const HandleUse& use);
// CheckInService, and the communicator must not be suspended.
Status CheckUsable(const HandleUse& use);

Status CheckType(ncclDataType_t type);
// Returns InvalidArgument where memory of `bytes` bytes at `buffer` would not end within an address
// space, and therefore cannot exist. `what` names the memory in the sentence.
Status CheckExtent(const void* buffer, size_t bytes, const char* what);
// The addresses of a process, unless it asks the system for higher ones: no machine has as much
// memory. Addresses of a device may lie higher.
#if defined(__x86_64__)
inline constexpr size_t kAddressSpace = size_t{1} << 47;
#else
inline constexpr size_t kAddressSpace = size_t{1} << 48;
#endif
// Returns whether memory of `bytes` bytes can begin at `buffer`.
inline bool FitsAddressSpace(const void* buffer, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(buffer);
  const uintptr_t end_of_space = begin < kAddressSpace ? kAddressSpace : UINTPTR_MAX;
  return bytes < kAddressSpace && bytes <= end_of_space - begin;
}

// Returns the stream behind a cudaStream_t: null for the null stream. InvalidArgument for anything
// but a live host stream.
Result<HostStream*> ResolveStream(cudaStream_t stream);
// Returns InvalidArgument for a host stream, which no GPU takes.
Status CheckCudaStream(cudaStream_t stream);
// Returns the stream of a task for `operations`. InvalidArgument for a stream of the wrong kind.
Result<void*> StreamFor(const Operations& operations, cudaStream_t stream);
// Returns InvalidArgument for an event of host streams, which no GPU takes.
Status CheckCudaEvent(cudaEvent_t event);
// Records an event of host streams (tuttiEvent_t) at the beginning of an operation. The operation
// calls the returned function at its beginning. The event happens then, or when the last copy of
// the function is gone. InvalidArgument for anything but an event of host streams.
Result<std::function<void()>> RecordBegin(cudaEvent_t event);

}  // namespace tutti::api

// Defines the profiling twin of an API function as another name for it.
#define TUTTI_PNCCL(name) \
  extern "C"              \
      __attribute__((visibility("default"), alias("nccl" #name))) decltype(nccl##name) pnccl##name
