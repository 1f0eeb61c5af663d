#pragma once

// A job for tests whose tensors lie on GPUs that are none (tests/fakegpu). Ranks are processes.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "coordinator/testing/job.h"
#include "testing/ranks.h"

namespace tutti::coordinator {

using testing::Board;
using testing::RankProcesses;
using Settings = testing::Environment::Settings;

// Calls a function of the stand-in for CUDA's driver that returns an int.
template <typename... Parameters>
int Cuda(const char* name, Parameters... parameters) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<int (*)(Parameters...)>(dlsym(driver, name))(parameters...);
}

// A rank with a GPU of its own number and a stream on it.
class GpuRank : public TestRank {
 public:
  GpuRank(int rank, int num_ranks, const ncclUniqueId& id) : TestRank(rank, num_ranks, id) {
    void* context = nullptr;
    EXPECT_EQ(Cuda("cuInit", 0u), 0);
    EXPECT_EQ(Cuda("cuDevicePrimaryCtxRetain", &context, rank), 0);
    EXPECT_EQ(Cuda("cuCtxSetCurrent", context), 0);
    EXPECT_EQ(Cuda("cuStreamCreate", &stream_, 1u), 0);
  }
  void* stream() const { return stream_; }
  tuttiTensor_t OnGpu(tuttiTensor_t tensor) const {
    tensor.device = rank();
    tensor.stream = stream_;
    return tensor;
  }
  int64_t Ask(const tuttiTensor_t& tensor, int set = 0) { return Enqueue(OnGpu(tensor), set); }
  void Synchronize() { EXPECT_EQ(Cuda("cuStreamSynchronize", stream_), 0); }
  // Until the result is there; "" or what went wrong.
  std::string Finish(int64_t handle) {
    const std::string error = TryWait(handle);
    if (error.empty()) {
      EXPECT_EQ(tuttiCoordinatorStreamWait(get(), handle, stream_), ncclSuccess);
      Synchronize();
    }
    return error;
  }
  template <typename T>
  std::vector<T> Result(int64_t handle) {
    EXPECT_EQ(Finish(handle), "");
    return Take<T>(handle);
  }
  std::string Reduce(const char* name, std::vector<float>& values,
                     tuttiReduceOp_t op = tuttiReduceSum, int set = 0, double prescale = 1) {
    const std::vector<int64_t> shape = {static_cast<int64_t>(values.size())};
    tuttiTensor_t tensor =
        Describe(name, tuttiOpAllreduce, tuttiFloat32, shape, values.data(), values.data());
    tensor.op = op;
    tensor.prescale = prescale;
    const int64_t handle = TryEnqueue(OnGpu(tensor), set);
    if (handle < 0) return tuttiCoordinatorLastError();
    const std::string error = Finish(handle);
    Release(handle);
    return error;
  }

 private:
  void* stream_ = nullptr;
};

using Body = std::function<void(GpuRank& self, Board& board)>;

// Instead of a value: half of the ranks have one, half another.
constexpr const char* kTwoHosts = "two hosts";

// The library that stands for NVIDIA's; the program that includes this defines it.
extern const char* const kOtherNccl;

// A job of processes whose tensors on GPUs are to go through the other NCCL.
class Job {
 public:
  Job(int num_ranks, Settings settings, const Body& body)
      : processes_(num_ranks, [=](int rank, Board& board) {
          Settings all = {{"HOROVOD_GPU_OPERATIONS", "NCCL"}, {"TUTTI_NCCL_LIBRARY", kOtherNccl}};
          all.insert(all.end(), settings.begin(), settings.end());
          for (auto& [name, value] : all) {
            if (value == kTwoHosts) value = rank < num_ranks / 2 ? "first" : "second";
          }
          const testing::Environment environment(all);
          GpuRank self(rank, num_ranks, ShareId(board, rank, num_ranks));
          if (self.get() != nullptr) body(self, board);
        }) {}
  ~Job() { processes_.Wait(100); }
  RankProcesses& processes() { return processes_; }

 private:
  RankProcesses processes_;
};

}  // namespace tutti::coordinator
