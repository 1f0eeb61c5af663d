#pragma once

// A C function returns this: a code; and the sentence to it, which the calling thread keeps for the
// function that returns the last error.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/exceptions.h"
#include "base/status.h"

namespace tutti {

// The sentence of the last failure of one C interface. A thread_local variable.
class LastError {
 public:
  // Returns the code of what `call` returns, a Status, also when it throws. Keeps the sentence of a
  // failure, with the name of the function.
  template <class F>
  Code Keep(const char* function, F&& call) noexcept {
    const Status status = WithoutExceptions(std::forward<F>(call));
    if (status.ok()) return Code::kOk;
    try {
      sentence_ = fmt::format("{}: {}", function, status.message());
    } catch (...) {
      // Without memory for the sentence the caller has only the code.
    }
    return status.code();
  }
  // Returns the sentence, "" when nothing has failed. It is valid until the next failure.
  const char* sentence() const { return sentence_.c_str(); }

 private:
  std::string sentence_;
};

}  // namespace tutti
