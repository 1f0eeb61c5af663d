#include "gpu/pxn_inbox.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 4096;
const std::vector<PxnLane> kLanes = {{0, 3, 0}, {0, 3, 1}, {0, 7, 0}, {0, 7, 1}, {2, 3, 0}};

// The inbox as its owner made it, and the same inbox as a sender has mapped it.
struct Both {
  PxnInbox owner{kLanes, 2, kSlotBytes};
  PxnInbox sender{kLanes, 2, kSlotBytes};
  Both() {
    EXPECT_TRUE(owner.Create(/*with_slots=*/true).ok());
    EXPECT_TRUE(sender.Map(UniqueFd(dup(owner.fd())), /*with_slots=*/true).ok());
  }
};

TEST(PxnInboxTest, WhatASenderAnnouncesReachesTheOwner) {
  Both both;
  const size_t lane = *both.sender.Find({0, 7, 1});
  EXPECT_EQ(lane, 3u);
  both.sender.Announce(lane, 5, 1000, 42);
  both.sender.Announce(lane, 2, 30, 43);
  const PxnInbox::Announced& announced = both.owner.announced(lane);
  EXPECT_EQ(announced.chunks.load(), 7u);
  EXPECT_EQ(announced.bytes.load(), 1030u);
  EXPECT_EQ(announced.op_tag.load(), 43u);
  // Only the thread of channel 1 is woken.
  EXPECT_EQ(both.owner.doorbell(1).rings.load(), 2u);
  EXPECT_EQ(both.owner.doorbell(0).rings.load(), 0u);
  for (const size_t other : {0u, 1u, 2u, 4u})
    EXPECT_EQ(both.owner.announced(other).chunks.load(), 0u);
}

TEST(PxnInboxTest, OneSenderLeavesByItself) {
  Both both;
  both.sender.Leave(0);
  for (size_t lane = 0; lane < kLanes.size(); ++lane)
    EXPECT_EQ(both.owner.announced(lane).left.load(), kLanes[lane].from == 0 ? 1u : 0u);
  EXPECT_EQ(both.owner.doorbell(0).rings.load(), 1u);
  EXPECT_EQ(both.owner.doorbell(1).rings.load(), 1u);
}

TEST(PxnInboxTest, EachLaneHasAFifoOfItsOwn) {
  Both both;
  for (size_t lane = 0; lane < kLanes.size(); ++lane) {
    for (std::byte& byte : both.sender.fifo(lane)) byte = static_cast<std::byte>(lane + 1);
  }
  for (size_t lane = 0; lane < kLanes.size(); ++lane) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(both.owner.fifo(lane).data()) % 4096, 0u);
    for (const std::byte byte : both.owner.fifo(lane))
      ASSERT_EQ(byte, static_cast<std::byte>(lane + 1));
    EXPECT_EQ(both.owner.announced(lane).chunks.load(), 0u);
  }
}

TEST(PxnInboxTest, SlotsThatLieElsewhereTakeNoMemoryHere) {
  PxnInbox owner(kLanes, 2, kSlotBytes), sender(kLanes, 2, kSlotBytes);
  ASSERT_TRUE(owner.Create(/*with_slots=*/false).ok());
  ASSERT_TRUE(sender.Map(UniqueFd(dup(owner.fd())), /*with_slots=*/false).ok());
  for (size_t lane = 0; lane < kLanes.size(); ++lane) {
    EXPECT_EQ(owner.fifo(lane).size(), 4096u);
    sender.fifo(lane)[0] = static_cast<std::byte>(lane + 1);
  }
  for (size_t lane = 0; lane < kLanes.size(); ++lane)
    EXPECT_EQ(owner.fifo(lane)[0], static_cast<std::byte>(lane + 1));
}

TEST(PxnInboxTest, AnotherShapeIsRefused) {
  Both both;
  PxnInbox other(kLanes, 2, 2 * kSlotBytes);
  EXPECT_FALSE(other.Map(UniqueFd(dup(both.owner.fd())), /*with_slots=*/true).ok());
  EXPECT_FALSE(both.owner.Find({2, 7, 0}).has_value());
}

}  // namespace
}  // namespace tutti
