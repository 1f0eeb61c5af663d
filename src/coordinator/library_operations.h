#pragma once

// Operations by the functions of nccl.h, whoever has them: Tutti's own on a stream of a GPU,
// another library's there (gpu_communicator.h), or a library's in host memory, which Tutti's takes
// and NVIDIA's does not.

#include <memory>
#include <string>

#include "coordinator/nccl_library.h"
#include "coordinator/operations_plugin.h"
#include "nccl.h"

namespace tutti::coordinator {

// A communicator, and how a call on it begins and ends. One thread at a time.
class LibraryComm {
 public:
  virtual ~LibraryComm() = default;
  virtual const NcclFunctions& functions() const = 0;
  virtual ncclComm_t get() const = 0;
  // Called before each call, or group of calls; after a Begin that was ok, End gets what they
  // returned.
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
  // Returns the flag of a kind. REQUIRES: it is one of the five.
  bool& Of(OpKind kind) { return this->*FlagOf(kind); }
  // Returns those that this or the other takes.
  TakenKinds Or(const TakenKinds& other) const {
    return {allreduce || other.allreduce, allgather || other.allgather,
            broadcast || other.broadcast, alltoall || other.alltoall,
            reducescatter || other.reducescatter};
  }

 private:
  // Returns null for a kind that is none of the five.
  static bool TakenKinds::*FlagOf(OpKind kind);
};

// Returns this library's own communicator, which stays the caller's.
std::shared_ptr<LibraryComm> BorrowComm(ncclComm_t comm);

struct LibraryOperationsOptions {
  std::string name = "nccl";
  int rank = 0;
  int num_ranks = 1;
  void* stream = nullptr;  // They queue their work on it.
  TakenKinds takes;
  // Says whether 8-bit floats are reduced.
  bool reduces_float8 = true;
};
std::unique_ptr<Operations> MakeLibraryOperations(std::shared_ptr<LibraryComm> comm,
                                                  LibraryOperationsOptions options);

// Makes this library's own operations on `comm`, which stays the caller's. They queue their work on
// `stream`.
std::unique_ptr<Operations> MakeStreamOperations(ncclComm_t comm, int rank, int num_ranks,
                                                 void* stream);

// Loads a library, by file name, for tensors in host memory.
Result<std::shared_ptr<OperationsPlugin>> LoadNcclPlugin(const std::string& file);

}  // namespace tutti::coordinator
