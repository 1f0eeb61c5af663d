#include "window/window_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

// Looks for the window that holds `address` as a kernel does.
const WindowRecord* Find(const WindowTableBlock* block, uintptr_t address) {
  for (; block != nullptr; block = block->next)
    for (const WindowTableBlock::Entry& entry : block->entries)
      if (address - entry.base < entry.size) return entry.window;
  return nullptr;
}

TEST(WindowTableTest, KernelsFindWindowsInChainedBlocks) {
  const auto memory = MakeHostRecordMemory();
  WindowTable table(*memory);
  EXPECT_EQ(table.first(), nullptr);
  std::vector<WindowRecord> records(100);
  const WindowTableBlock* first = nullptr;
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
  std::vector<WindowRecord> records(WindowTableBlock::kEntries + 1);
  for (size_t i = 0; i < WindowTableBlock::kEntries; ++i)
    ASSERT_TRUE(table.Add({0x1000 * (i + 1), 0x1000, &records[i]}).ok());
  ASSERT_TRUE(table.Remove(&records[5]).ok());
  EXPECT_EQ(Find(table.first(), 0x6000), nullptr);
  ASSERT_TRUE(table.Add({0x6000, 1, &records.back()}).ok());
  EXPECT_EQ(Find(table.first(), 0x6000), &records.back());
  EXPECT_EQ(table.first()->next, nullptr);
  EXPECT_TRUE(table.Remove(&records[5]).ok());  // It is not there, which changes nothing.
}

}  // namespace
}  // namespace tutti
