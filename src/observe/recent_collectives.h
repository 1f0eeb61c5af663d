#pragma once

// The last collectives that a rank has begun, for other threads that ask. The thread that runs
// collectives writes here on its way to the first byte, and therefore without a lock. A reader that
// comes while a place changes finds nothing at this place, as if the reader had come a moment
// later.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>

#include "observe/signature.h"

namespace tutti {

class RecentCollectives {
 public:
  // A rank this many operations behind can still be shown both sides.
  static constexpr uint64_t kKept = 64;

  // Stores a signature. At most one thread at a time. REQUIRES: signature.sequence is last() + 1.
  void Add(const OpSignature& signature) {
    Place& place = places_[signature.sequence % kKept];
    Words words;
    std::memcpy(words.data(), &signature, sizeof(signature));
    place.sequence.store(0, std::memory_order_relaxed);
    // A thread that reads any word stored here also reads 0 or a later number in `sequence`.
    for (size_t i = 0; i < words.size(); ++i)
      place.words[i].store(words[i], std::memory_order_release);
    place.sequence.store(signature.sequence, std::memory_order_release);
    last_.store(signature.sequence, std::memory_order_release);
  }

  // Forgets all collectives and begins to count anew. At most one thread at a time with Add.
  void Clear() {
    for (Place& place : places_) place.sequence.store(0, std::memory_order_release);
    last_.store(0, std::memory_order_release);
  }

  // Returns the number of the last collective; 0 before the first.
  uint64_t last() const { return last_.load(std::memory_order_acquire); }

  // Returns nothing for a collective that has not begun, lies too far back, or is being replaced.
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

  // Forgets, in a copy, the collectives whose places changed while the copy was made: `before` and
  // `after` are copies of the same object from before and after.
  void DropTorn(const RecentCollectives& before, const RecentCollectives& after) {
    for (size_t i = 0; i < kKept; ++i) {
      const uint64_t sequence = before.places_[i].sequence.load(std::memory_order_relaxed);
      const bool torn = sequence != after.places_[i].sequence.load(std::memory_order_relaxed);
      places_[i].sequence.store(torn ? 0 : sequence, std::memory_order_relaxed);
    }
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
