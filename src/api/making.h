#pragma once

// The common parts of all ways to make a communicator: a handle that a config has filled, and the
// start of the work that makes the communicator.

#include <functional>
#include <optional>
#include <span>

#include "api/context.h"
#include "base/status.h"
#include "comm/handle.h"
#include "comm/handle_table.h"
#include "nccl.h"
#include "tutti/tutti.h"

namespace tutti::api {

// Reads the part of a config struct that this library knows into the handle. A null `config`
// changes nothing. InvalidArgument names a field whose value is never allowed.
Status ReadConfig(const ncclConfig_t* config, ncclComm& handle);
// Returns the part of the library's own config struct that the caller's header knows, checked. All
// other fields, or all fields where `config` is null, have the defaults.
Result<tuttiConfig_t> ReadTuttiConfig(const tuttiConfig_t* config);
// Refuses a time-out of operations that is negative or too long. `name` names the argument.
Status CheckTimeout(const char* name, double seconds);

// Makes a handle with settings of its own: read now, or copied from `parent`, which may be null.
Result<OwnedHandle> MakeHandle(const ncclConfig_t* config, const ncclComm* parent);

// Stores `comm` in the caller's variable. A thread may read the variable there, by an atomic load,
// to abort an initialisation that waits.
void Publish(ncclComm_t* out, ncclComm* comm);

// Frees a handle, inside of which the caller is, unless another thread already does.
void End(HandleUse use);

// Publishes the handle and starts `job`, which fills the handle. A blocking failure outside a group
// leaves no communicator behind. REQUIRES: the caller is inside of `parent`, unless `parent` is
// null. Calls `refused`, unless empty, in place of `job` where the system grants no thread.
Status StartInit(OwnedHandle handle, ncclComm* parent, ncclComm_t* out, std::function<Status()> job,
                 std::function<void(const Status&)> refused = {});

// Joins a communicator as a new rank. `device` is the rank's CUDA device, or -1 for a host; without
// a value the calling thread's current device counts. Of `own`, all but the device counts.
Status InitRank(ncclComm_t* out, int num_ranks, std::span<const ncclUniqueId> ids, int rank,
                const ncclConfig_t* config, std::optional<int> device = std::nullopt,
                const tuttiConfig_t& own = TUTTI_CONFIG_INITIALIZER);

}  // namespace tutti::api
