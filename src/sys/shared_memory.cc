#include "sys/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>

#include "base/rounding.h"

namespace tutti {
namespace {

// F_SEAL_SEAL as well: nobody may add a seal that forbids the writes of later users.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kMaxBytes = std::numeric_limits<size_t>::max() / 4;  // rounding cannot overflow

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Returns a soft limit as a person reads it.
std::string LimitText(int resource) {
  rlimit limit;
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

// Growing a file beyond RLIMIT_FSIZE raises SIGXFSZ, which ends the process; the limit is therefore
// read beforehand.
Status CheckFileSizeLimit(size_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return ErrnoError(errno, "getrlimit(RLIMIT_FSIZE)");
  if (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return Status::Ok();
  return SystemError(
      "cannot make {} bytes of shared memory: RLIMIT_FSIZE (ulimit -f) of this process is {} "
      "bytes; raise it",
      bytes, limit.rlim_cur);
}

// Size first, then seals: a sealed file could not grow to its size any more.
Result<UniqueFd> MakeSealedFile(size_t bytes) {
  TUTTI_TRY(CheckFileSizeLimit(bytes));
  UniqueFd fd(memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    const int error = errno;
    return ErrnoError(error,
                      fmt::format("memfd_create for {} bytes of shared memory (RLIMIT_NOFILE, "
                                  "ulimit -n, is {})",
                                  bytes, LimitText(RLIMIT_NOFILE)));
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return ErrnoError(errno, fmt::format("cannot give shared memory its size of {} bytes", bytes));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return ErrnoError(errno, "cannot seal the size of shared memory");
  return fd;
}

}  // namespace

Result<SharedMemory> SharedMemory::Create(size_t bytes, HugePages huge_pages) {
  if (bytes == 0 || bytes > kMaxBytes)
    return InvalidArgument("shared memory of {} bytes was asked for", bytes);
  TUTTI_ASSIGN(UniqueFd fd, MakeSealedFile(RoundUp(bytes, PageBytes())));
  return MapChecked(std::move(fd), bytes, huge_pages);
}

// The seals are checked before the size, because an unsealed size may change after the check.
Status SharedMemory::CheckRegion(const UniqueFd& fd, size_t expected_bytes) {
  if (expected_bytes == 0 || expected_bytes > kMaxBytes)
    return InvalidArgument("shared memory of {} bytes was to be mapped", expected_bytes);
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return ErrnoError(errno, "a descriptor that should be shared memory is none");
  if ((seals & kSeals) != kSeals)
    return RemoteError("shared memory from a peer is not sealed (seals {:#x}, {:#x} needed)", seals,
                       kSeals);
  struct stat file;
  if (fstat(fd.get(), &file) != 0) return ErrnoError(errno, "fstat of shared memory");
  const size_t needed = RoundUp(expected_bytes, PageBytes());
  if (file.st_size < 0 || static_cast<size_t>(file.st_size) != needed)
    return RemoteError("shared memory from a peer has {} bytes where {} were announced",
                       file.st_size, needed);
  return Status::Ok();
}

Result<SharedMemory> SharedMemory::Map(UniqueFd fd, size_t expected_bytes, HugePages huge_pages) {
  TUTTI_TRY(CheckRegion(fd, expected_bytes));
  return MapChecked(std::move(fd), expected_bytes, huge_pages);
}

Result<SharedMemory> SharedMemory::MapChecked(UniqueFd fd, size_t bytes, HugePages huge_pages) {
  const size_t rounded = RoundUp(bytes, PageBytes());
  void* mapped = bytes >= kHugePageBytes
                     ? MapAtHugePage(fd.get(), rounded)
                     : mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    return ErrnoError(
        error, fmt::format("cannot map {} bytes of shared memory (RLIMIT_AS, ulimit -v, is {}; "
                           "vm.max_map_count bounds the number of mappings)",
                           rounded, LimitText(RLIMIT_AS)));
  }
  if (huge_pages == HugePages::kAdvise && bytes >= kHugePageBytes) AdviseHugePages(mapped, rounded);
  return SharedMemory(std::move(fd), static_cast<std::byte*>(mapped), bytes);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void SharedMemory::Unmap() {
  if (data_ != nullptr) munmap(data_, RoundUp(size_, PageBytes()));
  data_ = nullptr;
  size_ = 0;
}

Status SharedMemory::DiscardPages() {
  const auto bytes = static_cast<off_t>(RoundUp(size_, PageBytes()));
  if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes) != 0)
    return ErrnoError(errno, fmt::format("cannot give back {} bytes of shared memory", bytes));
  return Status::Ok();
}

Status SharedMemory::DiscardPages(size_t offset, size_t bytes) {
  if (bytes == 0 || madvise(data_ + offset, bytes, MADV_REMOVE) == 0) return Status::Ok();
  return ErrnoError(errno, fmt::format("cannot give back {} bytes of shared memory", bytes));
}

}  // namespace tutti
