// SPDX-License-Identifier: Apache-2.0
#pragma once

// The objects that torch.distributed gets for operations: a caller waits for them, asks them, and
// takes a future of them. No thread waits on behalf of a work; the end of the operation calls End.

#include <atomic>
#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "mutex.h"

namespace tutti_c10d {

class BatchEntry;

// How long a thread that has nothing left to do may take to return. A busy machine needs longer
// than 20 ms.
inline constexpr std::chrono::seconds kReturnTime{2};

// The Work of one operation. Any thread may use the object.
class TuttiWork : public c10d::Work {
 public:
  // `title` names the operation in PyTorch's profiler. The work and its future have the result
  // `outputs`.
  TuttiWork(c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
            std::vector<at::Tensor> outputs, uint64_t sequence);

  // Says that the operation is done, or has failed. The first call counts. Runs the functions
  // attached to the future.
  void End(std::exception_ptr error = nullptr);

  // Says that the work belongs to a batch, before the work can end.
  void JoinBatch(std::shared_ptr<BatchEntry> batch);

  // Stores the rank of the group whose message this work received, before the work ends.
  void SetSource(int rank) { source_.store(rank); }

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  int sourceRank() const override;

 protected:
  // Says that the work is done for the profiler's entry of the batch.
  void LeaveBatch();

 private:
  void EndFuture(c10::ivalue::Future& future, const std::exception_ptr& error) const;

  const std::vector<at::Tensor> outputs_;
  const uint64_t sequence_;
  std::atomic<int> source_{-1};
  std::shared_ptr<BatchEntry> batch_;  // null: the work is in no batch, or nothing is profiled
  // Guards the future, which is made on demand and ends when the work ends.
  Mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_ TUTTI_GUARDED_BY(future_mutex_);
};

// The Work of several works, which ends with the last of them.
class JoinedWork : public c10d::Work {
 public:
  explicit JoinedWork(std::vector<c10::intrusive_ptr<TuttiWork>> parts);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  // Waits for all parts, each for as long as the timeout, and throws the first error.
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<TuttiWork>> parts_;
};

}  // namespace tutti_c10d
