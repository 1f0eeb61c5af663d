#include "tutti/host_grid.h"

#include <gtest/gtest.h>

#include "gin/host_calls.h"

namespace tutti {
namespace {

constexpr uint64_t kWords[device::GinDescriptor::kWords] = {};

// A card's side of a handle, which has no proxy.
class CardCalls final : public GinHostCalls {
 public:
  GinProxy* AsProxy() override {
    ++refused;
    return nullptr;
  }
  void Wait(uint32_t, uint32_t) override {}
  void NoteMissing(bool, uint32_t) override {}

  int refused = 0;
};

// Do returns 1, by which the kernel does not write a descriptor into the card's memory.
TEST(HostGridTest, AKernelThatPostsToACardIsRefused) {
  CardCalls card;
  GinHandle<device::GinContext> handle(&card, 1);
  EXPECT_EQ(tuttiHostGinCarryOut(handle.get(), 0, 0, kWords), 1);
  EXPECT_EQ(card.refused, 1);
  tuttiHostGinRing(handle.get(), 0, 0);
  EXPECT_EQ(card.refused, 2);
}

TEST(HostGridTest, AKernelOfAGpuPostsItself) {
  GinHandle<device::GinContext> handle(nullptr, 1);
  EXPECT_EQ(tuttiHostGinCarryOut(handle.get(), 0, 0, kWords), 0);
  tuttiHostGinRing(handle.get(), 0, 0);
}

}  // namespace
}  // namespace tutti
