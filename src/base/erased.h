#pragma once

// Secrets that erase themselves. A key that stays in freed memory can reach core dumps, swap, and
// whoever reads memory that is used again. The owner of a key holds the key as an Erased, and the
// text of a secret as an ErasedText.
//
// Any thread, as the contained value.

#include <string.h>

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

namespace tutti {

// Holds a value of plain bytes, such as a Key. The destructor overwrites the bytes.
template <class T>
class Erased {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Erased() = default;
  Erased(const T& value) : value_(value) {}  // NOLINT: an Erased stands for its value
  Erased(const Erased&) = default;
  Erased& operator=(const Erased&) = default;
  ~Erased() { explicit_bzero(&value_, sizeof(value_)); }

  operator const T&() const { return value_; }  // NOLINT: an Erased stands for its value
  const T& get() const { return value_; }
  T& get() { return value_; }

 private:
  T value_ = {};
};

// A text whose bytes are overwritten at its end, and when another text takes its place.
class ErasedText : public std::string {
 public:
  ErasedText() = default;
  template <std::convertible_to<std::string_view> Text>
  ErasedText(const Text& text) : std::string(std::string_view(text)) {}  // NOLINT: it is a text
  ErasedText(const ErasedText&) = default;
  ErasedText(ErasedText&& other) noexcept : std::string(std::move(other)) { other.Erase(); }
  ErasedText& operator=(ErasedText other) {
    Erase();
    std::string::operator=(std::move(other));
    return *this;
  }
  ~ErasedText() { Erase(); }

 private:
  // Short texts lie in the object, and all others in memory of their own: data() knows which.
  void Erase() {
    explicit_bzero(data(), capacity());
    clear();
  }
};

}  // namespace tutti
