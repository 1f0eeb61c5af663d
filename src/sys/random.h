#pragma once

// Random bits for keys, tokens and names, which nobody can guess. Any thread.

#include <sodium.h>

namespace tutti {

// Returns a random integer or array.
template <typename T>
T Random() {
  // Without sodium_init the first random bytes would race between threads.
  [[maybe_unused]] const int ready = sodium_init();
  T value;
  randombytes_buf(&value, sizeof(value));
  return value;
}

}  // namespace tutti
