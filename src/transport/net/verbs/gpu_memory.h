#pragma once

// GPUDirect: which memory of GPUs a device reads and writes. A DMA-BUF is a descriptor by which the
// GPU's driver lends the memory out, and the kernel's own way. Peer memory is the older one: a
// module of the GPU's driver lets its memory be registered by address.
//
// Threads: any.

#include <string>

#include "transport/net/verbs/library.h"

namespace tutti {

struct GpuMemoryAccess {
  bool dmabuf = false;
  bool peer_memory = false;  // It is registered by address.
  bool any() const { return dmabuf || peer_memory; }
};

// Asks the device of `domain` whether it takes DMA-BUFs, by a registration that cannot succeed, and
// the kernel for a module of peer memory, by its files under `sysfs` ("/sys").
GpuMemoryAccess FindGpuMemoryAccess(const VerbsLibrary& library, ibv_pd& domain, bool allow_dmabuf,
                                    const std::string& sysfs);

}  // namespace tutti
