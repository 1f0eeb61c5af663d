#pragma once

// The last collectives that a rank has begun, for whoever asks what it did. Written by the thread
// that runs them, on its way to the first byte, and so without a lock: a reader that comes while a
// place changes finds nothing there, as if it had come a moment later.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>

#include "watch/signature.h"

namespace tutti {

class RecentCollectives {
 public:
  // A late rank may be so many operations behind and still be shown both sides.
  static constexpr uint64_t kKept = 64;

  // One thread at a time. REQUIRES: signature.sequence is one more than the last, from 1.
  void Add(const OpSignature& signature) {
    Place& place = places_[signature.sequence % kKept];
    Words words;
    std::memcpy(words.data(), &signature, sizeof(signature));
    place.sequence.store(0, std::memory_order_relaxed);
    // Whoever reads one of these words sees that zero, too, or what came after it.
    for (size_t i = 0; i < words.size(); ++i)
      place.words[i].store(words[i], std::memory_order_release);
    place.sequence.store(signature.sequence, std::memory_order_release);
    last_.store(signature.sequence, std::memory_order_release);
  }

  // The number of the last one; 0 before the first.
  uint64_t last() const { return last_.load(std::memory_order_acquire); }

  std::optional<OpSignature> Find(uint64_t sequence) const {
    const Place& place = places_[sequence % kKept];
    if (sequence == 0 || place.sequence.load(std::memory_order_acquire) != sequence) return {};
    Words words;
    for (size_t i = 0; i < words.size(); ++i)
      words[i] = place.words[i].load(std::memory_order_acquire);
    if (place.sequence.load(std::memory_order_relaxed) != sequence) return {};
    OpSignature signature;
    std::memcpy(static_cast<void*>(&signature), words.data(), sizeof(signature));
    return signature;
  }

 private:
  using Words = std::array<uint64_t, sizeof(OpSignature) / sizeof(uint64_t)>;
  static_assert(sizeof(Words) == sizeof(OpSignature));
  struct Place {
    std::atomic<uint64_t> sequence = 0;  // 0 while the words change
    std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words = {};
  };

  std::array<Place, kKept> places_;
  std::atomic<uint64_t> last_ = 0;
};

}  // namespace tutti
