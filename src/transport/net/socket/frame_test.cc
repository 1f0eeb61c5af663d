#include "transport/net/socket/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "transport/net/net.h"
#include "transport/net/socket/stripe.h"

namespace tutti {
namespace {

using FrameBytes = std::array<std::byte, kFrameBytes>;

FrameBytes Encoded(const Frame& frame) {
  FrameBytes bytes;
  EncodeFrame(frame, bytes);
  return bytes;
}

std::vector<Frame> Examples() {
  return {{FrameType::kData, 0, 0xdeadbeef, 0, 0},
          {FrameType::kData, 0, 1, kMaxNetMessageBytes, ~uint64_t{0}},
          {FrameType::kStriped, 64, 0x80000001, 65536, uint64_t{1} << 40},
          {FrameType::kData, 0, 1, 30, 5, 0x80000009},
          {FrameType::kGrant, 0, 0, 0, 12},
          {FrameType::kGrant, 0, 0, 16, 20},
          {FrameType::kResume, 0, 0, 0, 7},
          {FrameType::kGroup, kMaxNetGroup, 0, 0, 3}};
}

TEST(FrameTest, ComesBackAsItWent) {
  for (const Frame& frame : Examples()) {
    const Result<Frame> decoded = DecodeFrame(Encoded(frame));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded.value(), frame);
  }
}

TEST(FrameTest, IsLittleEndianOnEveryMachine) {
  const FrameBytes bytes = Encoded({FrameType::kData, 0, 0x04030201, 5, 0x1122334455667788});
  const std::array<uint8_t, kFrameBytes> expected = {
      0x54, 0x75, 1, 0, 1,    2,    3,    4,    5,    0,    0,    0,
      0,    0,    0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
  for (size_t i = 0; i < kFrameBytes; ++i)
    EXPECT_EQ(std::to_integer<uint8_t>(bytes[i]), expected[i]) << i;
}

TEST(FrameTest, RefusesWhatCannotHaveBeenWritten) {
  const Frame grant = {FrameType::kGrant, 0, 0, 0, 12};
  const Frame data = {FrameType::kData, 0, 7, 100, 3};
  const auto refused = [](Frame frame, size_t at, uint8_t value) {
    FrameBytes bytes = Encoded(frame);
    bytes[at] = std::byte{value};
    return DecodeFrame(bytes).status().code() == Code::kRemoteError;
  };
  EXPECT_TRUE(refused(data, 0, 'G'));  // magic
  EXPECT_TRUE(refused(data, 1, 'E'));
  EXPECT_TRUE(refused(data, 2, 0));  // type
  EXPECT_TRUE(refused(data, 2, 6));
  EXPECT_TRUE(refused(data, 3, 1));      // data sockets on an unstriped frame
  EXPECT_TRUE(refused(data, 11, 0x41));  // 1 GiB and more
  EXPECT_TRUE(refused(grant, 12, 1));    // a tag
  EXPECT_TRUE(refused(grant, 3, 1));
  EXPECT_TRUE(refused(grant, 8, 2 * kNetWindow + 1));  // more missing than can be granted
  EXPECT_TRUE(refused({FrameType::kResume, 0, 0, 0, 5}, 8, 1));
  EXPECT_TRUE(refused(grant, 4, 1));
  EXPECT_TRUE(refused({FrameType::kStriped, 2, 0, 65536, 0}, 3, 0));
  EXPECT_TRUE(refused({FrameType::kStriped, 2, 0, 65536, 0}, 3, kMaxDataSockets + 1));
  EXPECT_TRUE(refused({FrameType::kGroup, 2, 0, 0, 0}, 3, 0));
  EXPECT_TRUE(refused({FrameType::kGroup, 2, 0, 0, 0}, 3, kMaxNetGroup + 1));
}

TEST(FrameTest, MutatedFramesAreRefusedOrAreOtherFrames) {
  std::mt19937 random(11);
  for (int round = 0; round < 20'000; ++round) {
    const std::vector<Frame> examples = Examples();
    FrameBytes bytes = Encoded(examples[random() % examples.size()]);
    for (unsigned flips = random() % 4 + 1; flips > 0; --flips) {
      bytes[random() % kFrameBytes] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    const Result<Frame> decoded = DecodeFrame(bytes);
    if (decoded.ok()) {
      EXPECT_EQ(Encoded(decoded.value()), bytes) << "round " << round;
    } else {
      EXPECT_FALSE(decoded.status().message().empty());
    }
  }
}

TEST(FrameTest, GroupTagsComeBackOrAreRefused) {
  std::array<std::byte, kGroupTagsBytes> bytes;
  const auto decoded = [&](const GroupTags& tags, uint8_t number) {
    EncodeGroupTags(tags, bytes);
    const Result<GroupTags> result = DecodeGroupTags(bytes, number);
    return result.ok() && *result == tags;
  };
  EXPECT_TRUE(decoded({1, 2, 3}, 3));
  EXPECT_TRUE(decoded({1, 2, 3, 4, 5, 6, 7, ~0u}, 8));
  EXPECT_FALSE(decoded({1, 2, 3}, 2));
  EXPECT_FALSE(decoded({1, 2, 3}, 4));
  EXPECT_FALSE(decoded({1, 2, 1}, 3));
  EXPECT_FALSE(decoded({0, 2}, 2));
}

TEST(StripingTest, CoversEveryByteOnceAndEverySocketAtMostOnce) {
  for (const int sockets : {1, 2, 3, 7, 64}) {
    for (const size_t bytes :
         {size_t{65536}, size_t{65537}, size_t{99999}, size_t{1} << 20, (size_t{1} << 22) + 13}) {
      for (const uint64_t chunk : {uint64_t{0}, uint64_t{5}, ~uint64_t{0} - 3}) {
        const int used = Striping::SocketsFor(bytes, sockets);
        if (used == 0) continue;
        const Striping striping(bytes, chunk, used, sockets);
        std::vector<int> seen(static_cast<size_t>(sockets));
        size_t next = 0;
        for (int i = 0; i < used; ++i) {
          const StripePiece piece = striping.At(i);
          EXPECT_EQ(piece.offset, next);
          EXPECT_GT(piece.bytes, 0u);
          next += piece.bytes;
          EXPECT_EQ(seen[static_cast<size_t>(piece.socket)]++, 0);
        }
        EXPECT_EQ(next, bytes);
      }
    }
  }
}

TEST(StripingTest, LeavesShortChunksOnTheControlSocket) {
  EXPECT_EQ(Striping::SocketsFor(0, 8), 0);
  EXPECT_EQ(Striping::SocketsFor(2 * kMinPieceBytes - 1, 8), 0);
  EXPECT_EQ(Striping::SocketsFor(2 * kMinPieceBytes, 8), 2);
  EXPECT_EQ(Striping::SocketsFor(size_t{1} << 30, 8), 8);
  EXPECT_EQ(Striping::SocketsFor(size_t{1} << 30, 0), 0);
}

}  // namespace
}  // namespace tutti
