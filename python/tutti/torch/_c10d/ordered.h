// SPDX-License-Identifier: Apache-2.0
#pragma once

// A communicator whose operations run one after another: on the calling thread where the thread
// waits for the result and nothing is under way, else on a thread of the library.

#include <ATen/ATen.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "library.h"
#include "mutex.h"
#include "work.h"

namespace tutti_c10d {

// One operation of torch.distributed: a list of steps that run one after another. A step consists
// of calls of the library, which run as one group, or is a function. An operation belongs to the
// thread that makes it, then to the communicator that runs it.
class Operation {
 public:
  using Call = std::function<ncclResult_t(ncclComm_t comm, cudaStream_t stream)>;

  // Adds a call to the last step where the last step has calls, because calls without a function in
  // between become one group.
  void Add(Call call);

  // Adds a function. The function runs without recording gradients, and its exception is the
  // operation's error.
  void Then(std::function<void()> function);

  // Keeps the tensors' memory, or an object, until the operation is done.
  void Keep(const std::vector<at::Tensor>& tensors);
  void Keep(std::shared_ptr<void> object) { objects_.push_back(std::move(object)); }

  bool empty() const { return steps_.empty(); }

  // Does all steps on the calling thread: calls are made with this communicator and stream.
  void RunHere(const Library& library, ncclComm_t comm, cudaStream_t stream) const;

 private:
  friend class OrderedCommunicator;
  struct Step {
    std::vector<Call> calls;
    std::function<void()> function;  // A step with a function has no calls.
  };
  std::vector<Step> steps_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::shared_ptr<void>> objects_;
};

// Makes the operators that reductions need, for one communicator.
class OperatorMaker {
 public:
  OperatorMaker() = default;
  virtual ~OperatorMaker() = default;
  OperatorMaker(const OperatorMaker&) = delete;
  OperatorMaker& operator=(const OperatorMaker&) = delete;

  // Makes an operator that multiplies by `factor`, a number of this type in host memory, and sums.
  // The operator is valid as long as the object to which `keep` is set.
  virtual ncclRedOp_t MakePreMulSum(void* factor, ncclDataType_t type,
                                    std::shared_ptr<void>& keep) = 0;
  virtual const Library& library() const = 0;
};

// Makes the operator of MakePreMulSum for this communicator.
ncclRedOp_t MakeOperator(const std::shared_ptr<const Library>& library, ncclComm_t comm,
                         void* factor, ncclDataType_t type, std::shared_ptr<void>& keep);

// Owns a communicator of ranks in host memory and its stream. Any thread may use the object.
class OrderedCommunicator final : public OperatorMaker {
 public:
  // Takes `comm` over.
  OrderedCommunicator(std::shared_ptr<const Library> library, ncclComm_t comm);
  // Ends remaining work, as End does.
  ~OrderedCommunicator() override { End(); }

  // Runs the operation and ends `work` with the outcome. `waits` says that the caller waits at
  // once: then the operation may be done, or its error thrown, when Run returns. `title` is the
  // name of the call. RuntimeError where another thread is inside of an operation for which it
  // waits: the ranks have no common order of calls that two threads make at the same time.
  void Run(Operation operation, const c10::intrusive_ptr<TuttiWork>& work, bool waits,
           const char* title);

  ncclRedOp_t MakePreMulSum(void* factor, ncclDataType_t type,
                            std::shared_ptr<void>& keep) override;

  // Ends the communicator in good order where nothing is under way; else gives up unfinished work.
  // Operations fail from now on. Does nothing the second time, and returns false.
  bool End();

  // As End, but gives up operations for which another thread waits, too.
  void Leave();

  // Gives up work under way, from any thread, and ends the communicator. Does nothing the second
  // time.
  void Abort();

  // Sets how long operations that begin from now on may wait without progress.
  void SetTimeout(std::chrono::milliseconds timeout);

  // Throws where the rank is lost.
  void CheckPresent(int rank) const;

  // Returns whether the communicator works.
  bool healthy() const;
  // Throws the communicator's error, if any.
  void CheckHealthy() const;

  const Library& library() const override { return *library_; }

 private:
  struct Queued;

  void CheckOpen() const;
  void Queue(Operation operation, const c10::intrusive_ptr<TuttiWork>& work);
  void Launch(std::function<void()> function);
  void Finish(Queued& queued);
  bool AwaitIdle() const;
  bool BeginToEnd();
  void Close(bool in_good_order);

  const std::shared_ptr<const Library> library_;
  const ncclComm_t comm_;
  tuttiStream_t stream_ = nullptr;
  // Operations on the stream whose data is not complete yet.
  std::atomic<int> queued_{0};
  std::atomic<bool> ended_{false};
  // The call whose thread is inside of an operation and waits for other ranks; null: no thread is.
  std::atomic<const char*> waiting_call_{nullptr};
  Mutex mutex_;  // Held while an operation is begun, because operations have one order.
  // Held while CheckPresent uses the communicator, which must not end meanwhile.
  mutable Mutex end_mutex_;
};

}  // namespace tutti_c10d
