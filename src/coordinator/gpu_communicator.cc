#include "coordinator/gpu_communicator.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "sys/thread.h"

namespace tutti::coordinator {
namespace {

using std::chrono::microseconds;

// NVIDIA's library hands each call to a thread of its own, which is done in some 50 us. A call that
// sets up connections takes milliseconds and more.
constexpr int64_t kSpinNs = 200'000;
constexpr microseconds kFirstPause{50};
constexpr microseconds kLongestPause{2000};
// Sound calls return at once. A call that has not returned by then hangs inside, and an abort first
// of all raises the flag that ends such waits.
constexpr std::chrono::seconds kLeaveTime{5};
// All ranks end a process set together. The library does not wait longer for a missing rank.
constexpr double kFinishS = 10;

}  // namespace

GpuCommunicator::GpuCommunicator(Options options)
    : options_(std::move(options)), f_(options_.library->functions()) {}

GpuCommunicator::~GpuCommunicator() {
  if (!broken()) Finish();
  if (aborter_.joinable()) aborter_.join();
}

bool GpuCommunicator::broken() {
  const MutexLock lock(mutex_);
  return broken_;
}

Status GpuCommunicator::Sentence(ncclResult_t result) const {
  const char* const last = f_.ncclGetLastError(comm_);
  const bool known = result > ncclSuccess && result < ncclNumResults && result != ncclInProgress;
  return Status(
      known ? static_cast<Code>(result) : Code::kInternalError,
      fmt::format("{} says \"{}\"{}{}", options_.library->Name(), f_.ncclGetErrorString(result),
                  last == nullptr || !*last ? "" : ": ", last == nullptr ? "" : last));
}

// Waits until the library has finished its call.
Status GpuCommunicator::Settle(ncclResult_t& result) {
  if (result != ncclInProgress) return Status::Ok();
  const int64_t begin_ns = NowNs();
  const double timeout_s = joined_ ? options_.timeout_s : options_.init_timeout_s;
  const Deadline deadline = timeout_s > 0 ? Deadline::AfterSeconds(timeout_s) : Deadline::Never();
  microseconds pause = kFirstPause;
  while (result == ncclInProgress) {
    if (broken()) return RemoteError("its process set has ended");
    if (options_.healthy) TUTTI_TRY(options_.healthy(!joined_));
    if (deadline.Passed()) {
      return Timeout("{} is still in progress after {} s", options_.library->Name(), timeout_s);
    }
    if (NowNs() - begin_ns < kSpinNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
    const ncclResult_t asked = f_.ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  return Status::Ok();
}

Status GpuCommunicator::Enter() {
  {
    const MutexLock lock(mutex_);
    if (broken_) return RemoteError("its process set has ended");
    inside_ = true;
  }
  current_ = options_.gpu->MakeCurrent();
  return Status::Ok();
}

void GpuCommunicator::Leave() {
  current_.reset();
  {
    const MutexLock lock(mutex_);
    inside_ = false;
  }
  left_.NotifyAll();
}

Status GpuCommunicator::Begin() {
  if (failed_) return RemoteError("a communicator of {} has failed", options_.library->Name());
  TUTTI_TRY(Enter());
  if (comm_ == nullptr) return Status::Ok();
  // The library's own threads may have failed meanwhile.
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = f_.ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  return state == ncclSuccess || state == ncclInProgress ? Status::Ok() : End(state);
}

Status GpuCommunicator::End(ncclResult_t result) {
  Status status = Settle(result);
  if (status.ok() && result != ncclSuccess) status = Sentence(result);
  failed_ = !status.ok();
  Leave();
  return status;
}

Status GpuCommunicator::Join(const OperationsGroup& group) {
  struct Offer {
    ncclUniqueId id;
    char failed[512];  // "": no failure
  };
  Offer mine = {};
  std::vector<Offer> all(group.members.size());
  if (group.rank == 0) {
    TUTTI_TRY(Begin());
    const Status status = End(f_.ncclGetUniqueId(&mine.id));
    if (!status.ok()) status.message().copy(mine.failed, sizeof(mine.failed) - 1);
  }
  TUTTI_TRY(group.gather(&mine, sizeof(mine), all.data()));
  if (all[0].failed[0] != '\0') return RemoteError("rank 0 can make no id: {}", all[0].failed);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  TUTTI_TRY(Begin());
  TUTTI_TRY(End(f_.ncclCommInitRankConfig(&comm_, group.size(), all[0].id, group.rank, &config)));
  joined_ = true;
  return Status::Ok();
}

void GpuCommunicator::Break() {
  const MutexLock lock(mutex_);
  if (std::exchange(broken_, true)) return;
  Result<std::thread> thread = StartThread("tutti-gpu-abort", [this] { Abort(); });
  if (thread.ok()) {
    aborter_ = std::move(*thread);
  } else {
    TUTTI_WARN("a communicator of {} cannot be aborted: {}", options_.library->Name(),
               thread.status().message());
  }
}

void GpuCommunicator::Abort() {
  {
    const auto until = std::chrono::steady_clock::now() + kLeaveTime;
    MutexLock lock(mutex_);
    while (inside_ && left_.WaitUntil(lock, until)) {
    }
  }
  if (comm_ == nullptr) return;
  const auto current = options_.gpu->MakeCurrent();
  f_.ncclCommAbort(std::exchange(comm_, nullptr));
}

// Finalizes a communicator that does not block first, because only then its destruction does not
// block.
void GpuCommunicator::Finish() {
  if (comm_ == nullptr || !Enter().ok()) return;
  ncclResult_t result = failed_ ? ncclInternalError : f_.ncclCommFinalize(comm_);
  const Deadline deadline = Deadline::AfterSeconds(kFinishS);
  while (result == ncclInProgress && !deadline.Passed() && !broken()) {
    std::this_thread::sleep_for(kFirstPause);
    if (f_.ncclCommGetAsyncError(comm_, &result) != ncclSuccess) break;
  }
  if (!broken()) {
    if (result == ncclSuccess) {
      f_.ncclCommDestroy(comm_);
    } else {
      f_.ncclCommAbort(comm_);
    }
    comm_ = nullptr;
  }
  Leave();
}

}  // namespace tutti::coordinator
