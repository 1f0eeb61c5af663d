#pragma once

// The ways of making a communicator share this: a handle that a config has filled, and the start of
// the work that makes its communicator.

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

// Reads the part of a config struct that this library knows into the handle. A null `config` wishes
// nothing. InvalidArgument names the field that has a value that is never allowed.
Status ReadConfig(const ncclConfig_t* config, ncclComm& handle);
// Returns the part of the library's own config struct that the caller's header knows, checked; the
// rest, or all of it where `config` is null, has the defaults.
Result<tuttiConfig_t> ReadTuttiConfig(const tuttiConfig_t* config);

// Makes a handle with settings of its own: read now, or taken over from `parent`, which may be
// null.
Result<OwnedHandle> MakeHandle(const ncclConfig_t* config, const ncclComm* parent);

// Stores `comm` in the caller's variable. Another thread may look for it there, with an atomic
// load, to abort an initialisation that waits.
void Publish(ncclComm_t* out, ncclComm* comm);

// Frees a handle that the caller is inside of, if no other thread does so already.
void End(HandleUse use);

// Publishes the handle and starts `job`, which fills it. A blocking failure outside a group leaves
// no communicator behind. REQUIRES: the caller is inside of `parent`, unless that is null.
Status StartInit(OwnedHandle handle, ncclComm* parent, ncclComm_t* out,
                 std::function<Status()> job);

// Joins a communicator as a new rank. `device` says which CUDA device the rank is, -1: a host;
// where it is not given the calling thread's current one is. Of `own`, all but the device counts.
Status InitRank(ncclComm_t* out, int num_ranks, std::span<const ncclUniqueId> ids, int rank,
                const ncclConfig_t* config, std::optional<int> device = std::nullopt,
                const tuttiConfig_t& own = TUTTI_CONFIG_INITIALIZER);

}  // namespace tutti::api
