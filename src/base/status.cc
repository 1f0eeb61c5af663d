#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace tutti {

Status Status::Annotate(std::string_view prefix) && {
  if (failure_) failure_->message = fmt::format("{}: {}", prefix, failure_->message);
  return std::move(*this);
}

Status ErrnoError(int error, std::string_view what) {
  const char* name = strerrorname_np(error);
  const char* text = strerrordesc_np(error);
  std::string_view advice;
  if (error == EMFILE) advice = ": raise this process's limit of file descriptors (ulimit -n)";
  if (error == ENFILE) advice = ": raise this host's limit of open files (fs.file-max)";
  return SystemError("{}: {} ({}){}", what, text ? text : "unknown error", name ? name : "?",
                     advice);
}

}  // namespace tutti
