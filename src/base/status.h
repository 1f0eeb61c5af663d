#pragma once

// Status and Result<T>: the results of every function of Tutti that can fail.
//
// A Status is a single pointer: null means success, so the good path costs a compare. A failure
// owns its code and a sentence for a person (rank, peer, the attempted step, errno, advice). The
// codes carry the numbers of ncclResult_t, so the API layer translates with a cast.
//
// "Not yet" is not a failure: see Progress.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tutti {

enum class Code : int {
  kOk = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};

// The progress made by a call of a state machine's step function.
enum class Progress { kIdle, kAdvanced, kDone };

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : failure_(std::make_unique<Failure>(Failure{code, std::move(message)})) {}
  Status(const Status& other) { *this = other; }
  Status(Status&&) noexcept = default;
  Status& operator=(const Status& other) {
    failure_ = other.failure_ ? std::make_unique<Failure>(*other.failure_) : nullptr;
    return *this;
  }
  Status& operator=(Status&&) noexcept = default;

  static Status Ok() { return {}; }

  bool ok() const { return failure_ == nullptr; }
  Code code() const { return failure_ ? failure_->code : Code::kOk; }
  std::string_view message() const {
    return failure_ ? std::string_view(failure_->message) : std::string_view();
  }

  // Returns the same failure with `prefix` and a colon in front of its sentence; success stays
  // success.
  Status Annotate(std::string_view prefix) &&;

 private:
  struct Failure {
    Code code;
    std::string message;
  };
  std::unique_ptr<Failure> failure_;
};

namespace internal {
template <Code kCode, typename... Args>
Status MakeStatus(fmt::format_string<Args...> format, Args&&... args) {
  return Status(kCode, fmt::format(format, std::forward<Args>(args)...));
}
}  // namespace internal

// Make a failure, a function for each code; each takes a fmt format string and its arguments.
#define TUTTI_STATUS_MAKER(Name)                                                     \
  template <typename... Args>                                                        \
  Status Name(fmt::format_string<Args...> format, Args&&... args) {                  \
    return internal::MakeStatus<Code::k##Name>(format, std::forward<Args>(args)...); \
  }
TUTTI_STATUS_MAKER(SystemError)
TUTTI_STATUS_MAKER(InternalError)
TUTTI_STATUS_MAKER(InvalidArgument)
TUTTI_STATUS_MAKER(InvalidUsage)
TUTTI_STATUS_MAKER(RemoteError)
TUTTI_STATUS_MAKER(Timeout)
#undef TUTTI_STATUS_MAKER

// Returns a SystemError whose sentence ends with the name and text of the errno value `error`.
Status ErrnoError(int error, std::string_view what);

// Holds a value, or the Status that says why no value exists. REQUIRES: value() only after ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status&& status() && { return std::move(status_); }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// Returns from the enclosing function when `expression` (a Status) is a failure.
#define TUTTI_TRY(expression)                                                                 \
  do {                                                                                        \
    if (::tutti::Status tutti_try_status = (expression); !tutti_try_status.ok()) [[unlikely]] \
      return tutti_try_status;                                                                \
  } while (0)

// TUTTI_ASSIGN(auto x, F()): declares or assigns from a Result, or returns its failure.
#define TUTTI_ASSIGN(target, expression) \
  TUTTI_ASSIGN_IMPL(TUTTI_CONCAT(tutti_result_, __COUNTER__), target, expression)
#define TUTTI_ASSIGN_IMPL(result, target, expression) \
  auto result = (expression);                         \
  if (!result.ok()) [[unlikely]]                      \
    return std::move(result).status();                \
  target = std::move(result).value()
#define TUTTI_CONCAT(a, b) TUTTI_CONCAT_IMPL(a, b)
#define TUTTI_CONCAT_IMPL(a, b) a##b

}  // namespace tutti
