#include "sys/mapped.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <limits>

namespace tutti {
namespace {

TEST(IsMappedTest, SeesTheEdgesOfAMapping) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // Three pages, of which the last is given back.
  void* const mapping =
      mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  char* const data = static_cast<char*>(mapping);
  ASSERT_EQ(munmap(data + 2 * page, page), 0);

  EXPECT_TRUE(IsMapped(data, 2 * page));
  EXPECT_TRUE(IsMapped(data + 2 * page - 1, 1));
  EXPECT_FALSE(IsMapped(data + 2 * page, 1));
  EXPECT_FALSE(IsMapped(data + 2 * page - 1, 2));
  EXPECT_FALSE(IsMapped(data, 3 * page));
  EXPECT_EQ(munmap(data, 2 * page), 0);
  EXPECT_FALSE(IsMapped(data, 1));
}

TEST(IsMappedTest, LooksAtMoreThanOneChunk) {
  constexpr size_t kBytes = size_t{40} << 20;  // three chunks of 16 MiB, the last not full
  void* const mapping = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  char* const data = static_cast<char*>(mapping);
  EXPECT_TRUE(IsMapped(data, kBytes));
  ASSERT_EQ(munmap(data + (size_t{36} << 20), 4096), 0);
  EXPECT_FALSE(IsMapped(data, kBytes));
  EXPECT_EQ(munmap(data, kBytes), 0);
}

TEST(IsMappedTest, NothingAndNonsense) {
  EXPECT_TRUE(IsMapped(nullptr, 0));
  EXPECT_FALSE(IsMapped(nullptr, 1));
  EXPECT_FALSE(IsMapped(this, std::numeric_limits<size_t>::max()));
}

}  // namespace
}  // namespace tutti
