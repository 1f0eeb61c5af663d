// Tests the sharing and the end of registrations, and the sentence of a refusal, with a library of
// the test in place of libibverbs.

#include "transport/net/verbs/memory_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "transport/net/verbs/ports.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

// Holds the state of the library below, whose C functions have no object.
struct FakeHost {
  ibv_device device = {};
  ibv_context context = {};
  int registered = 0;  // registrations made in all
  int alive = 0;
  unsigned access = 0;  // the flags of the last registration
  bool refuses = false;
};
FakeHost* host = nullptr;

ibv_mr* Registered(unsigned access) {
  if (host->refuses) {
    errno = ENOMEM;
    return nullptr;
  }
  ++host->registered;
  ++host->alive;
  host->access = access;
  auto* mr = new ibv_mr{};
  mr->lkey = mr->rkey = static_cast<uint32_t>(host->registered);
  return mr;
}

VerbsLibrary FakeLibrary() {
  VerbsLibrary library;
  library.open_device = [](ibv_device* device) {
    host->context.device = device;
    return &host->context;
  };
  library.close_device = [](ibv_context*) { return 0; };
  library.query_device = [](ibv_context*, ibv_device_attr*) { return 0; };
  library.reg_mr = [](ibv_pd*, void*, size_t, int access) {
    return Registered(static_cast<unsigned>(access));
  };
  library.reg_mr_iova2 = [](ibv_pd*, void*, size_t, uint64_t, unsigned access) {
    return Registered(access);
  };
  library.dereg_mr = [](ibv_mr* mr) {
    --host->alive;
    delete mr;
    return 0;
  };
  return library;
}

class MemoryCacheTest : public ::testing::Test {
 protected:
  MemoryCacheTest() {
    host = &host_;
    device_ =
        VerbsDevice::Open(std::make_shared<VerbsLibrary>(FakeLibrary()), host_.device).value();
    cache_ = std::make_unique<MemoryCache>(device_, domain_, /*relaxed_ordering=*/true);
  }
  ~MemoryCacheTest() override {
    cache_.reset();
    device_.reset();
    EXPECT_EQ(host_.alive, 0) << "a registration was left behind";
    host = nullptr;
  }
  // A range of 16 pages that nobody reads or writes.
  static NetRegion Range(size_t first_byte, size_t bytes) {
    return {reinterpret_cast<std::byte*>(uintptr_t{0x10000000} + first_byte), bytes};
  }
  std::unique_ptr<VerbsMemory> Hold(const NetRegion& region) {
    return std::make_unique<VerbsMemory>(
        region, HeldByPorts{cache_->Get(region, MemoryUse::kMessages).value()});
  }

  FakeHost host_;
  ibv_pd domain_ = {};
  std::shared_ptr<VerbsDevice> device_;
  std::unique_ptr<MemoryCache> cache_;
};

TEST_F(MemoryCacheTest, APartSharesTheRegistrationOfTheWhole) {
  const auto whole = Hold(Range(0, 65536));
  const auto part = Hold(Range(5000, 100));
  EXPECT_EQ(host_.registered, 1);
  EXPECT_EQ(whole->registration(0), part->registration(0));
  EXPECT_TRUE(part->Holds(Range(5000, 0).address, 100));
  EXPECT_FALSE(part->Holds(Range(5000, 0).address, 101));
}

TEST_F(MemoryCacheTest, WhatIsNotWhollyWithinIsRegisteredAnew) {
  const auto some = Hold(Range(0, 8192));
  const auto more = Hold(Range(4096, 8192));
  EXPECT_EQ(host_.registered, 2);
  EXPECT_EQ(cache_->size(), 2u);
}

// The memory of the larger range may have been unmapped and mapped anew.
TEST_F(MemoryCacheTest, NobodyNewFindsAWholeThatIsNoLongerRegistered) {
  auto whole = Hold(Range(0, 65536));
  const auto part = Hold(Range(5000, 100));
  whole.reset();
  EXPECT_EQ(host_.alive, 1) << "the part outlives the whole";
  const auto later = Hold(Range(20000, 100));
  EXPECT_EQ(host_.registered, 2);
}

TEST_F(MemoryCacheTest, ARegistrationEndsWithItsLastUser) {
  auto whole = Hold(Range(0, 65536));
  auto part = Hold(Range(5000, 100));
  whole.reset();
  part.reset();
  EXPECT_EQ(host_.alive, 0);
  EXPECT_EQ(cache_->size(), 0u);
}

// The device must write polled bytes in order.
TEST_F(MemoryCacheTest, OnlyMessagesMayBeWrittenInAnyOrder) {
  const auto messages = Hold(Range(0, 100));
  EXPECT_NE(host_.access & IBV_ACCESS_RELAXED_ORDERING, 0u);
  const auto tables = cache_->Get(Range(0, 100), MemoryUse::kOneSided).value();
  EXPECT_EQ(host_.registered, 2) << "the two uses do not share a registration";
  EXPECT_EQ(host_.access & IBV_ACCESS_RELAXED_ORDERING, 0u);
}

TEST_F(MemoryCacheTest, ARefusalNamesTheLimit) {
  host_.refuses = true;
  const auto refused = cache_->Get(Range(0, 100), MemoryUse::kMessages);
  EXPECT_EQ(refused.status().code(), Code::kSystemError);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("ulimit -l"));
}

}  // namespace
}  // namespace tutti
