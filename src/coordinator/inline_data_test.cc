#include "coordinator/inline_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "coordinator/testing/job.h"

namespace tutti::coordinator {
namespace {

using ::testing::Each;

Request Allreduce(ElementType type, std::vector<int64_t> shape) {
  Request request;
  request.type = type;
  request.shape = std::move(shape);
  return request;
}

TEST(InlineDataTest, SmallAllreducesFit) {
  EXPECT_TRUE(FitsInline(Allreduce(ElementType::kFloat32, {})));
  EXPECT_TRUE(FitsInline(Allreduce(ElementType::kFloat32, {2, 1})));
  EXPECT_TRUE(FitsInline(Allreduce(ElementType::kUint8, {8})));
  EXPECT_FALSE(FitsInline(Allreduce(ElementType::kFloat32, {3})));
  EXPECT_FALSE(FitsInline(Allreduce(ElementType::kUint8, {9})));
  EXPECT_FALSE(FitsInline(Allreduce(ElementType::kInt16, {4})));  // travels as 32 bits
  EXPECT_FALSE(FitsInline(Allreduce(ElementType::kFloat32, {0})));
  EXPECT_FALSE(FitsInline(Allreduce(ElementType::kUint8, {int64_t{1} << 32, int64_t{1} << 32})));
  Request other = Allreduce(ElementType::kFloat32, {1});
  other.op = ReduceOp::kAdasum;
  EXPECT_FALSE(FitsInline(other));
  other = Allreduce(ElementType::kFloat32, {1});
  other.group_size = 2;
  EXPECT_FALSE(FitsInline(other));
  other = Allreduce(ElementType::kFloat32, {1});
  other.kind = OpKind::kBroadcast;
  EXPECT_FALSE(FitsInline(other));
}

TEST(InlineDataTest, AllPlacesMustHoldOneSlot) {
  const Request request = Allreduce(ElementType::kInt32, {});
  std::vector<uint8_t> blocks(3 * kInlineBlockBytes, 0xff);
  EXPECT_EQ(SlotOfAllBlocks(blocks), -1);
  EXPECT_EQ(SlotOfAllBlocks({}), -1);
  const auto block = [&](size_t i) {
    return std::span(blocks).subspan(i * kInlineBlockBytes, kInlineBlockBytes);
  };
  const int32_t values[] = {5, -7, 100};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(SlotOfAllBlocks(blocks), -1);
    WriteInlineBlock(request, 300, &values[i], blocks, static_cast<int>(i));
  }
  EXPECT_EQ(SlotOfAllBlocks(blocks), 300);
  int32_t sum = 0;
  ReduceInlineBlocks(request, blocks, reinterpret_cast<std::byte*>(&sum));
  EXPECT_EQ(sum, 98);
  WriteInlineBlock(request, 301, &values[1], blocks, 1);
  EXPECT_EQ(SlotOfAllBlocks(blocks), -1);
  block(1)[0] = block(1)[1] = 0xff;
  WriteInlineBlock(request, 0xffff, &values[1], blocks, 1);  // no such block
  EXPECT_EQ(SlotOfAllBlocks(blocks), -1);
}

// The first time the data move by themselves, later they travel inline: the result is the same to
// the bit.
TEST(InlineDataTest, GivesTheSameBits) {
  for (const int ranks : {1, 2, 3}) {
    RunJob(ranks, [](TestRank& self) {
      for (int type = 0; type < kNumElementTypes; ++type) {
        for (int op = 0; op < kNumReduceOps; ++op) {
          if (op == tuttiReduceAdasum) continue;
          for (const double scale : {1.0, 0.5}) {
            const auto size = SizeOf(static_cast<ElementType>(type));
            const std::string name = "t" + std::to_string(type) + '.' + std::to_string(op) +
                                     (scale == 1 ? "" : ".scaled");
            std::byte input[8], first[8], output[8];
            for (size_t i = 0; i < 8; ++i) {
              input[i] = std::byte(
                  type == tuttiBool ? i % 2 : (i + 1) * 23 + static_cast<size_t>(self.rank()) * 5);
            }
            const auto count = static_cast<int64_t>(8 / size);
            for (int time = 0; time < 3; ++time) {
              auto tensor =
                  TestRank::Describe(name.c_str(), tuttiOpAllreduce,
                                     static_cast<tuttiElementType_t>(type), {count}, input, output);
              // The shape must live as long as the description.
              tensor.shape = &count;
              tensor.op = static_cast<tuttiReduceOp_t>(op);
              tensor.prescale = scale;
              const int64_t handle = self.Enqueue(tensor);
              self.Wait(handle);
              self.Release(handle);
              if (time == 0) std::memcpy(first, output, 8);
              EXPECT_EQ(std::memcmp(first, output, 8), 0) << name << ", time " << time;
            }
          }
        }
      }
      EXPECT_GT(self.Counter("moved_inline"), 200u);
    });
  }
}

TEST(InlineDataTest, DifferentTensorsComeToTheSameEnd) {
  RunJob(3, [](TestRank& self) {
    for (int step = 0; step < 50; ++step) {
      float values[4] = {};
      int64_t handles[4] = {};
      const int64_t one = 1;
      // Each rank asks in an order of its own, for tensors that fit inline and tensors that do not.
      for (int i = 0; i < 4; ++i) {
        const int which = (i + self.rank()) % 4;
        values[which] = static_cast<float>(which + step);
        const std::string name = "s" + std::to_string(which);
        auto tensor = TestRank::Describe(name.c_str(), tuttiOpAllreduce, tuttiFloat32, {},
                                         &values[which], &values[which]);
        tensor.shape = &one;
        tensor.ndim = 1;
        handles[which] = self.Enqueue(tensor);
        if (step % 7 == self.rank()) std::this_thread::yield();
      }
      for (int which = 0; which < 4; ++which) {
        self.Wait(handles[which]);
        self.Release(handles[which]);
        EXPECT_EQ(values[which], 3 * static_cast<float>(which + step));
      }
    }
  });
}

// A rank that has joined writes no block; its neutral element comes by the other way.
TEST(InlineDataTest, NotWithThoseWhoHaveJoined) {
  RunJob(2, [](TestRank& self) {
    std::vector<float> value = {3};
    self.Sum("s", value);
    value = {3};
    self.Sum("s", value);
    EXPECT_EQ(value[0], 6);
    if (self.rank() == 0) {
      value = {3};
      self.Sum("s", value);
      EXPECT_EQ(value[0], 3);
    }
    int64_t handle = 0;
    ASSERT_EQ(tuttiCoordinatorJoin(self.get(), 0, &handle), ncclSuccess);
    self.Wait(handle);
  });
}

}  // namespace
}  // namespace tutti::coordinator
