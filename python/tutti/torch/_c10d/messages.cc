// SPDX-License-Identifier: Apache-2.0
#include "messages.h"

#include <ATen/ATen.h>
#include <pthread.h>

namespace tutti_c10d {
namespace {

using Clock = std::chrono::steady_clock;

// How long the end of a group waits for its messages. A program that ends a group while it still
// receives has no use for the message, and 2 s let a peer finish that sends at this moment. A peer
// may come later to receive, because the send's caller had no reason to wait.
constexpr std::chrono::seconds kReceivePatience{2};
constexpr std::chrono::seconds kSendPatience{10};

}  // namespace

bool MessageRequest::Wanted() const {
  const MutexLock lock(mutex_);
  return !source_.has_value();
}

bool MessageRequest::Take(int source) {
  const MutexLock lock(mutex_);
  if (source_) return false;
  source_ = source;
  work_->SetSource(source);
  return true;
}

void MessageRequest::Fail(int source, const std::exception_ptr& error) {
  {
    const MutexLock lock(mutex_);
    if (any_ && source_ != source && (source_ || --without_ > 0)) return;
  }
  work_->End(error);
}

std::shared_ptr<MessageQueue> MessageQueue::Start(std::shared_ptr<const Library> library,
                                                  Connect connect, int peer, bool receives) {
  std::shared_ptr<MessageQueue> queue(
      new MessageQueue(std::move(library), std::move(connect), peer, receives));
  queue->thread_ = std::thread([queue] {
    pthread_setname_np(pthread_self(), "tutti-messages");
    queue->Serve();
  });
  return queue;
}

void MessageQueue::Put(std::shared_ptr<MessageRequest> request) {
  const MutexLock lock(mutex_);
  if (closing_) C10_THROW_ERROR(DistBackendError, "the group was destroyed or aborted");
  requests_.push_back(std::move(request));
  changed_.NotifyOne();
}

void MessageQueue::SetTimeout(std::chrono::milliseconds timeout) {
  const MutexLock lock(mutex_);
  timeout_ = timeout;
  ApplyTimeout();
}

void MessageQueue::ApplyTimeout() {
  if (comm_ == nullptr || !timeout_) return;
  const double seconds = static_cast<double>(timeout_->count()) / 1e3;
  library_->Check(library_->tuttiCommSetTimeout(comm_, seconds), comm_);
}

void MessageQueue::BeginToClose() {
  const MutexLock lock(mutex_);
  closing_ = true;
  if (waits_for_any_) AbortConnection();
  changed_.NotifyOne();
}

void MessageQueue::AwaitRequests(Clock::time_point begun) {
  if (AwaitEnd(begun + (receives_ ? kReceivePatience : kSendPatience))) return;
  const MutexLock lock(mutex_);
  abandoned_ = true;
  AbortConnection();
}

// A thread that does not return is left alone: the thread waits inside of the library for a rank
// that does not answer, and the process can end meanwhile.
void MessageQueue::Close(Clock::time_point until) {
  const bool ended = AwaitEnd(until);
  if (!thread_.joinable()) return;
  ended ? thread_.join() : thread_.detach();
}

bool MessageQueue::AwaitEnd(Clock::time_point until) {
  MutexLock lock(mutex_);
  while (!ended_)
    if (!ended_changed_.WaitUntil(lock, until)) return ended_;
  return true;
}

void MessageQueue::Abandon() {
  {
    const MutexLock lock(mutex_);
    closing_ = abandoned_ = true;
    AbortConnection();
    changed_.NotifyOne();
  }
  if (thread_.joinable()) thread_.detach();
}

void MessageQueue::AbortConnection() {
  if (comm_ != nullptr) library_->ncclCommAbort(comm_);
  comm_ = nullptr;
}

std::shared_ptr<MessageRequest> MessageQueue::AwaitRequest() {
  MutexLock lock(mutex_);
  while (!closing_ && requests_.empty()) changed_.Wait(lock);
  if (requests_.empty()) return nullptr;
  std::shared_ptr<MessageRequest> next = std::move(requests_.front());
  requests_.pop_front();
  return next;
}

void MessageQueue::Serve() {
  while (const std::shared_ptr<MessageRequest> request = AwaitRequest()) {
    try {
      if (request->Wanted()) Do(*request);
    } catch (...) {  // Any exception is for the thread that waits.
      request->Fail(peer_, std::current_exception());
    }
  }
  ncclComm_t comm = nullptr;
  {
    const MutexLock lock(mutex_);
    std::swap(comm, comm_);
  }
  // Without the mutex, which Close needs while ncclCommDestroy waits for the other rank.
  if (comm != nullptr) library_->ncclCommDestroy(comm);
  const MutexLock lock(mutex_);
  ended_ = true;
  ended_changed_.NotifyAll();
}

void MessageQueue::Do(MessageRequest& request) {
  Open(request);
  if (receives_) {
    if (!Receive(request)) return;
  } else {
    Send(request.tensor());
  }
  request.Succeed();
}

void MessageQueue::Open(const MessageRequest& request) {
  {
    const MutexLock lock(mutex_);
    TORCH_CHECK(!IsGivenUp(request), "the group was destroyed before the message passed");
    if (comm_ != nullptr) return;
  }
  const ncclComm_t comm = connect_(request.any_source(), [this, &request] {
    TORCH_CHECK(request.Wanted(), "the message came from another rank");
    const MutexLock lock(mutex_);
    TORCH_CHECK(!IsGivenUp(request), "the group was destroyed before the message passed");
  });
  const MutexLock lock(mutex_);
  comm_ = comm;
  if (abandoned_) AbortConnection();
  ApplyTimeout();
}

bool MessageQueue::IsGivenUp(const MessageRequest& request) const {
  return abandoned_ || (closing_ && request.any_source());
}

void MessageQueue::Send(const at::Tensor& tensor) {
  uint64_t bytes = tensor.nbytes();
  Move(&bytes, sizeof bytes);
  Move(tensor.data_ptr(), bytes);
}

bool MessageQueue::Receive(MessageRequest& request) {
  if (!announced_) announced_ = AwaitMessage(request);
  if (!request.Take(peer_)) return false;
  const uint64_t bytes = *announced_;
  announced_.reset();
  const uint64_t wanted = request.tensor().nbytes();
  if (bytes == wanted) {
    Move(request.tensor().data_ptr(), bytes);
    return true;
  }
  const at::Tensor unwanted =
      at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
  Move(unwanted.data_ptr(), bytes);
  TORCH_CHECK_VALUE(false, "rank ", peer_, " of the group sent ", bytes, " bytes for a tensor of ",
                    wanted);
}

// Returns the size of the next message.
uint64_t MessageQueue::AwaitMessage(const MessageRequest& request) {
  {
    const MutexLock lock(mutex_);
    TORCH_CHECK(!(closing_ && request.any_source()),
                "the group was destroyed before a message came");
    waits_for_any_ = request.any_source();
  }
  uint64_t bytes = 0;
  const auto done = [this] {
    const MutexLock lock(mutex_);
    waits_for_any_ = false;
  };
  try {
    Move(&bytes, sizeof bytes);
  } catch (...) {
    done();
    throw;
  }
  done();
  return bytes;
}

void MessageQueue::Move(void* data, size_t bytes) {
  ncclComm_t comm = nullptr;
  {
    const MutexLock lock(mutex_);
    comm = comm_;
  }
  if (comm == nullptr) C10_THROW_ERROR(DistBackendError, "the group was destroyed or aborted");
  if (bytes == 0) return;
  const int other = receives_ ? 0 : 1;
  const ncclResult_t result =
      receives_ ? library_->ncclRecv(data, bytes, ncclUint8, other, comm, nullptr)
                : library_->ncclSend(data, bytes, ncclUint8, other, comm, nullptr);
  if (result != ncclSuccess)
    ThrowFailure(result, c10::str(receives_ ? "receiving from" : "sending to", " rank ", peer_,
                                  " of the group: ", library_->ncclGetLastError(comm)));
}

}  // namespace tutti_c10d
