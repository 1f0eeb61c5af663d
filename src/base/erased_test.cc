#include "base/erased.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <string_view>

namespace tutti {
namespace {

// Returns whether any byte of the memory has the value.
bool Contains(const void* memory, size_t bytes, char value) {
  return std::memchr(memory, value, bytes) != nullptr;
}

TEST(ErasedTest, AKeyIsOverwrittenAtItsEnd) {
  using Key = std::array<char, 32>;
  Key key;
  key.fill('k');
  alignas(Erased<Key>) std::array<char, sizeof(Erased<Key>)> memory;
  auto* const erased = new (memory.data()) Erased<Key>(key);
  EXPECT_EQ(erased->get(), key);
  EXPECT_TRUE(Contains(memory.data(), memory.size(), 'k'));
  std::launder(erased)->~Erased();
  EXPECT_FALSE(Contains(memory.data(), memory.size(), 'k'));
}

TEST(ErasedTest, AShortTextIsOverwrittenAtItsEndAndWhenItMoves) {
  alignas(ErasedText) std::array<char, sizeof(ErasedText)> memory;
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
  const char* const bytes = text.data();
  text = ErasedText(std::string_view("short"));
  EXPECT_EQ(text, "short");
  EXPECT_NE(text.data(), nullptr);
  // The memory of the long text may be in use again, but a text that stays has none of it.
  EXPECT_EQ(text.find('k'), std::string::npos);
  static_cast<void>(bytes);
}

}  // namespace
}  // namespace tutti
