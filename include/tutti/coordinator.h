// SPDX-License-Identifier: Apache-2.0
//
// tutti/coordinator.h: the coordinator for C++17 and later, a thin layer over
// tutti/coordinator_c.h, whose comments explain terms, threads and errors. Header only.
//
//   tutti::CoordinatorClient coordinator(options);            // on every rank
//   auto sum = coordinator.Allreduce("grad", data, count);    // in any order
//   sum.Wait();                                               // throws tutti::CoordinatorError

#ifndef TUTTI_COORDINATOR_H_
#define TUTTI_COORDINATOR_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/coordinator_c.h"

namespace tutti {

// A failure, as a sentence and as a code.
class CoordinatorError : public std::runtime_error {
 public:
  CoordinatorError(ncclResult_t result, const std::string& what)
      : std::runtime_error(what), result_(result) {}
  ncclResult_t result() const { return result_; }

 private:
  ncclResult_t result_;
};

namespace coordinator_internal {

inline void Check(ncclResult_t result) {
  if (result != ncclSuccess) throw CoordinatorError(result, tuttiCoordinatorLastError());
}

// Whether tensors may have elements of type T. Excludes long double and 128-bit integers.
template <typename T>
inline constexpr bool kIsElement = (std::is_integral_v<T> && sizeof(T) <= 8) ||
                                   std::is_same_v<T, float> || std::is_same_v<T, double>;

template <typename T>
constexpr tuttiElementType_t TypeOf() {
  static_assert(kIsElement<T>, "tensors of other types are described by tuttiTensor_t");
  if constexpr (std::is_same_v<T, bool>) return tuttiBool;
  if constexpr (std::is_same_v<T, float>) return tuttiFloat32;
  if constexpr (std::is_same_v<T, double>) return tuttiFloat64;
  if constexpr (sizeof(T) == 1) return std::is_signed_v<T> ? tuttiInt8 : tuttiUint8;
  if constexpr (sizeof(T) == 2) return std::is_signed_v<T> ? tuttiInt16 : tuttiUint16;
  if constexpr (sizeof(T) == 4) return std::is_signed_v<T> ? tuttiInt32 : tuttiUint32;
  return std::is_signed_v<T> ? tuttiInt64 : tuttiUint64;
}

}  // namespace coordinator_internal

// Refers to an operation under way, and releases it in the destructor. Must not outlive its
// coordinator.
class CoordinatorHandle {
 public:
  CoordinatorHandle() = default;
  CoordinatorHandle(tuttiCoordinator_t coordinator, int64_t handle)
      : coordinator_(coordinator), handle_(handle) {}
  ~CoordinatorHandle() { Reset(); }
  CoordinatorHandle(CoordinatorHandle&& other) noexcept { *this = std::move(other); }
  CoordinatorHandle& operator=(CoordinatorHandle&& other) noexcept {
    if (this != &other) {
      Reset();
      coordinator_ = other.coordinator_;
      handle_ = std::exchange(other.handle_, 0);
    }
    return *this;
  }

  // Returns whether the operation is done.
  bool Done() const {
    int done = 0;
    coordinator_internal::Check(tuttiCoordinatorPoll(coordinator_, handle_, &done));
    return done != 0;
  }
  // Returns when the operation is done. Throws CoordinatorError after a failure.
  void Wait() { coordinator_internal::Check(tuttiCoordinatorWait(coordinator_, handle_, -1)); }

  // Returns the result in the coordinator's memory. Valid as long as this handle lives. REQUIRES,
  // here and in the next two functions: the operation is done.
  template <typename T>
  const T* Output() const {
    void* data = nullptr;
    coordinator_internal::Check(tuttiCoordinatorOutput(coordinator_, handle_, &data));
    return static_cast<const T*>(data);
  }
  // Returns the dimensions of the result.
  std::vector<int64_t> OutputShape() const {
    int ndim = 0;
    coordinator_internal::Check(
        tuttiCoordinatorOutputShape(coordinator_, handle_, nullptr, 0, &ndim));
    std::vector<int64_t> shape(static_cast<size_t>(ndim));
    coordinator_internal::Check(
        tuttiCoordinatorOutputShape(coordinator_, handle_, shape.data(), ndim, &ndim));
    return shape;
  }
  // Returns the last rank to join, for an operation of Join.
  int LastJoined() const {
    int rank = -1;
    coordinator_internal::Check(tuttiCoordinatorLastJoined(coordinator_, handle_, &rank));
    return rank;
  }

 private:
  void Reset() {
    if (handle_ > 0) tuttiCoordinatorRelease(coordinator_, handle_);
    handle_ = 0;
  }
  tuttiCoordinator_t coordinator_ = nullptr;
  int64_t handle_ = 0;
};

// Owns the coordinator of one rank, and shuts it down in the destructor.
class CoordinatorClient {
 public:
  explicit CoordinatorClient(const tuttiCoordinatorOptions_t& options) {
    coordinator_internal::Check(tuttiCoordinatorCreate(&coordinator_, &options));
  }
  ~CoordinatorClient() { tuttiCoordinatorDestroy(coordinator_); }
  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  tuttiCoordinator_t get() const { return coordinator_; }
  // Ends all work of all ranks.
  void Shutdown() { coordinator_internal::Check(tuttiCoordinatorShutdown(coordinator_)); }

  // Asks for any operation, described by a tuttiTensor_t.
  CoordinatorHandle Enqueue(const tuttiTensor_t& tensor, int process_set = 0) {
    int64_t handle = 0;
    coordinator_internal::Check(
        tuttiCoordinatorEnqueue(coordinator_, process_set, &tensor, 1, nullptr, &handle));
    return CoordinatorHandle(coordinator_, handle);
  }

  // Reduces data[count] in place. All ranks make the call with the same name.
  template <typename T>
  CoordinatorHandle Allreduce(const std::string& name, T* data, size_t count,
                              tuttiReduceOp_t op = tuttiReduceAverage, int process_set = 0) {
    const int64_t shape[] = {static_cast<int64_t>(count)};
    tuttiTensor_t tensor = Describe<T>(name, tuttiOpAllreduce, shape, 1, data, data);
    tensor.op = op;
    return Enqueue(tensor, process_set);
  }
  // Copies data[count] of rank `root` to data[count] of every rank.
  template <typename T>
  CoordinatorHandle Broadcast(const std::string& name, T* data, size_t count, int root,
                              int process_set = 0) {
    const int64_t shape[] = {static_cast<int64_t>(count)};
    tuttiTensor_t tensor = Describe<T>(name, tuttiOpBroadcast, shape, 1, data, data);
    tensor.root = root;
    return Enqueue(tensor, process_set);
  }
  // Gathers the rows of all ranks, one rank's after another's, in Output() of the handle. Ranks may
  // have different counts.
  template <typename T>
  CoordinatorHandle Allgather(const std::string& name, const T* data, size_t count,
                              int process_set = 0) {
    const int64_t shape[] = {static_cast<int64_t>(count)};
    return Enqueue(Describe<T>(name, tuttiOpAllgather, shape, 1, data, nullptr), process_set);
  }
  // Returns when all ranks have made the call.
  void Barrier(const std::string& name = "barrier", int process_set = 0) {
    Enqueue(Describe<uint8_t>(name, tuttiOpBarrier, nullptr, 0, nullptr, nullptr), process_set)
        .Wait();
  }
  // This rank asks for nothing more until all ranks have joined.
  CoordinatorHandle Join(int process_set = 0) {
    int64_t handle = 0;
    coordinator_internal::Check(tuttiCoordinatorJoin(coordinator_, process_set, &handle));
    return CoordinatorHandle(coordinator_, handle);
  }
  // Makes a process set and returns its number. Every rank of the job makes the call, with the same
  // ranks.
  int AddProcessSet(const std::vector<int>& ranks) {
    int set = -1;
    coordinator_internal::Check(tuttiCoordinatorAddProcessSet(
        coordinator_, ranks.data(), static_cast<int>(ranks.size()), &set));
    return set;
  }

 private:
  template <typename T>
  static tuttiTensor_t Describe(const std::string& name, tuttiOpKind_t kind, const int64_t* shape,
                                int ndim, const T* input, T* output) {
    tuttiTensor_t tensor = {};
    tensor.size = sizeof(tensor);
    tensor.name = name.c_str();
    tensor.kind = kind;
    tensor.type = coordinator_internal::TypeOf<T>();
    tensor.ndim = ndim;
    tensor.shape = shape;
    tensor.input = input;
    tensor.output = output;
    tensor.op = tuttiReduceSum;
    tensor.prescale = 1;
    tensor.postscale = 1;
    tensor.device = -1;
    return tensor;
  }

  tuttiCoordinator_t coordinator_ = nullptr;
};

}  // namespace tutti

#endif  // TUTTI_COORDINATOR_H_
