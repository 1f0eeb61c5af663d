#pragma once

// Integers in the byte order of frames: little-endian on every machine.

#include <cstddef>
#include <type_traits>

namespace tutti {

template <typename T>
void PutLittleEndian(T value, std::byte* out) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

template <typename T>
T GetLittleEndian(const std::byte* in) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (std::to_integer<T>(in[i]) << (8 * i)));
  }
  return value;
}

}  // namespace tutti
