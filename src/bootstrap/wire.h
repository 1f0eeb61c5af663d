#pragma once

// Writing and reading the bootstrap's messages: little-endian integers, addresses, short texts.
//
// A WireReader never reads past its end: the first read beyond the end makes the reader fail, every
// later read yields zeros, and the caller asks once, at the end, whether all was well.

#include <string.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "sys/tcp.h"

namespace tutti {

// Overwrites memory before the memory is freed.
template <class T>
struct ErasingAllocator : std::allocator<T> {
  using std::allocator<T>::allocator;
  void deallocate(T* memory, size_t count) {
    explicit_bzero(memory, count * sizeof(T));
    std::allocator<T>::deallocate(memory, count);
  }
};

// The bytes of messages. Some messages carry keys, which must not stay in freed memory
// (base/erased.h).
using Bytes = std::vector<std::byte, ErasingAllocator<std::byte>>;

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}
inline std::string AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Return bytes in libsodium's type.
inline unsigned char* Unsigned(void* bytes) { return static_cast<unsigned char*>(bytes); }
inline const unsigned char* Unsigned(const void* bytes) {
  return static_cast<const unsigned char*>(bytes);
}

// Returns the bytes of a peer as a text for people (base/text.h).
inline std::string PrintableText(std::span<const std::byte> bytes) {
  return Printable({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// Returns a text of at most `limit` bytes; a text that is cut ends in dots.
inline std::string CutSentence(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  return std::string(text.substr(0, limit - 3)) + "...";
}

class WireWriter {
 public:
  void U8(uint8_t value) { bytes_.push_back(std::byte{value}); }
  void U16(uint16_t value) { Integer(value, 2); }
  void U32(uint32_t value) { Integer(value, 4); }
  void U64(uint64_t value) { Integer(value, 8); }
  void Raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // Writes a length byte and at most `limit` (< 256) bytes of text; the rest is cut off.
  void Text(std::string_view text, size_t limit) {
    text = text.substr(0, limit);
    U8(static_cast<uint8_t>(text.size()));
    Raw(AsBytes(text));
  }
  // Writes two bytes of length and at most `limit` (< 65,536) bytes of text; a text that is cut off
  // ends in dots.
  void Sentence(std::string_view text, size_t limit) {
    const std::string cut = CutSentence(text, limit);
    U16(static_cast<uint16_t>(cut.size()));
    Raw(AsBytes(cut));
  }
  // Writes 24 bytes: family u16, port u16, scope u32, address[16].
  void Address(const SocketAddress& address) {
    U16(address.family);
    U16(address.port);
    U32(address.scope_id);
    Raw(std::as_bytes(std::span(address.bytes)));
  }
  void Reserve(size_t size) { bytes_.reserve(size); }
  Bytes Take() && { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

 private:
  void Integer(uint64_t value, int length) {
    for (int i = 0; i < length; ++i) bytes_.push_back(std::byte(value >> (8 * i) & 0xff));
  }
  Bytes bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  uint8_t U8() { return static_cast<uint8_t>(Integer(1)); }
  uint16_t U16() { return static_cast<uint16_t>(Integer(2)); }
  uint32_t U32() { return static_cast<uint32_t>(Integer(4)); }
  uint64_t U64() { return Integer(8); }
  std::span<const std::byte> Raw(size_t length) {
    if (length > rest_.size()) {
      failed_ = true;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(length);
    rest_ = rest_.subspan(length);
    return taken;
  }
  // Reads a text. Bytes outside printable ASCII become '?', because the text ends up in a log.
  std::string Text() { return PrintableText(Raw(U8())); }
  // Reads a text whose length has two bytes, in the same way.
  std::string Sentence() { return PrintableText(Raw(U16())); }
  SocketAddress Address() {
    SocketAddress address;
    address.family = U16();
    address.port = U16();
    address.scope_id = U32();
    const auto raw = Raw(address.bytes.size());
    if (!raw.empty()) std::memcpy(address.bytes.data(), raw.data(), raw.size());
    if (!address.valid()) failed_ = true;
    return address;
  }
  bool failed() const { return failed_; }
  bool AtEnd() const { return rest_.empty(); }
  size_t remaining() const { return rest_.size(); }

 private:
  uint64_t Integer(size_t length) {
    const auto raw = Raw(length);
    uint64_t value = 0;
    for (size_t i = 0; i < raw.size(); ++i)
      value |= uint64_t{std::to_integer<uint8_t>(raw[i])} << (8 * i);
    return value;
  }
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace tutti
