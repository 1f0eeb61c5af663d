#include "communicator.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace digits {
namespace {

// The library's own message names the rank and the cause.
void Check(ncclResult_t result, ncclComm_t comm, const char* doing) {
  if (result == ncclSuccess) return;
  std::string text = std::string(doing) + " failed: " + ncclGetErrorString(result);
  const char* detail = ncclGetLastError(comm);
  if (detail != nullptr && *detail != '\0') text += std::string(": ") + detail;
  throw std::runtime_error(text);
}

template <typename T>
void SumInPlace(std::span<T> values, ncclDataType_t type, ncclComm_t comm) {
  Check(ncclAllReduce(values.data(), values.data(), values.size(), type, ncclSum, comm, nullptr),
        comm, "AllReduce");
}

}  // namespace

ncclUniqueId Communicator::NewId() {
  ncclUniqueId id;
  Check(ncclGetUniqueId(&id), nullptr, "making an id for the ranks to meet by");
  return id;
}

Communicator::Communicator(const ncclUniqueId& id, int rank, int size) : rank_(rank), size_(size) {
  Check(ncclCommInitRank(&comm_, size, id, rank), nullptr, "joining the other ranks");
}

Communicator::Communicator() {
  Check(ncclCommInitAll(&comm_, 1, nullptr), nullptr, "making a communicator of one rank");
}

// Without Close() an exception is under way, and the remaining ranks must not wait for this rank.
Communicator::~Communicator() {
  if (comm_ != nullptr) ncclCommAbort(comm_);
}

void Communicator::Sum(std::span<float> values) { SumInPlace(values, ncclFloat32, comm_); }
void Communicator::Sum(std::span<double> values) { SumInPlace(values, ncclFloat64, comm_); }
void Communicator::Sum(std::span<int64_t> values) { SumInPlace(values, ncclInt64, comm_); }

void Communicator::Broadcast(std::span<float> values, int root) {
  Check(
      ncclBroadcast(values.data(), values.data(), values.size(), ncclFloat32, root, comm_, nullptr),
      comm_, "Broadcast");
}

std::vector<uint64_t> Communicator::Gather(uint64_t mine) {
  std::vector<uint64_t> all(static_cast<size_t>(size_));
  Check(ncclAllGather(&mine, all.data(), 1, ncclUint64, comm_, nullptr), comm_, "AllGather");
  return all;
}

void Communicator::Close() {
  Check(ncclCommFinalize(comm_), comm_, "finishing");
  Check(ncclCommDestroy(std::exchange(comm_, nullptr)), nullptr, "leaving");
}

}  // namespace digits
