#include "gin/host_calls.h"

#include <gtest/gtest.h>

#include <array>

namespace tutti {
namespace {

class NoProxy final : public GinHostCalls {
 public:
  GinProxy* AsProxy() override {
    ++asked;
    return nullptr;
  }
  void Wait(uint32_t, uint32_t) override {}
  void NoteMissing(bool, uint32_t) override {}

  int asked = 0;
};

device::GinHead HeadOf(void* handle) { return static_cast<device::GinHead*>(handle)[-1]; }

TEST(GinHandleTest, LeadsToTheObjectThatKernelsCall) {
  NoProxy calls;
  GinHandle<device::GinContext> handle(&calls, 2);
  EXPECT_EQ(GinHostCalls::Of(handle.get()), &calls);
  EXPECT_EQ(GinHostCalls::Of(handle.get())->AsProxy(), nullptr);
  EXPECT_EQ(calls.asked, 1);
  EXPECT_EQ(static_cast<device::GinContext*>(handle.get()) + 1, &handle.context(1));
}

// Kernels act on signals themselves only where the mark says that they may.
TEST(GinHandleTest, HasNoMarkUntilSignalsAreShown) {
  NoProxy calls;
  GinHandle<device::GinContext> handle(&calls, 1);
  EXPECT_NE(HeadOf(handle.get()).mark, device::GinHead::kMark);
  GinPlan plan;
  plan.signals_at = 4096;
  plan.network_signals_at = 8192;
  handle.ShowSignals(plan, /*adds_to_windows=*/true);
  EXPECT_EQ(HeadOf(handle.get()).mark, device::GinHead::kMark);
  EXPECT_EQ(HeadOf(handle.get()).signals_at, 4096u);
  EXPECT_EQ(HeadOf(handle.get()).network_signals_at, 8192u);
  EXPECT_EQ(HeadOf(handle.get()).adds_to_windows, 1u);
}

// Each context has a record behind the last context, where kernels look for the record.
TEST(GinHandleTest, RecordsOfAProxyLieBehindItsContexts) {
  constexpr size_t kContexts = 5;
  NoProxy calls;
  GinHandle<device::GinContext> handle(&calls, kContexts);
  std::array<uint64_t, 2 * kContexts> words = {};
  for (size_t i = 0; i < kContexts; ++i) {
    handle.context(i).signals = &words[2 * i];
    handle.context(i).counters = &words[2 * i + 1];
  }
  handle.WriteRecords();
  const auto* const contexts = static_cast<const device::GinContext*>(handle.get());
  const auto* const records = reinterpret_cast<const ncclGinGdakiGPUContext*>(contexts + kContexts);
  for (size_t i = 0; i < kContexts; ++i) {
    EXPECT_EQ(records[i].signals_table.buffer, &words[2 * i]);
    EXPECT_EQ(records[i].counters_table.buffer, &words[2 * i + 1]);
    EXPECT_EQ(records[i].signals_table.offset, 0u);
    EXPECT_EQ(contexts[i].signals, &words[2 * i]) << "the contexts stay as they are";
  }
}

TEST(GinHandleTest, IsNullForKernelsOfAGpu) {
  GinHandle<device::GinContext> handle(nullptr, 1);
  EXPECT_EQ(GinHostCalls::Of(handle.get()), nullptr);
}

TEST(NoSuchGinWordTest, NamesTheWordAndTheNumberThereIs) {
  GinPlan plan;
  plan.num_signals = 3;
  plan.num_counters = 7;
  EXPECT_EQ(NoSuchGinWord(plan, /*is_signal=*/true, 5).message(),
            "there is no signal 5: the device communicator has 3");
  EXPECT_EQ(NoSuchGinWord(plan, /*is_signal=*/false, 9).message(),
            "there is no counter 9: the device communicator has 7");
}

}  // namespace
}  // namespace tutti
