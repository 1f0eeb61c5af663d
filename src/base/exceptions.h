#pragma once

// The border at which exceptions end. The library reports by Status and throws nothing of its own,
// but the standard library throws when memory runs out, and an exception must neither reach a
// caller written in C nor end a thread with the whole program.

#include <utility>

#include "base/status.h"

namespace tutti {

// What the exception that is being handled says: SystemError when memory was lacking, InternalError
// for all others. REQUIRES: inside of a catch clause.
Status StatusOfException() noexcept;

// Runs `call`, which returns a Status; one that throws has failed.
template <class F>
Status WithoutExceptions(F&& call) {
  try {
    return std::forward<F>(call)();
  } catch (...) {
    return StatusOfException();
  }
}

}  // namespace tutti
