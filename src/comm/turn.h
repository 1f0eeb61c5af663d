#pragma once

// A batch's place in the order of its communicator's operations: the ticket, and the holds from the
// launch of the batch until its end. A batch may be dropped without having run, for lack of memory.
// Its turn then gives the ticket back and stops the communicator, because the other ranks wait for
// the batch.
//
// Belongs to one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/status.h"
#include "comm/fence.h"
#include "comm/handle.h"
#include "operations/operations.h"

namespace tutti {

class Turn {
 public:
  Turn() = default;  // Makes a turn that has no place in the order.
  // Takes the next ticket of `comm`. The handle is kept from being freed until the end.
  Turn(ncclComm& comm, ncclComm::Shown shown);
  Turn(Turn&& other) noexcept { *this = std::move(other); }
  Turn& operator=(Turn&& other) noexcept;
  // Ends the turn, whether or not the batch has run.
  ~Turn() { End(); }

  // Has Run wait at the fence, where the batch has this number.
  void WaitAt(std::shared_ptr<Fence> fence, size_t number);
  // Waits for the turn and runs the tasks, also where the fence was not reached: a stopped
  // communicator does not wait in its tasks. Called at most once.
  Status Run(std::span<const IssuedTask> tasks);

 private:
  void End() noexcept;

  ncclComm* comm_ = nullptr;  // null: there is nothing to end
  ncclComm::WorkHold hold_;
  uint64_t ticket_ = 0;
  bool has_run_ = false;
  std::shared_ptr<Fence> fence_;  // null: there is no stream to wait for
  size_t number_ = 0;
};

}  // namespace tutti
