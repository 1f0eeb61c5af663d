#include "bootstrap/wire.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>

#include <array>
#include <cstdint>

#include "base/unique_fd.h"

namespace tutti {
namespace {

constexpr size_t kSize = 1000;
constexpr std::byte kKey{'k'};

// Returns whether the memory at `address` has four bytes of the key in a row. Reads as the kernel
// does, because the memory may be freed. The heap writes its own pointers into the first bytes of
// freed memory.
bool HasKey(uintptr_t address) {
  const UniqueFd memory(open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  std::array<std::byte, kSize> bytes;
  EXPECT_EQ(pread(memory.get(), bytes.data(), kSize, static_cast<off_t>(address)),
            static_cast<ssize_t>(kSize));
  const std::array<std::byte, 4> four = {kKey, kKey, kKey, kKey};
  return memmem(bytes.data(), kSize, four.data(), four.size()) != nullptr;
}

TEST(BytesTest, AreOverwrittenWhenTheyGrowAndAtTheirEnd) {
  uintptr_t first = 0;
  uintptr_t last = 0;
  {
    Bytes bytes(kSize, kKey);
    first = reinterpret_cast<uintptr_t>(bytes.data());
    EXPECT_TRUE(HasKey(first));
    bytes.resize(bytes.capacity() + kSize, kKey);
    last = reinterpret_cast<uintptr_t>(bytes.data());
    ASSERT_NE(first, last);
    EXPECT_FALSE(HasKey(first));
    EXPECT_TRUE(HasKey(last));
  }
  EXPECT_FALSE(HasKey(last));
}

}  // namespace
}  // namespace tutti
