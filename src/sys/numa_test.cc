#include "sys/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sys/shared_memory.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

// Returns the node of the page at `address`, which must have been touched; -1 when the kernel does
// not tell.
int NumaNodeOf(const std::byte* address) {
  int node = -1;
  const long result = syscall(SYS_get_mempolicy, &node, nullptr, 0ul, address,
                              static_cast<unsigned long>(MPOL_F_NODE | MPOL_F_ADDR));
  return result == 0 ? node : -1;
}

TEST(Numa, ListsOfNumbersAreChecked) {
  EXPECT_EQ(ParseNumberList("0,2-3"), (std::vector<bool>{true, false, true, true}));
  for (const char* bad : {"", "x", "-1", "3-1", "1-", "0;1", "0,,1", "0-99999999", "99999999999"}) {
    EXPECT_TRUE(ParseNumberList(bad).empty()) << bad;
  }
}

TEST(Numa, ThereIsANode) { EXPECT_GE(NumaNodeCount(), 1); }

// On every node of this host: pages lie where they were preferred, also when another mapping of
// them touches them first.
TEST(Numa, PagesLieWhereTheyArePreferred) {
  auto memory = SharedMemory::Create(8 << 12, HugePages::kNo);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  for (int node = 0; node < NumaNodeCount() && node < 8; ++node) {
    const auto page = memory->bytes().subspan(static_cast<size_t>(node) << 12, 1 << 12);
    const Status status = PreferNumaNode(page, node);
    if (status.message().find("ENOSYS") != std::string::npos)
      GTEST_SKIP() << "this kernel has no NUMA";
    if (status.message().find("EPERM") != std::string::npos)
      GTEST_SKIP() << "a container forbids mbind";
    ASSERT_TRUE(status.ok()) << status.message();
    page[0] = std::byte{1};
    EXPECT_EQ(NumaNodeOf(page.data()), node);
  }
}

TEST(Numa, WhatIsNoNodeIsRefused) {
  auto memory = SharedMemory::Create(1 << 12, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  EXPECT_THAT(PreferNumaNode(memory->bytes(), -1).message(), HasSubstr("no NUMA node -1"));
  EXPECT_FALSE(PreferNumaNode(memory->bytes(), 1000).ok());
  EXPECT_FALSE(PreferNumaNode(memory->bytes(), 5000).ok());
}

}  // namespace
}  // namespace tutti
