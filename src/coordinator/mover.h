#pragma once

// The mover of a process set: batches that were agreed on and wait to be moved. One thread moves at
// a time, and batches therefore run in the same order on all ranks. The thread is either waiting
// for a tensor of the batch, or the set's second thread, while the next batches are negotiated.
//
//   from     event   to
//   kIdle    kAdd    kQueued
//   kQueued  kAdd    kQueued
//   kQueued  kBegin  kMoving   the calling thread moves the first batch, without the lock
//   kMoving  kAdd    kMoving
//   kMoving  kDone   kQueued   where more are queued
//   kMoving  kDone   kIdle     where none is
//
// One thread at a time: the process set guards it.

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "coordinator/response.h"

namespace tutti::coordinator {

class Mover {
 public:
  using Batch = std::vector<Response>;

  void Add(Batch batch) {
    queue_.push_back(std::move(batch));
    Advance(Event::kAdd);
  }
  // Returns the next batch, which the calling thread moves. REQUIRES: can_begin.
  Batch Begin() {
    Batch batch = std::move(queue_.front());
    queue_.pop_front();
    Advance(Event::kBegin);
    return batch;
  }
  void Done() { Advance(Event::kDone); }

  // Returns whether a batch waits and no thread moves a batch.
  bool can_begin() const { return state_ == State::kQueued; }
  // Returns whether nothing waits and nothing is moved.
  bool idle() const { return state_ == State::kIdle; }
  // Returns whether no batch waits; one may be moved.
  bool empty() const { return queue_.empty(); }

 private:
  enum class State { kIdle, kQueued, kMoving };
  enum class Event { kAdd, kBegin, kDone };
  void Advance(Event event) {
    switch (event) {
      case Event::kAdd:
        if (state_ == State::kIdle) state_ = State::kQueued;
        break;
      case Event::kBegin:
        state_ = State::kMoving;
        break;
      case Event::kDone:
        state_ = queue_.empty() ? State::kIdle : State::kQueued;
        break;
    }
  }

  State state_ = State::kIdle;
  std::deque<Batch> queue_;
};

}  // namespace tutti::coordinator
