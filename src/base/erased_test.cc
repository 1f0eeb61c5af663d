#include "base/erased.h"

#include <gtest/gtest.h>
#include <string.h>

#include <array>
#include <cstddef>
#include <new>
#include <string>

namespace tutti {
namespace {

// Returns whether four bytes in a row have the value. A single byte of the value proves nothing: a
// text's object has a pointer into itself, and any byte of an address can have any value.
bool Contains(const void* memory, size_t bytes, char value) {
  const std::array<char, 4> four = {value, value, value, value};
  return memmem(memory, bytes, four.data(), four.size()) != nullptr;
}

TEST(ErasedTest, AKeyIsOverwrittenAtItsEnd) {
  using Key = std::array<char, 32>;
  Key key;
  key.fill('k');
  alignas(Erased<Key>) std::array<char, sizeof(Erased<Key>)> memory = {};
  auto* const erased = new (memory.data()) Erased<Key>(key);
  EXPECT_EQ(erased->get(), key);
  EXPECT_TRUE(Contains(memory.data(), memory.size(), 'k'));
  std::launder(erased)->~Erased();
  EXPECT_FALSE(Contains(memory.data(), memory.size(), 'k'));
}

TEST(ErasedTest, AShortTextIsOverwrittenAtItsEndAndWhenItMoves) {
  alignas(ErasedText) std::array<char, sizeof(ErasedText)> memory = {};
  auto* const text = new (memory.data()) ErasedText("kkkkkkkk");
  const ErasedText moved = std::move(*text);
  EXPECT_EQ(moved, "kkkkkkkk");
  EXPECT_FALSE(Contains(memory.data(), memory.size(), 'k'));
  *text = ErasedText("kkkk");
  EXPECT_TRUE(Contains(memory.data(), memory.size(), 'k'));
  text->~ErasedText();
  EXPECT_FALSE(Contains(memory.data(), memory.size(), 'k'));
}

TEST(ErasedTest, AnotherTextTakesThePlaceOfALongText) {
  ErasedText text(std::string(100, 'k'));
  ASSERT_TRUE(Contains(text.data(), text.capacity(), 'k'));
  text = ErasedText("short");
  EXPECT_EQ(text, "short");
  // The text may keep the memory of the long text.
  EXPECT_FALSE(Contains(text.data(), text.capacity(), 'k'));
}

}  // namespace
}  // namespace tutti
