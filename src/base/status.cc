#include "base/status.h"

#include <cstring>

namespace tutti {

Status Status::Annotate(std::string_view prefix) && {
  if (failure_) failure_->message = fmt::format("{}: {}", prefix, failure_->message);
  return std::move(*this);
}

Status ErrnoError(int error, std::string_view what) {
  const char* name = strerrorname_np(error);
  const char* text = strerrordesc_np(error);
  return SystemError("{}: {} ({})", what, text ? text : "unknown error", name ? name : "?");
}

}  // namespace tutti
