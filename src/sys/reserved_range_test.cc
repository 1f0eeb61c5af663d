#include "sys/reserved_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>

#include "sys/huge_pages.h"
#include "sys/mapped.h"
#include "sys/shared_memory.h"

namespace tutti {
namespace {

constexpr size_t kPage = 4096;

UniqueFd Duplicate(const SharedMemory& memory) { return UniqueFd(dup(memory.fd())); }

TEST(ReservedRangeTest, ShowsSharedMemoryWhereItIsMapped) {
  // Far more than any machine has: reserved addresses cost no memory.
  auto range = ReservedRange::Create(size_t{1} << 40);
  ASSERT_TRUE(range.ok()) << range.status().message();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(range->data()) % kHugePageBytes, 0u);
  auto memory = SharedMemory::Create(3 * kPage - 5, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  const size_t far = (size_t{1} << 40) - 3 * kPage;
  for (const size_t offset : {size_t{0}, 7 * kPage, far})
    ASSERT_TRUE(range->MapShared(offset, Duplicate(*memory), memory->size()).ok());
  range->data()[7 * kPage + 2 * kPage] = std::byte{7};
  EXPECT_EQ(memory->data()[2 * kPage], std::byte{7});
  EXPECT_EQ(range->data()[2 * kPage], std::byte{7});
  EXPECT_EQ(range->data()[far + 2 * kPage], std::byte{7});
}

TEST(ReservedRangeTest, KeepsTheAddressesThatAreCleared) {
  auto range = ReservedRange::Create(16 * kPage);
  ASSERT_TRUE(range.ok());
  auto memory = SharedMemory::Create(kPage, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(range->MapShared(kPage, Duplicate(*memory), kPage).ok());
  range->data()[kPage] = std::byte{1};
  range->Clear(kPage, kPage);
  EXPECT_DEATH(range->data()[kPage] = std::byte{2}, "");
  EXPECT_EQ(memory->data()[0], std::byte{1});
  ASSERT_TRUE(range->MapShared(kPage, Duplicate(*memory), kPage).ok());
  EXPECT_EQ(range->data()[kPage], std::byte{1});
  std::byte* const data = range->data();
  *range = ReservedRange();
  EXPECT_FALSE(IsMapped(data, kPage));
}

TEST(ReservedRangeTest, RefusesWhatDoesNotFitOrIsNoSharedMemory) {
  auto range = ReservedRange::Create(4 * kPage);
  ASSERT_TRUE(range.ok());
  auto memory = SharedMemory::Create(2 * kPage, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(range->MapShared(3 * kPage, Duplicate(*memory), 2 * kPage).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(range->MapShared(SIZE_MAX - kPage + 1, Duplicate(*memory), 2 * kPage).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(range->MapShared(0, Duplicate(*memory), 3 * kPage).code(), Code::kRemoteError);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  EXPECT_EQ(range->MapShared(0, read_end, kPage).code(), Code::kSystemError);
  EXPECT_EQ(ReservedRange::Create(0).status().code(), Code::kInvalidArgument);
  // More than an address space has.
  EXPECT_EQ(ReservedRange::Create(size_t{1} << 60).status().code(), Code::kSystemError);
}

}  // namespace
}  // namespace tutti
