#pragma once

// What an ncclComm_t points to. A handle exists before its communicator does (a non-blocking
// initialisation) and after it has failed; it keeps the state that ncclCommGetAsyncError shows, and
// the lane, a worker thread for everything that does not run on the caller's thread.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/host/stream.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/task.h"

// An operator made by ncclRedOpCreatePreMulSum.
struct TuttiUserOp {
  tutti::DataType type;
  uint64_t scalar;
  const void* live =
      nullptr;  // where the scalar is read when an operation is issued; null: `scalar` holds
};

struct ncclComm {
  static constexpr uint64_t kAlive = 0x7475747469436f6d;  // "tuttiCom"

  std::atomic<uint64_t> magic = kAlive;
  bool blocking = true;
  tutti::Settings settings;
  std::string name;
  std::unique_ptr<tutti::Communicator> comm;  // null until initialised, and if that failed
  std::atomic<bool> abort_flag = false;       // ends an initialisation under way
  std::atomic<bool> revoked = false;
  std::atomic<bool> finalized = false;

  // Work that is under way on the lane; ncclInProgress while above zero.
  std::atomic<int> pending = 0;
  std::mutex mutex;
  tutti::Status error;  // the first asynchronous failure
  std::map<int, TuttiUserOp> user_ops;
  int next_user_op = 0;
  std::vector<std::unique_ptr<char>> registrations;  // what ncclCommRegister gave out
  uint64_t grow_id = 0;  // an id made by ncclCommGetUniqueId and not used yet; 0: none

  void Fail(const tutti::Status& status) {
    std::lock_guard lock(mutex);
    if (error.ok()) error = status;
  }
  tutti::Status Error() {
    std::lock_guard lock(mutex);
    return error;
  }
  tutti::HostStream& lane() {
    std::lock_guard lock(mutex);
    if (!lane_) lane_ = std::make_unique<tutti::HostStream>();
    return *lane_;
  }
  // Keeps the handle of a split that gave this rank no communicator: nobody else has its name.
  void AddNameless(ncclComm* child) {
    std::lock_guard lock(mutex);
    nameless_.emplace_back(child);
  }
  // Ends the lane's thread after its work, and the handles of AddNameless.
  void DropLane() {
    lane_.reset();
    nameless_.clear();
  }

 private:
  std::unique_ptr<tutti::HostStream> lane_;
  std::vector<std::unique_ptr<ncclComm>> nameless_;
};
