#pragma once

// The object to which an ncclComm_t points. A handle exists before its communicator does, during a
// non-blocking initialisation, and after the communicator has failed. A handle keeps the state for
// ncclCommGetAsyncError. A worker thread does work in the background, in order. Helper threads run
// ranks at the same time that a single thread drives.
//
// Any thread may call; `mutex` guards all non-atomic members. A user of a handle is inside of the
// handle's gate (handle_table.h): the handle and its communicator are freed when nobody is inside.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/host/stream.h"
#include "base/mutex.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/handle_table.h"

// An operator made by ncclRedOpCreatePreMulSum.
struct TuttiUserOp {
  tutti::DataType type;
  uint64_t scalar;
  // The address of the scalar for an operation to read when it runs. Where `live` is null, `scalar`
  // holds.
  const void* live = nullptr;
};

namespace tutti {

// Owns a communicator. A thread may store the communicator while others look for it.
class CommunicatorSlot {
 public:
  CommunicatorSlot() = default;
  CommunicatorSlot(const CommunicatorSlot&) = delete;
  CommunicatorSlot& operator=(const CommunicatorSlot&) = delete;
  ~CommunicatorSlot() { reset(); }

  CommunicatorSlot& operator=(std::unique_ptr<Communicator> comm) {
    const std::unique_ptr<Communicator> old(
        comm_.exchange(comm.release(), std::memory_order_acq_rel));
    return *this;
  }
  void reset() { *this = std::unique_ptr<Communicator>(); }
  explicit operator bool() const { return get() != nullptr; }
  Communicator& operator*() const { return *get(); }
  Communicator* operator->() const { return get(); }

 private:
  Communicator* get() const { return comm_.load(std::memory_order_acquire); }
  std::atomic<Communicator*> comm_ = nullptr;
};

}  // namespace tutti

struct ncclComm {
  // `gate` is the gate of the handle's slot and lives longer. Only HandleTable makes and frees
  // handles.
  explicit ncclComm(tutti::HandleGate& gate) : gate_(gate) {}
  ncclComm(const ncclComm&) = delete;
  ~ncclComm();

  // Whether work on the handle shows as ncclInProgress.
  enum class Shown : bool { kNo, kInProgress };

  bool blocking = true;
  // The device argument of ncclCommInitAll; -1 stands for the rank's number on its machine.
  int device = -1;
  tutti::Settings settings;
  std::string name;
  std::atomic<bool> abort_flag = false;  // ends an initialisation under way; outlives `comm`
  tutti::CommunicatorSlot comm;          // empty before and after a failed initialisation
  std::atomic<bool> revoked = false;
  std::atomic<bool> finalized = false;
  // Counts the calls under way with an effect on operations (ncclCommWindowRegister). Meanwhile
  // operations for device streams are refused.
  std::atomic<int> joint_jobs = 0;

  tutti::Mutex mutex;
  tutti::Status error TUTTI_GUARDED_BY(mutex);  // the first asynchronous failure
  std::map<int, TuttiUserOp> user_ops TUTTI_GUARDED_BY(mutex);
  int next_user_op TUTTI_GUARDED_BY(mutex) = 0;
  // The addresses of these are the results of ncclCommRegister; their values are for
  // Operations::Forget.
  std::vector<std::unique_ptr<const void*>> registrations TUTTI_GUARDED_BY(mutex);
  // The unused id from ncclCommGetUniqueId; 0: none.
  uint64_t grow_id TUTTI_GUARDED_BY(mutex) = 0;

  // Keeps the handle from being freed while work goes on after the call that began the work. The
  // hold lives from before the work is handed over until the work last touches the handle.
  // REQUIRES, to make a hold: the caller is inside of the handle's gate.
  class WorkHold {
   public:
    WorkHold() = default;  // holds nothing
    WorkHold(ncclComm& comm, Shown shown) : comm_(&comm), shown_(shown == Shown::kInProgress) {
      comm.gate_.EnterAgain();
      if (shown_) comm.in_progress_.fetch_add(1, std::memory_order_relaxed);
    }
    WorkHold(WorkHold&& other) noexcept
        : comm_(std::exchange(other.comm_, nullptr)), shown_(other.shown_) {}
    WorkHold& operator=(WorkHold&& other) noexcept {
      End();
      comm_ = std::exchange(other.comm_, nullptr);
      shown_ = other.shown_;
      return *this;
    }
    ~WorkHold() { End(); }

    // Stops showing the work as ncclInProgress.
    void Hide() {
      if (comm_ != nullptr && shown_) comm_->in_progress_.fetch_sub(1, std::memory_order_release);
      shown_ = false;
    }

   private:
    void End() {
      Hide();
      if (ncclComm* const comm = std::exchange(comm_, nullptr)) comm->gate_.Leave();
    }

    ncclComm* comm_ = nullptr;
    bool shown_ = false;
  };
  bool in_progress() const { return in_progress_.load(std::memory_order_acquire) > 0; }

  // Notes that `child` is being made from this communicator until ForgetChild, and returns the hold
  // on this communicator. Until then RaiseAbort reaches the child. ForgetChild must come before the
  // child's own hold ends.
  [[nodiscard]] WorkHold BeginChild(ncclComm& child);
  void ForgetChild(ncclComm& child);

  // Ends the initialisations under way, of the handle itself and of its children.
  void RaiseAbort();

  // Notes that the communicator is broken, or never came to be. The first reason stays.
  void Fail(const tutti::Status& status);
  // Notes that an operation failed. A communicator stopped by the failure is broken, and else as
  // good as before. A failure in the background, which neither the caller nor a stream was told,
  // shows until the next operation is issued.
  void NoteFailure(const tutti::Status& status, bool in_background);
  void ForgetOperationError();
  // Returns the failure for ncclCommGetAsyncError.
  tutti::Status Error();

  // Returns the worker, made on first use.
  tutti::HostStream& worker();
  // Returns another worker, for calls in which all ranks wait for one another over the
  // communicator's bootstrap.
  tutti::HostStream& joint_worker();
  // Runs `task` on a thread without other work.
  void RunAside(tutti::HostStream::Task task);
  // Keeps the nameless handle of a split without a communicator for this rank.
  void AddNameless(tutti::OwnedHandle child);

 private:
  struct Helper {
    std::atomic<bool> busy = true;
    tutti::HostStream stream;
  };

  tutti::HandleGate& gate_;
  std::atomic<int> in_progress_ = 0;
  std::atomic<bool> has_operation_error_ = false;
  tutti::Status operation_error_ TUTTI_GUARDED_BY(mutex);
  // The children under construction.
  std::vector<ncclComm*> children_ TUTTI_GUARDED_BY(mutex);
  std::unique_ptr<tutti::HostStream> worker_ TUTTI_GUARDED_BY(mutex);
  std::unique_ptr<tutti::HostStream> joint_worker_ TUTTI_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Helper>> helpers_ TUTTI_GUARDED_BY(mutex);
  std::vector<tutti::OwnedHandle> nameless_ TUTTI_GUARDED_BY(mutex);
};
