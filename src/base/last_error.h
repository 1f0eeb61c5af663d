#pragma once

// The result of a C function: a code; and the sentence for the code, which the calling thread keeps
// for the function that returns the last error.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/exceptions.h"
#include "base/status.h"

namespace tutti {

// The sentence of the last failure of a C interface. A thread_local variable.
class LastError {
 public:
  // Returns the code of the Status that `call` returns, also when `call` throws. Keeps the sentence
  // of a failure, with the name of the function.
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
  // Returns the sentence, "" when nothing has failed. The sentence is valid until the next failure.
  const char* sentence() const { return sentence_.c_str(); }

 private:
  std::string sentence_;
};

}  // namespace tutti
