// SPDX-License-Identifier: Apache-2.0
#pragma once

// Messages between two ranks of a group, also from a rank that is not named.
//
// Messages from one rank to another with one tag have a communicator of their own, keep their order
// and wait for nothing else. On the communicator a message is its number of bytes (8 bytes, in the
// machine's order) and then its bytes. A receiver thus learns of a message and its size before the
// receiver decides which tensor gets the message.

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "library.h"
#include "mutex.h"
#include "work.h"

namespace tutti_c10d {

// A tensor to send or to fill. A tensor that any rank may fill is in several queues, and the first
// queue with a message takes the tensor. Any thread may use a request.
class MessageRequest {
 public:
  // `sources` is the number of queues for a tensor that any rank may fill, else 0.
  MessageRequest(at::Tensor tensor, c10::intrusive_ptr<TuttiWork> work, int sources)
      : tensor_(std::move(tensor)), work_(std::move(work)), without_(sources), any_(sources > 0) {}

  const at::Tensor& tensor() const { return tensor_; }
  bool any_source() const { return any_; }

  // Returns whether no queue has taken the request. Always true for a request that names its rank.
  bool Wanted() const;
  // Returns whether the tensor gets the message of this rank.
  bool Take(int source);
  void Succeed() { work_->End(); }
  // Says that the rank `source` sends nothing, or failed to. A request that any rank may fill fails
  // with the rank that took the request, or when no rank is left.
  void Fail(int source, const std::exception_ptr& error);

 private:
  const at::Tensor tensor_;
  const c10::intrusive_ptr<TuttiWork> work_;
  mutable Mutex mutex_;
  std::optional<int> source_ TUTTI_GUARDED_BY(mutex_);
  int without_ TUTTI_GUARDED_BY(mutex_);  // the number of queues that may still bring a message
  const bool any_;
};

// Messages from one rank to another with one tag. Both ranks make the queue when they first need
// it. The queue connects on a thread of its own, since the peer may come late. The thread shares
// the queue's ownership, and an abandoned queue does not wait for the thread.
class MessageQueue : public std::enable_shared_from_this<MessageQueue> {
 public:
  // Makes the communicator of the two ranks, of which rank 0 sends. Blocks until the peer has come,
  // and throws where the peer does not come, or where `check` throws. `any_source`: the wait is for
  // a message that any rank may send.
  using Connect = std::function<ncclComm_t(bool any_source, const std::function<void()>& check)>;

  // Makes a queue and starts its thread.
  static std::shared_ptr<MessageQueue> Start(std::shared_ptr<const Library> library,
                                             Connect connect, int peer, bool receives);

  void Put(std::shared_ptr<MessageRequest> request);

  // Sets how long messages that begin from now on may wait without progress.
  void SetTimeout(std::chrono::milliseconds timeout);

  // Takes no further requests, and gives up waiting for requests of any rank alone.
  void BeginToClose();
  // Waits until all requests for the named rank are done, which fail where they are not done in
  // time: a message that leaves has longer than a message that is awaited, because the peer of the
  // former may be about to receive. The times count from `begun`.
  // REQUIRES: BeginToClose was called.
  void AwaitRequests(std::chrono::steady_clock::time_point begun);
  // Waits for the thread until the given time at most. REQUIRES: AwaitRequests was called.
  void Close(std::chrono::steady_clock::time_point until);

  // Ends the connection at once; work under way fails. Does not wait for the thread.
  void Abandon();

 private:
  MessageQueue(std::shared_ptr<const Library> library, Connect connect, int peer, bool receives)
      : library_(std::move(library)),
        connect_(std::move(connect)),
        peer_(peer),
        receives_(receives) {}

  void Serve();
  std::shared_ptr<MessageRequest> AwaitRequest();
  void Do(MessageRequest& request);
  void Open(const MessageRequest& request);
  void Send(const at::Tensor& tensor);
  bool Receive(MessageRequest& request);
  uint64_t AwaitMessage(const MessageRequest& request);
  void Move(void* data, size_t bytes);
  // Waits for the end of the thread, and returns whether the thread has ended by `until`.
  bool AwaitEnd(std::chrono::steady_clock::time_point until);
  // Returns whether nobody waits for the request any more.
  bool IsGivenUp(const MessageRequest& request) const TUTTI_REQUIRES(mutex_);
  void AbortConnection() TUTTI_REQUIRES(mutex_);
  void ApplyTimeout() TUTTI_REQUIRES(mutex_);

  const std::shared_ptr<const Library> library_;
  const Connect connect_;
  const int peer_;
  const bool receives_;
  std::thread thread_;
  // The length of the next message, if its header has come. Belongs to the thread.
  std::optional<uint64_t> announced_;

  Mutex mutex_;
  CondVar changed_;
  CondVar ended_changed_;
  std::deque<std::shared_ptr<MessageRequest>> requests_ TUTTI_GUARDED_BY(mutex_);
  ncclComm_t comm_ TUTTI_GUARDED_BY(mutex_) = nullptr;
  bool closing_ TUTTI_GUARDED_BY(mutex_) = false;    // No request comes any more.
  bool abandoned_ TUTTI_GUARDED_BY(mutex_) = false;  // Nobody waits for the remaining requests.
  // The thread waits for a message for requests of any rank alone.
  bool waits_for_any_ TUTTI_GUARDED_BY(mutex_) = false;
  bool ended_ TUTTI_GUARDED_BY(mutex_) = false;  // The thread is about to return.
  // The time-out of SetTimeout, for a connection that is not made yet.
  std::optional<std::chrono::milliseconds> timeout_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti_c10d
