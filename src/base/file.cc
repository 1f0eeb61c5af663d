#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace tutti {
namespace {

constexpr mode_t kMode = 0644;

// Returns whether the path is a symbolic link of this user or of root (/dev/stderr is one).
bool IsLinkToFollow(const std::string& path) {
  struct stat link = {};
  return lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode) &&
         (link.st_uid == geteuid() || link.st_uid == 0);
}

}  // namespace

UniqueFd OpenToWrite(const std::string& path, int flags) {
  const int all = flags | O_CREAT | O_CLOEXEC;
  UniqueFd fd(open(path.c_str(), all | O_NOFOLLOW, kMode));
  if (!fd.valid() && errno == ELOOP && IsLinkToFollow(path))
    fd.Reset(open(path.c_str(), all, kMode));
  return fd;
}

Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoError(written < 0 ? errno : EIO, "writing");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return Status::Ok();
}

Status ReplaceFile(const std::string& path, std::string_view text) {
  uint64_t random = 0;
  if (getentropy(&random, sizeof(random)) != 0) return ErrnoError(errno, "asking for random bytes");
  const std::string beside = fmt::format("{}.{:016x}", path, random);
  const UniqueFd fd(
      open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot write {}", path));
  Status written = WriteAll(fd.get(), text);
  if (written.ok() && rename(beside.c_str(), path.c_str()) != 0)
    written = ErrnoError(errno, "renaming");
  if (written.ok()) return written;
  unlink(beside.c_str());
  return std::move(written).Annotate(fmt::format("cannot write {}", path));
}

}  // namespace tutti
