#include "transport/net/verbs/gpu_memory.h"

#include <unistd.h>

#include <cerrno>

namespace tutti {
namespace {

// The modules' names, the newest first.
constexpr const char* kPeerMemoryFiles[] = {"/module/nvidia_peermem/version",
                                            "/kernel/mm/memory_peers/nv_mem/version",
                                            "/kernel/mm/memory_peers/nv_mem_nc/version"};

bool TakesDmabuf(const VerbsLibrary& library, ibv_pd& domain) {
  if (!library.reg_dmabuf_mr) return false;
  constexpr size_t kAnyBytes = 4096;
  errno = 0;
  ibv_mr* const region = library.reg_dmabuf_mr(&domain, 0, kAnyBytes, 0, /*fd=*/-1, 0);
  if (region) {  // The device has not looked at the descriptor.
    library.dereg_mr(region);
    return false;
  }
  return errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS;
}

}  // namespace

GpuMemoryAccess FindGpuMemoryAccess(const VerbsLibrary& library, ibv_pd& domain, bool allow_dmabuf,
                                    const std::string& sysfs) {
  GpuMemoryAccess found;
  found.dmabuf = allow_dmabuf && TakesDmabuf(library, domain);
  for (const char* const file : kPeerMemoryFiles) {
    found.peer_memory = found.peer_memory || access((sysfs + file).c_str(), F_OK) == 0;
  }
  return found;
}

}  // namespace tutti
