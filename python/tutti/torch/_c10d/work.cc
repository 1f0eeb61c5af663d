// SPDX-License-Identifier: Apache-2.0
#include "work.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "profiler.h"

namespace tutti_c10d {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> NewFuture() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

TuttiWork::TuttiWork(c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                     std::vector<at::Tensor> outputs, uint64_t sequence)
    // A title costs time even without a profiler.
    : c10d::Work(-1, type, at::hasCallbacks() ? title : nullptr,
                 at::hasCallbacks() ? std::make_optional(inputs) : std::nullopt),
      outputs_(std::move(outputs)),
      sequence_(sequence) {}

void TuttiWork::End(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const MutexLock lock(future_mutex_);
    if (isCompleted()) return;
    finish(error);
    future = future_;
  }
  LeaveBatch();
  if (future) EndFuture(*future, error);
}

void TuttiWork::JoinBatch(std::shared_ptr<BatchEntry> batch) {
  if (batch) batch->Add();
  batch_ = std::move(batch);
}

void TuttiWork::LeaveBatch() {
  if (const std::shared_ptr<BatchEntry> batch = std::exchange(batch_, nullptr)) batch->Done();
}

c10::intrusive_ptr<c10::ivalue::Future> TuttiWork::getFuture() {
  const MutexLock lock(future_mutex_);
  if (!future_) {
    future_ = NewFuture();
    if (isCompleted())
      EndFuture(*future_, exception());  // Nothing is attached to the new future yet.
  }
  return future_;
}

void TuttiWork::EndFuture(c10::ivalue::Future& future, const std::exception_ptr& error) const {
  if (error) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(outputs_));
  }
}

int TuttiWork::sourceRank() const {
  const int source = source_.load();
  TORCH_CHECK(source >= 0, "no rank has sent yet; wait() for it first");
  return source;
}

JoinedWork::JoinedWork(std::vector<c10::intrusive_ptr<TuttiWork>> parts)
    : c10d::Work(-1, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

bool JoinedWork::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->isCompleted(); });
}

bool JoinedWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr JoinedWork::exception() const {
  for (const auto& part : parts_)
    if (std::exception_ptr error = part->exception()) return error;
  return nullptr;
}

std::vector<at::Tensor> JoinedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& part : parts_)
    for (const at::Tensor& tensor : part->result()) all.push_back(tensor);
  return all;
}

bool JoinedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) part->wait(timeout);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> JoinedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  const std::vector<at::Tensor> outputs = result();
  return c10::collectAll(futures)->then(
      [outputs](c10::ivalue::Future& done) {
        if (done.hasError()) std::rethrow_exception(done.exception_ptr());
        return c10::IValue(outputs);
      },
      c10::ListType::create(c10::TensorType::get()));
}

}  // namespace tutti_c10d
