// Images of entries, beside those that rdma-core's own structs and functions make.

#include <endian.h>
#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>

#include <cstring>

#include "nccl_device/impl/mlx5_queue.h"

namespace tutti::device::mlx5 {
namespace {

// An entry as rdma-core writes it, segment after segment.
class Image {
 public:
  Image(Position at, uint8_t operation, uint8_t segments) {
    mlx5dv_set_ctrl_seg(reinterpret_cast<mlx5_wqe_ctrl_seg*>(bytes_),
                        static_cast<uint16_t>(at.index), operation, 0, at.queue,
                        MLX5_WQE_CTRL_CQ_UPDATE, segments, 0, 0);
  }
  Image& Remote(uint64_t address, uint32_t key) {
    return Add(mlx5_wqe_raddr_seg{htobe64(address), htobe32(key), 0});
  }
  Image& Buffer(uint32_t bytes, uint32_t key, uint64_t address) {
    mlx5_wqe_data_seg segment = {};
    mlx5dv_set_data_seg(&segment, bytes, key, address);
    return Add(segment);
  }
  Image& Atomic(uint64_t added) { return Add(mlx5_wqe_atomic_seg{htobe64(added), 0}); }
  Image& Inline(const void* data, uint32_t bytes) {
    const mlx5_wqe_inl_data_seg segment = {htobe32(bytes | MLX5_INLINE_SEG)};
    std::memcpy(bytes_ + used_, &segment, sizeof(segment));
    std::memcpy(bytes_ + used_ + sizeof(segment), data, bytes);
    return *this;
  }

  bool operator==(const Entry& entry) const {
    return std::memcmp(bytes_, &entry, sizeof(bytes_)) == 0;
  }

 private:
  template <typename Segment>
  Image& Add(const Segment& segment) {
    static_assert(sizeof(Segment) == 16);
    std::memcpy(bytes_ + used_, &segment, sizeof(segment));
    used_ += sizeof(segment);
    return *this;
  }

  alignas(16) uint8_t bytes_[64] = {};
  size_t used_ = sizeof(mlx5_wqe_ctrl_seg);
};

constexpr uint64_t kFar = 0x0123456789abcdef, kNear = 0xfedcba9876543210;
constexpr uint32_t kFarKey = 0x00a1b2c3, kNearKey = 0x00d4e5f6;
constexpr Place kThere = {kFar, BigEndian(kFarKey)}, kHere = {kNear, BigEndian(kNearKey)};

class EntriesTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  const Position at_ = {0xabcdef, GetParam()};
};

TEST_P(EntriesTest, HaveTheImagesOfRdmaCore) {
  EXPECT_TRUE(Image(at_, MLX5_OPCODE_NOP, 1) == MakeNop(at_));
  EXPECT_TRUE(Image(at_, MLX5_OPCODE_RDMA_WRITE, 3)
                  .Remote(kFar, kFarKey)
                  .Buffer(0x3fffffff, kNearKey, kNear) ==
              MakeTransfer(at_, kWrite, kThere, kHere, 0x3fffffff));
  EXPECT_TRUE(
      Image(at_, MLX5_OPCODE_RDMA_READ, 3).Remote(kFar, kFarKey).Buffer(77, kNearKey, kNear) ==
      MakeTransfer(at_, kRead, kThere, kHere, 77));
  EXPECT_TRUE(Image(at_, MLX5_OPCODE_ATOMIC_FA, 4)
                  .Remote(kFar, kFarKey)
                  .Atomic(kNear)
                  .Buffer(8, kNearKey, kNear) == MakeFetchAdd(at_, kThere, kNear, kHere));
  for (uint32_t bytes = 1; bytes <= sizeof(kFar); ++bytes)
    EXPECT_TRUE(Image(at_, MLX5_OPCODE_RDMA_WRITE, 3).Remote(kFar, kFarKey).Inline(&kFar, bytes) ==
                MakeWriteOfValue(at_, kThere, kFar, bytes))
        << bytes;
  // rdma-core's public headers have no DUMP and no WAIT; the parts of a DUMP are theirs.
  EXPECT_TRUE(Image(at_, 0x23, 2).Buffer(8, kNearKey, kNear) == MakeDump(at_, kHere, 8));
}

INSTANTIATE_TEST_SUITE_P(Indices, EntriesTest,
                         ::testing::Values(0, 1, 0x1234, 0xffff, 0x10000, 0x123456789));

TEST(EntriesTest, AWaitNamesTheEntryAndItsCompletionQueue) {
  const Entry entry = MakeWait({0x1234, 5}, 0x1'0000'0042, 0x700);
  EXPECT_TRUE((Image({0x1234, 5}, 0x0f, 2).Remote(0, 0x42) == [&] {
    Entry without_queue = entry;
    without_queue.words[7] = 0;
    return without_queue;
  }()));
  EXPECT_EQ(be32toh(entry.words[7]), 0x700u);
}

TEST(DoorbellTest, HasTheWordsOfAControlSegment) {
  mlx5_wqe_ctrl_seg segment = {};
  mlx5dv_set_ctrl_seg(&segment, 0x2345, 0, 0, 0xabcdef, 0, 0, 0, 0);
  const uint64_t doorbell = Doorbell(0xabcdef, 0x12345);
  EXPECT_EQ(std::memcmp(&segment, &doorbell, sizeof(doorbell)), 0);
  EXPECT_EQ(DoorbellRecord(0x12345), htobe32(0x2345));
  static_assert(kSendRecord == MLX5_SND_DBR);
}

TEST(CompletionTest, IsReadAsRdmaCoreReadsIt) {
  static_assert(sizeof(mlx5_cqe64) == kEntryBytes);
  static_assert(offsetof(mlx5_cqe64, wqe_counter) == kCompletionWordAt);
  static_assert(offsetof(mlx5_err_cqe, syndrome) == kSyndromeAt);
  static_assert(kDone == MLX5_CQE_REQ && kRequesterError == MLX5_CQE_REQ_ERR &&
                kInvalid == MLX5_CQE_INVALID);
  for (const uint8_t state : std::initializer_list<uint8_t>{0x00, 0x01, 0xd0, 0xd1, 0xf1}) {
    mlx5_cqe64 completion = {};
    completion.wqe_counter = htobe16(0xbeef);
    completion.signature = 0x5a;
    completion.op_own = state;
    uint32_t word = 0;
    std::memcpy(&word, reinterpret_cast<const char*>(&completion) + kCompletionWordAt,
                sizeof(word));
    EXPECT_EQ(OpcodeOf(word), mlx5dv_get_cqe_opcode(&completion));
    EXPECT_EQ(OwnerOf(word), mlx5dv_get_cqe_owner(&completion));
    EXPECT_EQ(IndexOf(word), 0xbeefu);
  }
}

TEST(QueuePairTest, HasItsNumberInAllForms) {
  uint32_t record[2];
  const QueuePair pair = MakeQueuePair(0x12345, nullptr, 128, record, nullptr, nullptr, 7, 256);
  EXPECT_EQ(pair.doorbell_record, record + MLX5_SND_DBR);
  EXPECT_EQ(pair.number_shifted, 0x1234500u);
  EXPECT_EQ(pair.number_shifted_big_endian, htobe32(0x1234500));
  for (uint32_t segments = 1; segments <= 5; ++segments)
    EXPECT_EQ(pair.control_of_segments[segments - 1], htobe32(0x1234500 | segments));
  EXPECT_EQ(pair.mask, 127);
  EXPECT_EQ(pair.completions.mask, 255u);
}

}  // namespace
}  // namespace tutti::device::mlx5
