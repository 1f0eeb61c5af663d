#pragma once

// Whether shared memory (shared_memory.h) is possible at all.

#include "base/status.h"

namespace tutti {

// Returns success where this process may make files in memory (memfd_create), which a container may
// forbid. Success also where only a limit is in the way, because a limit may be raised.
Status CheckMemoryFilesAllowed();

}  // namespace tutti
