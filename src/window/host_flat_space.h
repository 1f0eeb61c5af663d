#pragma once

// The flat space of ranks on hosts: one range of reserved addresses, into which memory from
// ncclMemAlloc of the ranks is mapped.

#include <memory>

#include "sys/fd_server.h"
#include "transport/shm/registry.h"
#include "window/flat_space.h"

namespace tutti {

// Makes the flat space of a rank whose team has `team_size` ranks, of which `ranks_here` are
// threads of this process. A `stride` above 0 is the user's choice. `memory` and `fd_server` belong
// to the process and outlive the space.
std::unique_ptr<FlatSpace> MakeHostFlatSpace(HostMemory& memory, FdServer& fd_server, int team_size,
                                             int ranks_here, uint64_t stride);

}  // namespace tutti
