#pragma once

// Operations by the functions of nccl.h, from several libraries: Tutti's own on a stream of a GPU,
// another library's on a stream (gpu_communicator.h), or a library's in host memory, which Tutti's
// takes and NVIDIA's does not.

#include <memory>
#include <string>

#include "coordinator/nccl_library.h"
#include "coordinator/operations_plugin.h"
#include "nccl.h"

namespace tutti::coordinator {

// A communicator, and the frame around a call on the communicator. One thread at a time.
class LibraryComm {
 public:
  virtual ~LibraryComm() = default;
  virtual const NcclFunctions& functions() const = 0;
  virtual ncclComm_t get() const = 0;
  // Called before each call, or group of calls. After a successful Begin, End gets the result of
  // the calls.
  virtual Status Begin() { return Status::Ok(); }
  virtual Status End(ncclResult_t result);
};

// Says which of the five kinds operations take.
struct TakenKinds {
  bool allreduce = true;
  bool allgather = true;
  bool broadcast = true;
  bool alltoall = true;
  bool reducescatter = true;
  bool Any() const { return allreduce || allgather || broadcast || alltoall || reducescatter; }
  bool All() const { return allreduce && allgather && broadcast && alltoall && reducescatter; }
  bool Takes(OpKind kind) const {
    const auto flag = FlagOf(kind);
    return flag != nullptr && this->*flag;
  }
  // Returns the flag of a kind. REQUIRES: the kind is among the five.
  bool& Of(OpKind kind) { return this->*FlagOf(kind); }
  // Returns the kinds that this object or `other` takes.
  TakenKinds Or(const TakenKinds& other) const {
    return {allreduce || other.allreduce, allgather || other.allgather,
            broadcast || other.broadcast, alltoall || other.alltoall,
            reducescatter || other.reducescatter};
  }

 private:
  // Returns null for a kind outside the five.
  static bool TakenKinds::*FlagOf(OpKind kind);
};

// Returns this library's own communicator, which remains the property of the caller.
std::shared_ptr<LibraryComm> BorrowComm(ncclComm_t comm);

struct LibraryOperationsOptions {
  std::string name = "nccl";
  int rank = 0;
  int num_ranks = 1;
  void* stream = nullptr;  // The operations queue their work on the stream.
  TakenKinds takes;
  // Says whether 8-bit floats are reduced.
  bool reduces_float8 = true;
};
std::unique_ptr<Operations> MakeLibraryOperations(std::shared_ptr<LibraryComm> comm,
                                                  LibraryOperationsOptions options);

// Makes this library's own operations on `comm`, which remains the caller's. The operations queue
// their work on `stream`.
std::unique_ptr<Operations> MakeStreamOperations(ncclComm_t comm, int rank, int num_ranks,
                                                 void* stream);

// Loads a library, by file name, for tensors in host memory.
Result<std::shared_ptr<OperationsPlugin>> LoadNcclPlugin(const std::string& file);

}  // namespace tutti::coordinator
