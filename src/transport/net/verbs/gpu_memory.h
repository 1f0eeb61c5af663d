#pragma once

// Finds out whether a device reads and writes memory of GPUs (GPUDirect). The kernel's own way is
// a DMA-BUF, a descriptor by which the GPU's driver lends the memory out. The older way is peer
// memory: a module of the GPU's driver lets memory be registered by address.
//
// Threads: any.

#include <string>

#include "transport/net/verbs/library.h"

namespace tutti {

struct GpuMemoryAccess {
  bool dmabuf = false;
  bool peer_memory = false;  // GPU memory is registered by address.
  bool any() const { return dmabuf || peer_memory; }
};

// Asks the device of `domain` whether the device takes DMA-BUFs, by a registration that cannot
// succeed. Looks for the kernel's module of peer memory by its files under `sysfs` ("/sys").
GpuMemoryAccess FindGpuMemoryAccess(const VerbsLibrary& library, ibv_pd& domain, bool allow_dmabuf,
                                    const std::string& sysfs);

}  // namespace tutti
