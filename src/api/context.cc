#include "api/context.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/erased.h"
#include "base/log.h"
#include "base/mutex.h"
#include "comm/group.h"

namespace tutti::api {
namespace {

// The API's own state. A C API needs one state per process. The state is never destroyed, because
// threads may still call into the library while the process exits.
struct State {
  Mutex mutex;
  std::unique_ptr<Process> process TUTTI_GUARDED_BY(mutex);
  pid_t pid TUTTI_GUARDED_BY(mutex) = 0;
  ErasedText encryption_key TUTTI_GUARDED_BY(mutex);
};

State& GlobalState();

// A fork happens between these two calls, which no analysis sees.
void HoldState() TUTTI_NO_THREAD_SAFETY_ANALYSIS { GlobalState().mutex.Lock(); }
void LetGoOfState() TUTTI_NO_THREAD_SAFETY_ANALYSIS { GlobalState().mutex.Unlock(); }

// Called at the end of the program. Where a thread holds the mutex then, the board stays, and
// `tutti ps` shows a process that has ended.
void RemoveBoard() TUTTI_NO_THREAD_SAFETY_ANALYSIS {
  State& state = GlobalState();
  if (!state.mutex.TryLock()) return;
  if (state.process && state.pid == getpid()) state.process->board().RemoveFile();
  state.mutex.Unlock();
}

State& GlobalState() {
  static State* const state = [] {
    auto* const made = new State;
    pthread_atfork(HoldState, LetGoOfState, LetGoOfState);
    std::atexit(RemoveBoard);
    ReserveFailures();
    return made;
  }();
  return *state;
}

std::string& LastErrorText() {
  thread_local std::string text;
  return text;
}

}  // namespace

Result<Process*> ThisProcess() {
  State& state = GlobalState();
  const MutexLock lock(state.mutex);
  if (!state.process || state.pid != getpid()) {
    // After a fork the parent's object has no threads here. The object is left alone, not
    // destroyed.
    static_cast<void>(state.process.release());
    TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
    TUTTI_ASSIGN(state.process, Process::Create(settings));
    state.pid = getpid();
  }
  ReserveFailures();  // Replaces the failures that a lack of memory has used up.
  return state.process.get();
}

void SetEncryptionKey(std::string_view key) {
  State& state = GlobalState();
  const MutexLock lock(state.mutex);
  state.encryption_key = key;
}

Result<Settings> ReadSettings() {
  TUTTI_ASSIGN(Settings settings, ReadProcessSettings());
  State& state = GlobalState();
  const MutexLock lock(state.mutex);
  if (!state.encryption_key.empty()) {
    settings.encrypt = true;
    settings.encryption_key = state.encryption_key;
  }
  return settings;
}

ncclResult_t Return(const char* function, const Status& status) noexcept {
  if (status.ok()) return ncclSuccess;
  const auto code = static_cast<ncclResult_t>(status.code());
  if (code == ncclInProgress) return code;
  try {
    LastErrorText() = std::string(function) + ": " + std::string(status.message());
    TUTTI_WARN("{}", LastErrorText());
    if (ThreadGroup().active()) ThreadGroup().NoteError(status);
  } catch (...) {
    // Without memory for the sentence the code has to do.
  }
  return code;
}

const char* LastError() { return LastErrorText().c_str(); }

Status CheckHandle(const HandleUse& use) {
  if (use.inside()) [[likely]]
    return Status::Ok();
  if (use.comm() == nullptr) return InvalidArgument("the communicator is null");
  if (use.phase() == HandleGate::Phase::kInherited) {
    return InvalidUsage(
        "the communicator at {} was made before this process was forked and is its parent's: "
        "processes make communicators of their own",
        fmt::ptr(use.comm()));
  }
  return InvalidArgument(
      "the communicator at {} was never made by this library, or has been destroyed",
      fmt::ptr(use.comm()));
}

Status CheckReady(const HandleUse& use) {
  TUTTI_TRY(CheckHandle(use));
  if (use->comm) [[likely]]
    return Status::Ok();
  if (Status error = use->Error(); !error.ok()) return error;
  return InvalidUsage(
      "the communicator is not ready: its initialisation is still under way (poll "
      "ncclCommGetAsyncError until it is no longer ncclInProgress)");
}

Status CheckInService(const HandleUse& use) {
  TUTTI_TRY(CheckReady(use));
  if (use->revoked) return InvalidUsage("the communicator has been revoked");
  if (use->finalized) return InvalidUsage("the communicator has been finalized");
  return Status::Ok();
}

Status CheckUsable(const HandleUse& use) {
  TUTTI_TRY(CheckInService(use));
  if (use->comm->suspended()) [[unlikely]]
    return InvalidUsage(
        "the communicator is suspended: it can be used again when all ranks "
        "have called ncclCommResume");
  return Status::Ok();
}

Status CheckType(ncclDataType_t type) {
  if (type >= 0 && type < kNumDataTypes) return Status::Ok();
  return InvalidArgument("{} is no data type: 0 to {} are", static_cast<int>(type),
                         kNumDataTypes - 1);
}

Status CheckExtent(const void* buffer, size_t bytes, const char* what) {
  if (FitsAddressSpace(buffer, bytes)) return Status::Ok();
  return InvalidArgument("{} of {} bytes at {} is more than an address space holds", what, bytes,
                         buffer);
}

}  // namespace tutti::api
