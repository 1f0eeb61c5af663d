#pragma once

// A value in memory that other threads and processes read without a lock. A reader that comes while
// the value changes finds nothing, as if the reader had come a moment later. A writer that dies in
// the middle leaves a value that nobody reads.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace tutti::observe {

template <class T>
class SharedValue {
 public:
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);

  // Stores a value. At most one thread at a time.
  void Store(const T& value) {
    Words words;
    std::memcpy(words.data(), &value, sizeof(value));
    const uint64_t changing = version_.load(std::memory_order_relaxed) | 1;
    version_.store(changing, std::memory_order_relaxed);
    // A thread that reads any word stored here also reads `changing` or a later version.
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(changing + 1, std::memory_order_release);
  }

  // Takes the value away. At most one thread at a time with Store.
  void Clear() {
    version_.store(version_.load(std::memory_order_relaxed) | 1, std::memory_order_release);
  }

  // Returns nothing before the first Store, after Clear, and while the value changes.
  std::optional<T> Load() const {
    const uint64_t version = version_.load(std::memory_order_acquire);
    if (version == 0 || version % 2 != 0) return {};
    Words words;
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (version_.load(std::memory_order_relaxed) != version) return {};
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(value));
    return value;
  }

  // Takes the value away where `before` and `after`, copies of the same value from before and after
  // this copy was made, show that the value changed meanwhile.
  void DropIfTorn(const SharedValue& before, const SharedValue& after) {
    const uint64_t version = before.version_.load(std::memory_order_relaxed);
    const bool torn = version != after.version_.load(std::memory_order_relaxed);
    version_.store(torn ? 0 : version, std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);
  using Words = std::array<uint64_t, kWords>;

  std::atomic<uint64_t> version_ = 0;  // odd while the words change
  std::array<std::atomic<uint64_t>, kWords> words_ = {};
};

}  // namespace tutti::observe
