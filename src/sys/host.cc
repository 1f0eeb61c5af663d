#include "sys/host.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/hash.h"
#include "base/log.h"
#include "base/unique_fd.h"

namespace tutti {
namespace {

// The final mixing spreads short texts over all 64 bits.
uint64_t StableHash(std::string_view text) {
  uint64_t hash = Fnv1a::Of(text);
  hash ^= hash >> 32;
  hash *= 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

}  // namespace

std::string BootId() {
  const UniqueFd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t length = fd.valid() ? ::read(fd.get(), text.data(), text.size()) : 0;
  const std::string_view id(text.data(), length > 0 ? static_cast<size_t>(length) : 0);
  return std::string(id.substr(0, id.find('\n')));
}

uint64_t HostHash(std::string_view override_text) {
  if (!override_text.empty()) return StableHash(override_text);
  struct stat space = {};
  const uint64_t inode = ::stat("/proc/self/ns/net", &space) == 0 ? space.st_ino : 0;
  // Without /proc only the name is left; the handshake of shared memory corrects a wrong guess.
  const std::string boot = BootId();
  return StableHash(fmt::format("{}/{}", boot.empty() ? HostName() : boot, inode));
}

// The older module nv_peer_mem shows itself as a client of the kernel's peer memory.
bool HasPeerMemory(const std::string& sysfs) {
  const auto has = [&](const char* file) { return access((sysfs + file).c_str(), F_OK) == 0; };
  return has("/module/nvidia_peermem/version") || has("/kernel/mm/memory_peers/nv_mem/version") ||
         has("/kernel/mm/memory_peers/nv_mem_nc/version");
}

int UsableCpuCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? static_cast<int>(online) : 1;
}

uint64_t HostMemoryBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))
                   : 0;
}

Result<uint64_t> RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoError(errno, "getrlimit failed");
  if (limit.rlim_cur != limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoError(errno, "setrlimit failed");
  }
  return uint64_t{limit.rlim_cur};
}

bool GainDescriptors() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return false;
  return RaiseDescriptorLimit().ok();
}

Status NoDescriptorsError(std::string_view what) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 0;
  return SystemError(
      "{}: all {} file descriptors of this process are in use (EMFILE): raise their limit "
      "(ulimit -n)",
      what, limit.rlim_cur);
}

}  // namespace tutti
