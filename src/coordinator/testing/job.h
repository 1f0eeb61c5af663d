#pragma once

// A job of some ranks for tests of the coordinator, each a thread of this process with a
// coordinator of its own, driven through the C interface alone.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "testing/ranks.h"
#include "tutti/coordinator_c.h"

namespace tutti::coordinator {

// One rank's side, with short names for the steps of tests. Failed expectations are noted where a
// note helps; steps that should fail have names that begin with Try.
class TestRank {
 public:
  TestRank(int rank, int num_ranks, const ncclUniqueId& id)
      : TestRank(OptionsOf(rank, num_ranks), id) {}
  // Two hosts in hierarchies, for an even number of ranks.
  static tuttiCoordinatorOptions_t OptionsOf(int rank, int num_ranks) {
    tuttiCoordinatorOptions_t options = {};
    options.size = sizeof(options);
    options.rank = rank;
    options.nranks = num_ranks;
    if (num_ranks % 2 == 0 && num_ranks > 2) {
      options.local_size = num_ranks / 2;
      options.local_rank = rank % options.local_size;
      options.cross_size = 2;
      options.cross_rank = rank / options.local_size;
    }
    return options;
  }
  TestRank(tuttiCoordinatorOptions_t options, const ncclUniqueId& id)
      : rank_(options.rank), num_ranks_(options.nranks) {
    options.id = &id;
    EXPECT_EQ(tuttiCoordinatorCreate(&coordinator_, &options), ncclSuccess)
        << tuttiCoordinatorLastError();
  }
  ~TestRank() { EXPECT_EQ(tuttiCoordinatorDestroy(coordinator_), ncclSuccess); }
  TestRank(const TestRank&) = delete;
  TestRank& operator=(const TestRank&) = delete;

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  tuttiCoordinator_t get() const { return coordinator_; }

  static tuttiTensor_t Describe(const char* name, tuttiOpKind_t kind, tuttiElementType_t type,
                                const std::vector<int64_t>& shape, const void* input,
                                void* output) {
    tuttiTensor_t t = {};
    t.size = sizeof(t);
    t.name = name;
    t.kind = kind;
    t.type = type;
    t.ndim = static_cast<int>(shape.size());
    t.shape = shape.data();
    t.input = input;
    t.output = output;
    t.op = tuttiReduceSum;
    t.prescale = 1;
    t.postscale = 1;
    t.device = -1;
    return t;
  }

  // Returns -1, with the sentence in LastError, after a refusal.
  int64_t TryEnqueue(const tuttiTensor_t& tensor, int set = 0) {
    int64_t handle = -1;
    return tuttiCoordinatorEnqueue(coordinator_, set, &tensor, 1, nullptr, &handle) == ncclSuccess
               ? handle
               : -1;
  }
  int64_t Enqueue(const tuttiTensor_t& tensor, int set = 0) {
    const int64_t handle = TryEnqueue(tensor, set);
    EXPECT_GT(handle, 0) << tuttiCoordinatorLastError();
    return handle;
  }
  // Returns "" or the error. Releases the handle, even after an error.
  std::string TryWait(int64_t handle) {
    if (tuttiCoordinatorWait(coordinator_, handle, -1) == ncclSuccess) return "";
    return tuttiCoordinatorLastError();
  }
  void Wait(int64_t handle) { EXPECT_EQ(TryWait(handle), "") << "rank " << rank_; }
  void Release(int64_t handle) {
    EXPECT_EQ(tuttiCoordinatorRelease(coordinator_, handle), ncclSuccess);
  }
  // Waits, takes a result in the coordinator's memory, and releases the handle.
  template <typename T>
  std::vector<T> Take(int64_t handle, std::vector<int64_t>* shape = nullptr) {
    Wait(handle);
    void* data = nullptr;
    int ndim = 0;
    std::vector<int64_t> dims(16);
    EXPECT_EQ(tuttiCoordinatorOutput(coordinator_, handle, &data), ncclSuccess)
        << tuttiCoordinatorLastError();
    EXPECT_EQ(tuttiCoordinatorOutputShape(coordinator_, handle, dims.data(), 16, &ndim),
              ncclSuccess);
    dims.resize(static_cast<size_t>(ndim));
    int64_t count = 1;
    for (const int64_t dimension : dims) count *= dimension;
    std::vector<T> values(static_cast<size_t>(count));
    if (count > 0) std::memcpy(values.data(), data, values.size() * sizeof(T));
    if (shape != nullptr) *shape = dims;
    Release(handle);
    return values;
  }
  // A sum of one float32 vector, in place.
  void Sum(const char* name, std::vector<float>& values, int set = 0) {
    Allreduce(name, tuttiFloat32, values.data(), values.size(), tuttiReduceSum, set);
  }
  // An allreduce of one vector of `count` elements, in place.
  void Allreduce(const char* name, tuttiElementType_t type, void* data, size_t count,
                 tuttiReduceOp_t op, int set = 0) {
    const std::vector<int64_t> shape = {static_cast<int64_t>(count)};
    tuttiTensor_t tensor = Describe(name, tuttiOpAllreduce, type, shape, data, data);
    tensor.op = op;
    const int64_t handle = Enqueue(tensor, set);
    Wait(handle);
    Release(handle);
  }
  uint64_t Counter(const char* name, int set = 0) {
    uint64_t value = 0;
    EXPECT_EQ(tuttiCoordinatorCounter(coordinator_, set, name, &value), ncclSuccess);
    return value;
  }

 private:
  const int rank_;
  const int num_ranks_;
  tuttiCoordinator_t coordinator_ = nullptr;
};

// Returns a job's id, made by rank 0, for ranks that are processes. All ranks call; the call uses
// the board's bytes and its meeting of number 0.
inline ncclUniqueId ShareId(testing::Board& board, int rank, int num_ranks) {
  ncclUniqueId id = {};
  if (rank == 0) {
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::memcpy(board.bytes(0).data(), &id, sizeof(id));
  }
  board.Meet(0, num_ranks);
  std::memcpy(&id, board.bytes(0).data(), sizeof(id));
  return id;
}

// Waits until this number of ranks have counted themselves, before a step that must not come
// earlier. Returns false when the ranks do not come.
[[nodiscard]] inline bool Await(const std::atomic<int>& counted, int wanted) {
  constexpr std::chrono::seconds kLongest(40);
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  while (counted < wanted) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Makes the job, runs body on every rank's thread, and shuts down.
inline void RunJob(int num_ranks, const std::function<void(TestRank&)>& body,
                   double deadline_s = 60) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  testing::RunRankThreads(
      num_ranks,
      [&](int rank) {
        TestRank self(rank, num_ranks, id);
        if (self.get() != nullptr) body(self);
      },
      deadline_s);
}

}  // namespace tutti::coordinator
