#include "api/context.h"

#include <pthread.h>
#include <unistd.h>

#include <deque>
#include <mutex>
#include <unordered_set>

#include "base/log.h"
#include "comm/group.h"

namespace tutti::api {
namespace {

// Destroyed handles that are still recognised as such. Enough for a program that makes and destroys
// communicators in a loop and has a stale pointer left; bounded so that such a loop does not grow.
constexpr size_t kBuried = 256;

// The API's own state. One per process by the nature of a C API; never destroyed, because other
// threads may still call into the library while the process exits.
struct State {
  std::mutex mutex;
  std::unique_ptr<Process> process;
  pid_t pid = 0;
  std::unordered_set<ncclComm*> adopted;
  std::deque<std::unique_ptr<ncclComm>> buried;
};

// In place of ncclComm::kAlive in the child of a fork.
constexpr uint64_t kMadeBeforeFork = 0x74757474466f726b;  // "tuttFork"

State& GlobalState() {
  static State* const state = [] {
    auto* const made = new State;
    // The threads that serve a communicator stay behind in the parent, and its sockets and shared
    // memory are the parent's: whatever a child did with it would wait for ever or break the
    // parent's.
    pthread_atfork([] { GlobalState().mutex.lock(); }, [] { GlobalState().mutex.unlock(); },
                   [] {
                     for (ncclComm* comm : GlobalState().adopted) comm->magic = kMadeBeforeFork;
                     GlobalState().mutex.unlock();
                   });
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
  std::lock_guard lock(state.mutex);
  if (!state.process || state.pid != getpid()) {
    // After a fork the parent's object has no threads here; it is left alone, not destroyed.
    static_cast<void>(state.process.release());
    TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
    TUTTI_ASSIGN(state.process, Process::Create(settings));
    state.pid = getpid();
  }
  return state.process.get();
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
    // No memory for the sentence: the code has to do.
  }
  return code;
}

const char* LastError() { return LastErrorText().c_str(); }

Status CheckHandle(const ncclComm* comm) {
  if (comm == nullptr) return InvalidArgument("the communicator is null");
  const uint64_t magic = comm->magic.load(std::memory_order_relaxed);
  if (magic == kMadeBeforeFork) {
    return InvalidUsage(
        "the communicator at {} was made before this process was forked and is its parent's: "
        "processes make communicators of their own",
        static_cast<const void*>(comm));
  }
  if (magic != ncclComm::kAlive) {
    return InvalidArgument(
        "the communicator at {} was never made by this library, or has been destroyed",
        static_cast<const void*>(comm));
  }
  return Status::Ok();
}

Status CheckReady(ncclComm* comm) {
  TUTTI_TRY(CheckHandle(comm));
  if (comm->comm) return Status::Ok();
  if (Status error = comm->Error(); !error.ok()) return error;
  return InvalidUsage(
      "the communicator is not ready: its initialisation is still under way (poll "
      "ncclCommGetAsyncError until it is no longer ncclInProgress)");
}

Status CheckUsable(ncclComm* comm) {
  TUTTI_TRY(CheckReady(comm));
  if (comm->revoked) return InvalidUsage("the communicator has been revoked");
  if (comm->finalized) return InvalidUsage("the communicator has been finalized");
  return Status::Ok();
}

Status CheckType(ncclDataType_t type) {
  if (type >= 0 && type < kNumDataTypes) return Status::Ok();
  return InvalidArgument("{} is no data type: 0 to {} are", static_cast<int>(type),
                         kNumDataTypes - 1);
}

ncclComm* NewHandle() { return std::make_unique<ncclComm>().release(); }

void Adopt(ncclComm* comm) {
  State& state = GlobalState();
  std::lock_guard lock(state.mutex);
  state.adopted.insert(comm);
}

void Disown(ncclComm* comm) {
  State& state = GlobalState();
  std::lock_guard lock(state.mutex);
  state.adopted.erase(comm);
}

void Bury(ncclComm* comm) {
  // Of two threads that end a communicator (one aborts the initialisation that fails on another)
  // one buries it.
  if (comm->magic.exchange(0) != ncclComm::kAlive) return;
  comm->DropThreads();
  comm->comm.reset();
  State& state = GlobalState();
  std::unique_ptr<ncclComm> forgotten;
  std::lock_guard lock(state.mutex);
  state.adopted.erase(comm);
  state.buried.emplace_back(comm);
  if (state.buried.size() > kBuried) {
    forgotten = std::move(state.buried.front());
    state.buried.pop_front();
  }
}

}  // namespace tutti::api
