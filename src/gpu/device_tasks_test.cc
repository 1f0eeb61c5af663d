#include "gpu/device_tasks.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "base/reduce.h"
#include "plan/cost_table.h"

namespace tutti {
namespace {

TEST(DeviceTasksTest, MovedElementsAreBytes) {
  Task task = {.collective = Collective::kAllGather, .count = 3, .type = DataType::kFloat32};
  EXPECT_EQ(KernelElemBytes(task), 1u);
  EXPECT_EQ(KernelCount(task), 12u);
  task.collective = Collective::kReduce;
  EXPECT_EQ(KernelElemBytes(task), 4u);
  EXPECT_EQ(KernelCount(task), 3u);
}

// Where partial sums are stored as float16, the sum of an average could overflow.
TEST(DeviceTasksTest, AveragesOfHalvesAreScaledWherePartialSumsAreStored) {
  Task task = {.collective = Collective::kAllReduce, .count = 3, .type = DataType::kFloat16};
  task.op = {.kind = ReduceKind::kSum, .average = true};
  const cuda::ReduceArgs ring = ReduceArgsOf(task, 4, AddingOrder::kOtherOrder);
  EXPECT_TRUE(ring.scale);
  EXPECT_EQ(ring.scalar, ScalarBits(DataType::kFloat16, 0.25));
  EXPECT_EQ(ring.divisor, 0u);
  const cuda::ReduceArgs window = ReduceArgsOf(task, 4, AddingOrder::kRankOrder);
  EXPECT_FALSE(window.scale);
  EXPECT_EQ(window.divisor, 4u);
  task.type = DataType::kBfloat16;
  EXPECT_EQ(ReduceArgsOf(task, 4, AddingOrder::kOtherOrder).divisor, 4u);
}

TEST(DeviceTasksTest, AReduceScatterVIsAReduceForEachPart) {
  std::vector<float> in(6), out(3);
  auto parts = std::make_shared<VariableParts>();
  parts->recv_counts = {2, 0, 3};
  parts->recv_offsets = {0, 2, 3};
  Task task = {.collective = Collective::kReduceScatterV, .send = in.data(), .recv = out.data()};
  task.type = DataType::kFloat32;
  task.parts = parts;
  const std::vector<Task> reduces = ReducesOf(task, /*rank=*/2, /*num_ranks=*/3);
  ASSERT_EQ(reduces.size(), 2u);
  EXPECT_EQ(reduces[0].root, 0);
  EXPECT_EQ(reduces[0].count, 2u);
  EXPECT_EQ(reduces[0].send, in.data());
  EXPECT_EQ(reduces[0].recv, nullptr);
  EXPECT_EQ(reduces[1].root, 2);
  EXPECT_EQ(reduces[1].send, in.data() + 3);
  EXPECT_EQ(reduces[1].recv, out.data());
  for (const Task& reduce : reduces) EXPECT_EQ(reduce.collective, Collective::kReduce);
}

// Copies in, leaves the packed data as they are, and copies out: each output is its input.
TEST(DeviceTasksTest, StretchesCoverEveryBufferOnce) {
  constexpr size_t kLong = kGpuPackedBytes + 1000;
  std::vector<std::vector<uint8_t>> in, out;
  const auto buffers = std::make_shared<ScatteredBuffers>();
  for (const size_t bytes : {size_t{7}, kLong, size_t{1}, size_t{500}}) {
    in.emplace_back(bytes);
    std::iota(in.back().begin(), in.back().end(), static_cast<uint8_t>(in.size()));
    out.emplace_back(bytes);
  }
  for (size_t i = 0; i < in.size(); ++i)
    buffers->Append(reinterpret_cast<const std::byte*>(in[i].data()),
                    reinterpret_cast<std::byte*>(out[i].data()), in[i].size(), 1);
  Task task = {.count = buffers->count(), .type = DataType::kUint8};
  task.scattered = buffers;
  std::vector<std::byte> pack(kGpuPackedBytes);
  size_t elements = 0;
  for (const PackedStretch& stretch : PackedStretchesOf(task, pack.data())) {
    EXPECT_LE(stretch.task.count, kGpuPackedBytes);
    EXPECT_EQ(stretch.task.scattered, nullptr);
    elements += stretch.task.count;
    for (const cuda::CopyPiece& piece : stretch.in) std::copy_n(piece.from, piece.bytes, piece.to);
    for (const cuda::CopyPiece& piece : stretch.out) std::copy_n(piece.from, piece.bytes, piece.to);
  }
  EXPECT_EQ(elements, task.count);
  EXPECT_EQ(out, in);
}

TEST(DeviceTasksTest, OneBufferIsNotPacked) {
  std::vector<std::byte> data(kGpuPackedBytes + 5);
  const auto buffers = std::make_shared<ScatteredBuffers>();
  buffers->Append(data.data(), data.data(), data.size(), 1);
  Task task = {.count = data.size(), .type = DataType::kUint8};
  task.scattered = buffers;
  const std::vector<PackedStretch> stretches = PackedStretchesOf(task, nullptr);
  ASSERT_EQ(stretches.size(), 2u);
  for (const PackedStretch& stretch : stretches) {
    EXPECT_TRUE(stretch.in.empty());
    EXPECT_TRUE(stretch.out.empty());
  }
  EXPECT_EQ(stretches[1].task.send, data.data() + kGpuPackedBytes);
  EXPECT_EQ(stretches[1].task.count, 5u);
}

}  // namespace
}  // namespace tutti
