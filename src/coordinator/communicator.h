#pragma once

// An ncclComm_t with an owner, and the library's results as Status. The coordinator is a user of
// nccl.h like any other.

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "nccl.h"

namespace tutti::coordinator {

// Returns the Status of a call on `comm` (null: of this thread's last call).
inline Status FromNccl(ncclResult_t result, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess) return Status::Ok();
  return Status(static_cast<Code>(result), ncclGetLastError(comm));
}

// Destroys the communicator, or aborts the communicator after Break. Movable.
class Communicator {
 public:
  Communicator() = default;
  explicit Communicator(ncclComm_t comm) : comm_(comm) {}
  ~Communicator() { Reset(); }
  Communicator(Communicator&& other) noexcept { *this = std::move(other); }
  Communicator& operator=(Communicator&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    comm_ = std::exchange(other.comm_, nullptr);
    broken_ = other.broken_.load();
    return *this;
  }

  // Splits `parent`, with all of its ranks. Empty for the color NCCL_SPLIT_NOCOLOR.
  static Result<Communicator> Split(ncclComm_t parent, int color, int key) {
    ncclComm_t comm = nullptr;
    TUTTI_TRY(FromNccl(ncclCommSplit(parent, color, key, &comm, nullptr), parent));
    return Communicator(comm);
  }

  ncclComm_t get() const { return comm_; }
  // Ends every wait on the communicator, now and later, from any thread. The destructor then
  // aborts.
  void Break() {
    broken_ = true;
    if (comm_ != nullptr) static_cast<void>(ncclCommRevoke(comm_, 0));
  }
  void Reset() {
    if (comm_ != nullptr)
      static_cast<void>(broken_ ? ncclCommAbort(comm_) : ncclCommDestroy(comm_));
    comm_ = nullptr;
  }

 private:
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> broken_ = false;
};

}  // namespace tutti::coordinator
