// SPDX-License-Identifier: Apache-2.0
#include "ordered.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace tutti_c10d {
namespace {

// Called by the stream: runs the function once and frees it.
void RunOnce(void* argument) {
  const std::unique_ptr<std::function<void()>> function(
      static_cast<std::function<void()>*>(argument));
  (*function)();
}

void RunStep(const std::function<void()>& function) {
  const at::NoGradGuard no_gradients;
  function();
}

// Makes the calls, several of them as one group.
void Ask(const Library& library, ncclComm_t comm, cudaStream_t stream,
         const std::vector<Operation::Call>& calls) {
  if (calls.size() == 1) {
    library.Check(calls[0](comm, stream), comm);
    return;
  }
  ncclResult_t result = library.ncclGroupStart();
  for (const Operation::Call& call : calls)
    if (result == ncclSuccess) result = call(comm, stream);
  const ncclResult_t ended = library.ncclGroupEnd();
  library.Check(result == ncclSuccess ? ended : result, comm);
}

std::string CallName(const char* title) {
  const std::string name(title);
  return name.substr(name.find(':') + 1);
}

// Marks the call of a thread that waits, from its beginning to its end. RuntimeError where another
// thread's call is marked.
class CallMark {
 public:
  CallMark(std::atomic<const char*>& place, const char* title, bool waits)
      : place_(waits ? &place : nullptr) {
    const char* other = nullptr;
    if (waits ? place.compare_exchange_strong(other, title) : !(other = place.load())) return;
    place_ = nullptr;
    TORCH_CHECK(false, "two threads of this process use one group: a thread waits in ",
                CallName(other), " while another thread calls ", CallName(title),
                ". The ranks have no common order of such calls; give each thread a group of its "
                "own (torch.distributed.new_group)");
  }
  ~CallMark() {
    if (place_ != nullptr) place_->store(nullptr);
  }
  CallMark(const CallMark&) = delete;
  CallMark& operator=(const CallMark&) = delete;

 private:
  std::atomic<const char*>* place_;  // null: nothing is marked
};

}  // namespace

void Operation::Add(Call call) {
  if (steps_.empty() || steps_.back().function) steps_.emplace_back();
  steps_.back().calls.push_back(std::move(call));
}

void Operation::Then(std::function<void()> function) {
  steps_.push_back({{}, std::move(function)});
}

void Operation::Keep(const std::vector<at::Tensor>& tensors) {
  tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
}

void Operation::RunHere(const Library& library, ncclComm_t comm, cudaStream_t stream) const {
  for (const Step& step : steps_) {
    if (step.function) {
      RunStep(step.function);
    } else {
      Ask(library, comm, stream, step.calls);
    }
  }
}

// An operation on the stream, and its outcome up to now. The steps and the end refer to the
// operation from the stream's thread, one after another.
struct OrderedCommunicator::Queued {
  Operation operation;
  c10::intrusive_ptr<TuttiWork> work;
  std::exception_ptr error;
};

OrderedCommunicator::OrderedCommunicator(std::shared_ptr<const Library> library, ncclComm_t comm)
    : library_(std::move(library)), comm_(comm) {
  const ncclResult_t made = library_->tuttiStreamCreate(&stream_);
  if (made != ncclSuccess) library_->ncclCommDestroy(comm_);
  library_->Check(made, nullptr);
}

void OrderedCommunicator::CheckOpen() const {
  if (ended_) C10_THROW_ERROR(DistBackendError, "the group was destroyed or aborted");
}

void OrderedCommunicator::Run(Operation operation, const c10::intrusive_ptr<TuttiWork>& work,
                              bool waits, const char* title) {
  const CallMark mark(waiting_call_, title, waits);
  const MutexLock lock(mutex_);
  CheckOpen();
  if (!waits || queued_ != 0) {
    Queue(std::move(operation), work);
    return;
  }
  try {
    operation.RunHere(*library_, comm_, nullptr);
  } catch (...) {
    work->End(std::current_exception());
    throw;
  }
  work->End();
}

void OrderedCommunicator::Queue(Operation operation, const c10::intrusive_ptr<TuttiWork>& work) {
  auto queued = std::make_shared<Queued>(Queued{std::move(operation), work, nullptr});
  ++queued_;
  try {
    for (const Operation::Step& step : queued->operation.steps_) {
      if (!step.function) {
        Ask(*library_, comm_, stream_, step.calls);
        continue;
      }
      Launch([queued, &step] {
        try {
          if (!queued->error) RunStep(step.function);
        } catch (...) {
          queued->error = std::current_exception();
        }
      });
    }
  } catch (...) {
    // Steps queued before the error still use the operation.
    const std::exception_ptr error = std::current_exception();
    Launch([this, queued, error] {
      queued->error = error;
      Finish(*queued);
    });
    std::rethrow_exception(error);
  }
  Launch([this, queued] { Finish(*queued); });
}

void OrderedCommunicator::Launch(std::function<void()> function) {
  auto owned = std::make_unique<std::function<void()>>(std::move(function));
  library_->Check(library_->tuttiStreamLaunchHostFunc(stream_, &RunOnce, owned.get()), comm_);
  owned.release();  // RunOnce frees it.
}

void OrderedCommunicator::Finish(Queued& queued) {
  std::exception_ptr error = queued.error;
  if (!error) {
    try {
      CheckOpen();  // What was under way when the group ended is not done.
      CheckHealthy();
    } catch (...) {
      error = std::current_exception();
    }
  }
  const c10::intrusive_ptr<TuttiWork> work = std::move(queued.work);
  queued.operation = Operation();
  // From here on a waiting thread may run its next operation itself.
  --queued_;
  work->End(error);
}

ncclRedOp_t MakeOperator(const std::shared_ptr<const Library>& library, ncclComm_t comm,
                         void* factor, ncclDataType_t type, std::shared_ptr<void>& keep) {
  ncclRedOp_t op = ncclSum;
  library->Check(
      library->ncclRedOpCreatePreMulSum(&op, factor, type, ncclScalarHostImmediate, comm), comm);
  keep = std::shared_ptr<void>(nullptr,
                               [library, op, comm](void*) { library->ncclRedOpDestroy(op, comm); });
  return op;
}

ncclRedOp_t OrderedCommunicator::MakePreMulSum(void* factor, ncclDataType_t type,
                                               std::shared_ptr<void>& keep) {
  CheckOpen();
  return MakeOperator(library_, comm_, factor, type, keep);
}

bool OrderedCommunicator::healthy() const {
  ncclResult_t state = ncclSuccess;
  return !ended_ && library_->ncclCommGetAsyncError(comm_, &state) == ncclSuccess &&
         (state == ncclSuccess || state == ncclInProgress);
}

void OrderedCommunicator::CheckHealthy() const {
  ncclResult_t state = ncclSuccess;
  library_->Check(library_->ncclCommGetAsyncError(comm_, &state), comm_);
  if (state != ncclInProgress) library_->Check(state, comm_);
}

// Returns whether the stream is empty. A thread that waited for the last operation may come here
// before the function that woke the thread has returned.
bool OrderedCommunicator::AwaitIdle() const {
  const auto until = std::chrono::steady_clock::now() + kReturnTime;
  while (library_->tuttiStreamQuery(stream_) != ncclSuccess) {
    if (queued_ != 0 || std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool OrderedCommunicator::BeginToEnd() {
  const MutexLock lock(end_mutex_);
  return !ended_.exchange(true);
}

bool OrderedCommunicator::End() {
  if (!BeginToEnd()) return false;
  Close(AwaitIdle());
  return true;
}

void OrderedCommunicator::Leave() {
  if (BeginToEnd()) Close(waiting_call_ == nullptr && AwaitIdle());
}

void OrderedCommunicator::Abort() {
  if (BeginToEnd()) Close(false);
}

void OrderedCommunicator::SetTimeout(std::chrono::milliseconds timeout) {
  const MutexLock lock(end_mutex_);
  CheckOpen();
  library_->Check(library_->tuttiCommSetTimeout(comm_, static_cast<double>(timeout.count()) / 1e3),
                  comm_);
}

void OrderedCommunicator::CheckPresent(int rank) const {
  const MutexLock lock(end_mutex_);
  int count = 0;
  if (ended_ || library_->tuttiCommGetLostRanks(comm_, nullptr, 0, &count) != ncclSuccess ||
      count == 0)
    return;
  std::vector<int> lost(static_cast<size_t>(count));
  // More ranks may be lost by now than the list has room for; the next call sees them.
  if (library_->tuttiCommGetLostRanks(comm_, lost.data(), static_cast<int>(lost.size()), &count) !=
      ncclSuccess)
    return;
  if (std::find(lost.begin(), lost.end(), rank) != lost.end())
    ThrowFailure(
        ncclRemoteError,
        c10::str("rank ", rank, " of the group is lost: ", library_->ncclGetLastError(comm_)));
}

void OrderedCommunicator::Close(bool in_good_order) {
  if (in_good_order) {
    library_->tuttiStreamDestroy(stream_);
    library_->ncclCommDestroy(comm_);
  } else {
    library_->ncclCommAbort(comm_);
    library_->tuttiStreamDestroy(stream_);
  }
}

}  // namespace tutti_c10d
