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

// Returns whether this user or root owns the file. Another user owns a file that the other user
// made beforehand at a path of ours.
bool IsTrusted(const struct stat& file) { return file.st_uid == geteuid() || file.st_uid == 0; }

// Regular files and FIFOs can be made by any user. Devices cannot, and belong to root or to the
// user of a terminal.
bool IsForeign(const struct stat& file) {
  return (S_ISREG(file.st_mode) || S_ISFIFO(file.st_mode)) && !IsTrusted(file);
}

// Returns whether the path is a symbolic link of this user or of root (/dev/stderr is one).
bool IsLinkToFollow(const std::string& path) {
  struct stat link = {};
  return lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode) && IsTrusted(link);
}

}  // namespace

// O_NONBLOCK lets the opening of a FIFO without a reader fail by ENXIO, and is taken off again.
// O_TRUNC waits until the owner is known.
UniqueFd OpenToWrite(const std::string& path, int flags) {
  const int all = (flags & ~O_TRUNC) | O_CREAT | O_CLOEXEC | O_NONBLOCK;
  UniqueFd fd(open(path.c_str(), all | O_NOFOLLOW, kMode));
  if (!fd.valid() && errno == ELOOP && IsLinkToFollow(path))
    fd.Reset(open(path.c_str(), all, kMode));
  if (!fd.valid()) return fd;
  struct stat file = {};
  if (fstat(fd.get(), &file) != 0 || IsForeign(file)) {
    fd.Reset();
    errno = EACCES;
    return fd;
  }
  const bool empty =
      (flags & O_TRUNC) == 0 || !S_ISREG(file.st_mode) || ftruncate(fd.get(), 0) == 0;
  if (!empty || fcntl(fd.get(), F_SETFL, all & ~O_NONBLOCK) != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
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

namespace {

Status WriteInPlace(const std::string& path, std::string_view text) {
  const UniqueFd fd = OpenToWrite(path, O_WRONLY | O_TRUNC);
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot write {}", path));
  return WriteAll(fd.get(), text).Annotate(fmt::format("cannot write {}", path));
}

}  // namespace

Status ReplaceFile(const std::string& path, std::string_view text) {
  struct stat old = {};
  const bool exists = lstat(path.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) return WriteInPlace(path, text);
  uint64_t random = 0;
  if (getentropy(&random, sizeof(random)) != 0) return ErrnoError(errno, "asking for random bytes");
  const std::string beside = fmt::format("{}.{:016x}", path, random);
  const UniqueFd fd(
      open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
  // A file may be writable in a folder that is not.
  if (!fd.valid() && exists && (errno == EACCES || errno == EROFS)) return WriteInPlace(path, text);
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot write {}", path));
  Status written = WriteAll(fd.get(), text);
  if (written.ok() && exists && IsTrusted(old) && fchmod(fd.get(), old.st_mode & 0777) != 0)
    written = ErrnoError(errno, "keeping the mode");
  if (written.ok() && rename(beside.c_str(), path.c_str()) != 0)
    written = ErrnoError(errno, "renaming");
  if (written.ok()) return written;
  unlink(beside.c_str());
  return std::move(written).Annotate(fmt::format("cannot write {}", path));
}

}  // namespace tutti
