// Adasum of tensors on GPUs that are none (tests/fakegpu): by the formula's oracle, bit for bit
// what tensors in the host's memory give, and without a detour through that memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "coordinator/testing/adasum_oracle.h"
#include "gpu_job.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

// Lengths that end inside of what a block works on and between; all together are combined by
// halving, and the last is cut into several parts.
constexpr size_t kCounts[] = {1, 5, 0, 1000, 3, 140'001};

// Memory of a rank's GPU with some bytes.
class GpuBytes {
 public:
  explicit GpuBytes(const std::vector<std::byte>& bytes) : size_(bytes.size()) {
    EXPECT_EQ(Cuda("cuMemAlloc_v2", &address_, size_ + 1), 0);
    EXPECT_EQ(Cuda("cuMemcpyHtoD_v2", address_, bytes.data(), size_), 0);
  }
  ~GpuBytes() { EXPECT_EQ(Cuda("cuMemFree_v2", address_), 0); }
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  void* data() const { return reinterpret_cast<void*>(address_); }
  std::vector<std::byte> Read() const {
    std::vector<std::byte> bytes(size_);
    EXPECT_EQ(Cuda("cuMemcpyDtoH_v2", bytes.data(), address_, size_), 0);
    return bytes;
  }

 private:
  const size_t size_;
  unsigned long long address_ = 0;
};

// How elements of a type are written and read.
struct Float {
  tuttiElementType_t type;
  size_t size;
  double tolerance;
};
constexpr Float kFloats[] = {{tuttiFloat16, 2, 2e-3},
                             {tuttiBfloat16, 2, 2e-2},
                             {tuttiFloat32, 4, 2e-6},
                             {tuttiFloat64, 8, 1e-12},
                             {tuttiFloat8e4m3, 1, 0.3}};

template <typename T>
void Append(std::vector<std::byte>& bytes, T value) {
  bytes.resize(bytes.size() + sizeof(value));
  std::memcpy(bytes.data() + bytes.size() - sizeof(value), &value, sizeof(value));
}
void Append(std::vector<std::byte>& bytes, const Float& format, double value) {
  if (format.type == tuttiFloat16) return Append(bytes, Float16::FromDouble(value));
  if (format.type == tuttiBfloat16) return Append(bytes, Bfloat16::FromDouble(value));
  if (format.type == tuttiFloat8e4m3) return Append(bytes, Float8e4m3::FromDouble(value));
  if (format.type == tuttiFloat32) return Append(bytes, static_cast<float>(value));
  Append(bytes, value);
}
template <typename T>
T At(const std::vector<std::byte>& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}
double At(const std::vector<std::byte>& bytes, const Float& format, size_t i) {
  if (format.type == tuttiFloat16) return Float16::ToFloat(At<uint16_t>(bytes, i));
  if (format.type == tuttiBfloat16) return Bfloat16::ToFloat(At<uint16_t>(bytes, i));
  if (format.type == tuttiFloat8e4m3) return Float8e4m3::ToFloat(At<uint8_t>(bytes, i));
  if (format.type == tuttiFloat32) return At<float>(bytes, i);
  return At<double>(bytes, i);
}

using Tensors = std::vector<std::vector<std::byte>>;

Tensors TensorsOf(const Float& format, int rank) {
  Tensors tensors;
  for (const size_t count : kCounts) {
    std::vector<std::byte>& bytes = tensors.emplace_back();
    for (size_t i = 0; i < count; ++i) {
      Append(bytes, format, std::sin(static_cast<double>(i) * 0.7 + rank) + 0.25 * rank);
    }
  }
  return tensors;
}

// Says what is combined, beside the tensors.
struct Case {
  Float format;
  double prescale = 1, postscale = 1;
};

// Combines tensors where they lie, together. `on_gpu` is where tensors on a GPU lie.
void Combine(GpuRank& self, const Case& c, const std::string& name, Tensors* in_host,
             const std::vector<std::unique_ptr<GpuBytes>>* on_gpu) {
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;
  for (size_t i = 0; i < std::size(kCounts); ++i) {
    names.push_back(name + std::to_string(i));
    shapes.push_back({static_cast<int64_t>(kCounts[i])});
  }
  std::vector<tuttiTensor_t> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    void* const data = on_gpu != nullptr ? (*on_gpu)[i]->data() : (*in_host)[i].data();
    tuttiTensor_t tensor = TestRank::Describe(names[i].c_str(), tuttiOpAllreduce, c.format.type,
                                              shapes[i], data, data);
    tensor.op = tuttiReduceAdasum;
    tensor.prescale = c.prescale;
    tensor.postscale = c.postscale;
    tensors.push_back(on_gpu != nullptr ? self.OnGpu(tensor) : tensor);
  }
  std::vector<int64_t> handles(tensors.size());
  ASSERT_EQ(tuttiCoordinatorEnqueue(self.get(), 0, tensors.data(), static_cast<int>(tensors.size()),
                                    name.c_str(), handles.data()),
            ncclSuccess)
      << tuttiCoordinatorLastError();
  for (const int64_t handle : handles) {
    EXPECT_EQ(self.Finish(handle), "");
    self.Release(handle);
  }
}

void ExpectFormula(const Case& c, const Tensors& results, const std::vector<int>& ranks,
                   size_t local_size) {
  std::vector<Tensors> inputs;
  for (const int rank : ranks) inputs.push_back(TensorsOf(c.format, rank));
  for (size_t t = 0; t < results.size(); ++t) {
    std::vector<std::vector<double>> vectors(inputs.size());
    for (size_t r = 0; r < inputs.size(); ++r) {
      for (size_t i = 0; i < kCounts[t]; ++i) {
        vectors[r].push_back(At(inputs[r][t], c.format, i) * c.prescale);
      }
    }
    const std::vector<double> want = AdasumOfHosts(vectors, local_size);
    for (size_t i = 0; i < kCounts[t]; ++i) {
      const double tolerance = c.format.tolerance * (1 + std::abs(want[i])) * c.postscale;
      ASSERT_NEAR(At(results[t], c.format, i), want[i] * c.postscale, tolerance)
          << "type " << c.format.type << ", tensor " << t << ", element " << i;
    }
  }
}

// On the GPU, in the host's memory, and by the formula.
void CheckCase(GpuRank& self, const Case& c, size_t local_size) {
  Tensors in_host = TensorsOf(c.format, self.rank());
  std::vector<std::unique_ptr<GpuBytes>> on_gpu;
  for (const std::vector<std::byte>& bytes : in_host) {
    on_gpu.push_back(std::make_unique<GpuBytes>(bytes));
  }
  Cuda("tuttiFakeLargestCrossing");
  Combine(self, c, "gpu", nullptr, &on_gpu);
  EXPECT_EQ(Cuda("tuttiFakeLargestCrossing"), 0) << "bytes between the GPU's and the host's memory";
  Combine(self, c, "host", &in_host, nullptr);
  Tensors results;
  for (const auto& tensor : on_gpu) results.push_back(tensor->Read());
  EXPECT_TRUE(results == in_host) << "type " << c.format.type << ": other bits than on the host";
  std::vector<int> ranks;
  for (int rank = 0; rank < self.num_ranks(); ++rank) ranks.push_back(rank);
  ExpectFormula(c, results, ranks, local_size);
}

void CheckEveryFloat(GpuRank& self, size_t local_size) {
  // What joins the GPUs may copy something.
  std::vector<float> first(10, 1);
  EXPECT_EQ(self.Reduce("first", first), "");
  for (const Float& format : kFloats) CheckCase(self, {format}, local_size);
  CheckCase(self, {kFloats[2], 0.5, 3}, local_size);
}

class GpuAdasumTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuAdasumTest, GivesTheBitsOfTheHost) {
  for (const int ranks : {2, 3, 4}) {
    const Job job(ranks, {{"HOROVOD_GPU_OPERATIONS", GetParam()}},
                  [](GpuRank& self, Board&) { CheckEveryFloat(self, 1); });
  }
}

TEST_P(GpuAdasumTest, InTwoLevels) {
  const Settings settings = {{"HOROVOD_GPU_OPERATIONS", GetParam()},
                             {"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"},
                             {"NCCL_HOSTID", kTwoHosts}};
  const Job job(4, settings, [](GpuRank& self, Board&) { CheckEveryFloat(self, 2); });
}

// A rank that has joined brings zeros, which leave the others' as they are.
TEST_P(GpuAdasumTest, BesideOneThatHasJoined) {
  const Job job(3, {{"HOROVOD_GPU_OPERATIONS", GetParam()}}, [](GpuRank& self, Board&) {
    std::vector<float> first(10, 1);
    EXPECT_EQ(self.Reduce("first", first), "");
    int64_t joined = 0;
    if (self.rank() == 1) {
      Cuda("tuttiFakeLargestCrossing");
      ASSERT_EQ(tuttiCoordinatorJoin(self.get(), 0, &joined), ncclSuccess);
      self.Wait(joined);
      EXPECT_EQ(Cuda("tuttiFakeLargestCrossing"), 0);
      return;
    }
    const Case c = {kFloats[2]};
    std::vector<std::unique_ptr<GpuBytes>> on_gpu;
    for (const std::vector<std::byte>& bytes : TensorsOf(c.format, self.rank())) {
      on_gpu.push_back(std::make_unique<GpuBytes>(bytes));
    }
    Cuda("tuttiFakeLargestCrossing");
    Combine(self, c, "gpu", nullptr, &on_gpu);
    EXPECT_EQ(Cuda("tuttiFakeLargestCrossing"), 0);
    Tensors results;
    for (const auto& tensor : on_gpu) results.push_back(tensor->Read());
    ExpectFormula(c, results, {0, 2}, 1);
    ASSERT_EQ(tuttiCoordinatorJoin(self.get(), 0, &joined), ncclSuccess);
    self.Wait(joined);
  });
}

INSTANTIATE_TEST_SUITE_P(By, GpuAdasumTest, ::testing::Values("tutti", "nccl"),
                         [](const auto& instance) { return instance.param; });

// A kernel that touches what its GPU does not reach would end CUDA for the process.
TEST(GpuArithmeticTest, WhatTheGpuDoesNotReachIsRefused) {
  const Job job(1, {{"TUTTI_FAKE_PAGEABLE", "0"}}, [](GpuRank& self, Board&) {
    const size_t count = 1;
    std::vector<float> host(1, 1);
    const std::vector<std::byte> zeros(TUTTI_ADASUM_SCRATCH * sizeof(double));
    const GpuBytes vector(zeros), dots(zeros), scratch(zeros);
    const auto dots_of = [&](const void* a, void* stream) {
      return tuttiAdasumDots(
          a, vector.data(), &count, 1, ncclFloat32, static_cast<double*>(dots.data()),
          static_cast<double*>(scratch.data()), /*device=*/0, static_cast<cudaStream_t>(stream));
    };
    EXPECT_EQ(dots_of(vector.data(), self.stream()), ncclSuccess) << ncclGetLastError(nullptr);
    EXPECT_EQ(dots_of(host.data(), self.stream()), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(nullptr), ::testing::HasSubstr("memory of the host"));
    tuttiStream_t stream = nullptr;
    ASSERT_EQ(tuttiStreamCreate(&stream), ncclSuccess);
    EXPECT_EQ(dots_of(vector.data(), stream), ncclInvalidArgument);
    EXPECT_EQ(tuttiStreamDestroy(stream), ncclSuccess);
    self.Synchronize();
  });
}

}  // namespace
}  // namespace tutti::coordinator
