#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace tutti {

// FNV-1a (Fowler, Noll, Vo; 64 bits): the same number in every build, unlike std::hash, because
// ranks compare the results. The hash guards against accidents, not against attackers. Feed it byte
// by byte, or with whole texts.
class Fnv1a {
 public:
  void Add(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }
  void Add(std::string_view text) {
    for (const char c : text) Add(static_cast<uint8_t>(c));
  }
  [[nodiscard]] uint64_t hash() const { return hash_; }

  [[nodiscard]] static uint64_t Of(std::string_view text) {
    Fnv1a hash;
    hash.Add(text);
    return hash.hash();
  }
  template <typename T>
  [[nodiscard]] static uint64_t OfObjects(std::span<const T> objects) {
    return Of({reinterpret_cast<const char*>(objects.data()), objects.size_bytes()});
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace tutti
