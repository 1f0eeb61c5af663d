#include "transport/net/verbs/gpu_memory.h"

#include <cerrno>

#include "sys/host.h"

namespace tutti {
namespace {

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
  return {allow_dmabuf && TakesDmabuf(library, domain), HasPeerMemory(sysfs)};
}

}  // namespace tutti
