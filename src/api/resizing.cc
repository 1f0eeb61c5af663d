// Communicators made from communicators: split, shrunk, grown.

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "api/making.h"
#include "base/log.h"
#include "comm/resize.h"
#include "nccl.h"

namespace tutti::api {
namespace {

// Makes a communicator out of `parent` by `make`, which may return a null communicator (no color).
Status Resize(ncclComm_t parent, ncclComm_t* out, const ncclConfig_t* config,
              const std::function<Result<std::unique_ptr<Communicator>>(ncclComm& child)>& make) {
  if (out == nullptr) return InvalidArgument("newcomm is null");
  Publish(out, nullptr);
  TUTTI_ASSIGN(OwnedHandle handle, MakeHandle(config, parent));
  ncclComm* const child = handle.get();
  return StartInit(std::move(handle), parent, out, [child, parent, out, make]() -> Status {
    const log::ThreadRankMark mark(parent->comm->rank());
    TUTTI_ASSIGN(child->comm, make(*child));
    if (!child->comm) {
      Publish(out, nullptr);
      parent->AddNameless(OwnedHandle(child));
    }
    return Status::Ok();
  });
}

// Checks the parent of a call that makes a communicator. A revoked parent is allowed.
Status CheckMakes(const HandleUse& parent) {
  TUTTI_TRY(CheckReady(parent));
  if (parent->finalized) return InvalidUsage("the communicator has been finalized");
  return Status::Ok();
}

Status Split(ncclComm_t parent, int color, int key, ncclComm_t* out, const ncclConfig_t* config) {
  const HandleUse use(parent);
  TUTTI_TRY(CheckMakes(use));
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
    return InvalidArgument("color is {}, but must be at least 0 or NCCL_SPLIT_NOCOLOR", color);
  return Resize(parent, out, config, [parent, color, key](ncclComm& child) {
    return SplitCommunicator(*parent->comm, color, key, child.name, child.abort_flag);
  });
}

Status Shrink(ncclComm_t parent, const int* excluded, int num_excluded, ncclComm_t* out,
              const ncclConfig_t* config, int flags) {
  const HandleUse use(parent);
  TUTTI_TRY(CheckMakes(use));
  if (num_excluded < 1 || excluded == nullptr)
    return InvalidArgument("a shrink needs at least one rank to exclude");
  if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)
    return InvalidArgument(
        "shrinkFlags is {}, but must be NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT", flags);
  const int num_ranks = parent->comm->num_ranks();
  std::set<int> gone;
  for (int i = 0; i < num_excluded; ++i) {
    if (excluded[i] < 0 || excluded[i] >= num_ranks || !gone.insert(excluded[i]).second)
      return InvalidArgument("excludeRanksList[{}] is {}: each must be a rank of 0 to {}, once", i,
                             excluded[i], num_ranks - 1);
  }
  if (gone.count(parent->comm->rank()) != 0)
    return InvalidArgument("rank {} excludes itself: only the ranks that stay call ncclCommShrink",
                           parent->comm->rank());
  if (flags == NCCL_SHRINK_ABORT)
    parent->comm->Stop(InvalidUsage("the communicator was given up by ncclCommShrink"), false);
  return Resize(parent, out, config,
                [parent, abort = flags == NCCL_SHRINK_ABORT,
                 gone = std::vector<int>(gone.begin(), gone.end())](ncclComm& child) {
                  return ShrinkCommunicator(*parent->comm, gone, /*and_lost=*/abort, child.name,
                                            child.abort_flag);
                });
}

Status MakeGrowId(ncclComm_t comm, ncclUniqueId* out) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  if (out == nullptr) return InvalidArgument("uniqueId is null");
  const MutexLock lock(comm->mutex);
  if (comm->grow_id != 0)
    return InvalidUsage("this communicator has made an id that no ncclCommGrow has used yet");
  TUTTI_ASSIGN(const UniqueId id, comm->comm->process().StartRoot(comm->settings));
  comm->grow_id = id.id;
  id.Encode(out->internal);
  return Status::Ok();
}

Status Grow(ncclComm_t parent, int num_ranks, const ncclUniqueId* id, int rank, ncclComm_t* out,
            const ncclConfig_t* config) {
  GrowRequest request;
  request.num_ranks = num_ranks;
  if (id != nullptr) {
    TUTTI_ASSIGN(request.id.emplace(), UniqueId::Decode(id->internal));
  }
  if (parent == nullptr) {
    if (!request.id) return InvalidArgument("a new rank needs the id that the grow root made");
    if (rank < 1 || rank >= num_ranks)
      return InvalidArgument(
          "the new rank's number is {}, but must be between the old number of "
          "ranks and {}",
          rank, num_ranks - 1);
    return InitRank(out, num_ranks, std::span(id, 1), rank, config);
  }
  const HandleUse use(parent);
  TUTTI_TRY(CheckUsable(use));
  if (rank != -1) return InvalidArgument("an existing rank passes rank = -1, not {}", rank);
  if (num_ranks <= parent->comm->num_ranks())
    return InvalidArgument("nRanks is {}, but the communicator has {} ranks already", num_ranks,
                           parent->comm->num_ranks());
  if (request.id) {
    const MutexLock lock(parent->mutex);
    if (parent->grow_id != request.id->id)
      return InvalidUsage("the id was not made by ncclCommGetUniqueId of this communicator");
    parent->grow_id = 0;
  }
  return Resize(parent, out, config, [parent, request](ncclComm& child) {
    return GrowCommunicator(*parent->comm, request, child.name, child.abort_flag);
  });
}

}  // namespace
}  // namespace tutti::api

using namespace tutti;  // NOLINT(google-build-using-namespace): the C API below is outside of it
using api::Return;

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config) {
  return Return(__func__, [&] { return api::Split(comm, color, key, newcomm, config); });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags) {
  return Return(__func__, [&] {
    return api::Shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
  });
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId) {
  return Return(__func__, [&] { return api::MakeGrowId(comm, uniqueId); });
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                          ncclComm_t* newcomm, ncclConfig_t* config) {
  return Return(__func__, [&] { return api::Grow(comm, nRanks, uniqueId, rank, newcomm, config); });
}

TUTTI_PNCCL(CommSplit);
TUTTI_PNCCL(CommShrink);
TUTTI_PNCCL(CommGetUniqueId);
TUTTI_PNCCL(CommGrow);
