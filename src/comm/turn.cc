#include "comm/turn.h"

#include <utility>

#include "base/exceptions.h"

namespace tutti {

Turn::Turn(ncclComm& comm, ncclComm::Shown shown)
    : comm_(&comm), hold_(comm, shown), ticket_(comm.comm->operations().TakeTicket()) {}

Turn& Turn::operator=(Turn&& other) noexcept {
  End();
  comm_ = std::exchange(other.comm_, nullptr);
  hold_ = std::move(other.hold_);
  ticket_ = other.ticket_;
  has_run_ = other.has_run_;
  fence_ = std::move(other.fence_);
  number_ = other.number_;
  return *this;
}

void Turn::WaitAt(std::shared_ptr<Fence> fence, size_t number) {
  fence_ = std::move(fence);
  number_ = number;
}

Status Turn::Run(std::span<const IssuedTask> tasks) {
  if (fence_) {
    if (Status reached = fence_->AwaitReached(number_); !reached.ok())
      comm_->comm->Stop(reached, /*tell=*/true);
  }
  has_run_ = true;
  return comm_->comm->operations().Run(ticket_, tasks);
}

// The batch stops to show as in progress first, because a thread that has waited for the batch's
// stream may ask whether the batch is in progress.
void Turn::End() noexcept {
  ncclComm* const comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  if (!has_run_) {
    [[maybe_unused]] const Status stopped = WithoutExceptions([&] {
      comm->comm->Stop(
          SystemError("an operation could not be launched: there is not enough memory"),
          /*tell=*/true);
      return Status::Ok();
    });
    comm->comm->operations().DropTicket(ticket_);
  }
  hold_.Hide();
  if (std::shared_ptr<Fence> fence = std::exchange(fence_, nullptr)) fence->NoteDone(number_);
  hold_ = {};
}

}  // namespace tutti
