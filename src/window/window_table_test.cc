#include "window/window_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

// Looks for the window of `address` as a kernel does.
ncclWindow_t Find(const ncclDevCommWindowTable* block, uintptr_t address) {
  for (; block != nullptr; block = block->next)
    for (const ncclDevCommWindowTableEntry& entry : block->entries)
      if (address - entry.base < entry.size) return entry.window;
  return nullptr;
}

TEST(WindowTableTest, KernelsFindWindowsInChainedBlocks) {
  const auto memory = MakeHostRecordMemory();
  WindowTable table(*memory);
  EXPECT_EQ(table.first(), nullptr);
  std::vector<ncclWindow_vidmem> records(100);
  const ncclDevCommWindowTable* first = nullptr;
  for (size_t i = 0; i < records.size(); ++i) {
    ASSERT_TRUE(table.Add({0x1000 * (i + 1), 0x800, &records[i]}).ok());
    if (i == 0) first = table.first();
  }
  EXPECT_EQ(table.first(), first);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(Find(first, 0x1000 * (i + 1)), &records[i]);
    EXPECT_EQ(Find(first, 0x1000 * (i + 1) + 0x7ff), &records[i]);
    EXPECT_EQ(Find(first, 0x1000 * (i + 1) + 0x800), nullptr);
  }
}

TEST(WindowTableTest, PlacesAreUsedAgain) {
  const auto memory = MakeHostRecordMemory();
  WindowTable table(*memory);
  std::vector<ncclWindow_vidmem> records(NCCL_DEV_COMM_WINDOW_TABLE_ENTRIES + 1);
  for (size_t i = 0; i < NCCL_DEV_COMM_WINDOW_TABLE_ENTRIES; ++i)
    ASSERT_TRUE(table.Add({0x1000 * (i + 1), 0x1000, &records[i]}).ok());
  ASSERT_TRUE(table.Remove(&records[5]).ok());
  EXPECT_EQ(Find(table.first(), 0x6000), nullptr);
  ASSERT_TRUE(table.Add({0x6000, 1, &records.back()}).ok());
  EXPECT_EQ(Find(table.first(), 0x6000), &records.back());
  EXPECT_EQ(table.first()->next, nullptr);
  EXPECT_TRUE(table.Remove(&records[5])
                  .ok());  // The entry is not in the table, and Remove changes nothing.
}

}  // namespace
}  // namespace tutti
