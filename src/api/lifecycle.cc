// Communicators: made, split, shrunk, grown, asked, finalized, destroyed, aborted, revoked.

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <future>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include "api/context.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/resize.h"
#include "nccl.h"
#include "sys/thread.h"
#include "tutti/tutti.h"

namespace tutti::api {
namespace {

// More are not searched for; NCCL's own bound.
constexpr int64_t kMostChannels = 64;
constexpr int64_t kMostBlocks = 128;  // of NCCL_MAX_CTAS

struct FieldRange {
  const char* name;
  int ncclConfig_t::*field;
  int least, most;
};

// What nccl.h says of each; host ranks check the wishes that they then ignore, so that a program
// finds its mistake here and not on the machine with GPUs.
constexpr int kAny = std::numeric_limits<int>::max();
constexpr FieldRange kFieldRanges[] = {
    {"blocking", &ncclConfig_t::blocking, 0, 1},
    {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, 0, 8},
    {"minCTAs", &ncclConfig_t::minCTAs, 1, kAny},
    {"maxCTAs", &ncclConfig_t::maxCTAs, 1, kAny},
    {"splitShare", &ncclConfig_t::splitShare, 0, 1},
    {"collnetEnable", &ncclConfig_t::collnetEnable, 0, 1},
    {"CTAPolicy", &ncclConfig_t::CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO},
    {"shrinkShare", &ncclConfig_t::shrinkShare, 0, 1},
    {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, 0, kAny},
    {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, 1, kAny},
    {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, 0, 1},
    {"graphUsageMode", &ncclConfig_t::graphUsageMode, 0, 2},
    {"numRmaCtx", &ncclConfig_t::numRmaCtx, 0, kAny},
    {"maxP2pPeers", &ncclConfig_t::maxP2pPeers, 0, kAny},
    {"graphStreamOrdering", &ncclConfig_t::graphStreamOrdering, 0, 1},
};

Status CheckConfig(const ncclConfig_t& config) {
  for (const FieldRange& range : kFieldRanges) {
    const int value = config.*range.field;
    if (value == NCCL_CONFIG_UNDEF_INT || (value >= range.least && value <= range.most)) continue;
    if (range.most == kAny)
      return InvalidArgument("config.{} is {}, but must be at least {}", range.name, value,
                             range.least);
    return InvalidArgument("config.{} is {}, but must be from {} to {}", range.name, value,
                           range.least, range.most);
  }
  if (config.maxCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs < config.minCTAs)
    return InvalidArgument("config.maxCTAs is {}, but must be no less than minCTAs, {}",
                           config.maxCTAs, config.minCTAs);
  const int channels = config.nChannelsPerNetPeer;
  if (channels != NCCL_CONFIG_UNDEF_INT && !std::has_single_bit(static_cast<unsigned>(channels)))
    return InvalidArgument("config.nChannelsPerNetPeer is {}, but must be a power of two",
                           channels);
  return Status::Ok();
}

// The part of a config struct that this library reads. Callers built against an older NCCL pass a
// shorter struct: what lies past its `size` keeps its default.
Status ReadConfig(const ncclConfig_t* config, ncclComm& handle) {
  ncclConfig_t full = NCCL_CONFIG_INITIALIZER;
  if (config != nullptr) {
    if (config->magic != full.magic)
      return InvalidArgument("the config was not made with NCCL_CONFIG_INITIALIZER");
    if (config->size < offsetof(ncclConfig_t, cgaClusterSize))
      return InvalidArgument("the config says that it is {} bytes long, which is too short",
                             config->size);
    std::memcpy(&full, config, std::min(config->size, sizeof(full)));
  }
  TUTTI_TRY(CheckConfig(full));
  // The environment has the last word.
  if (full.blocking != NCCL_CONFIG_UNDEF_INT && handle.settings.comm_blocking < 0)
    handle.blocking = full.blocking == 1;
  // As above: the environment's NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS go before these.
  Settings& settings = handle.settings;
  if (full.minCTAs != NCCL_CONFIG_UNDEF_INT && settings.min_nchannels == 0)
    settings.min_nchannels = std::min<int64_t>(full.minCTAs, kMostChannels);
  if (full.maxCTAs != NCCL_CONFIG_UNDEF_INT && settings.max_nchannels == 0)
    settings.max_nchannels = std::min<int64_t>(full.maxCTAs, kMostChannels);
  if (full.maxCTAs != NCCL_CONFIG_UNDEF_INT && settings.max_ctas == 0)
    settings.max_ctas = std::min<int64_t>(full.maxCTAs, kMostBlocks);
  if (full.commName != nullptr) handle.name = full.commName;
  if (full.netName != nullptr) handle.settings.net = full.netName;
  return Status::Ok();
}

// The part of the library's own config struct that the caller's header knows, checked.
Result<tuttiConfig_t> ReadTuttiConfig(const tuttiConfig_t* config) {
  tuttiConfig_t full = TUTTI_CONFIG_INITIALIZER;
  if (config == nullptr) return full;
  if (config->magic != full.magic)
    return InvalidArgument("the config was not made with TUTTI_CONFIG_INITIALIZER");
  if (config->size < offsetof(tuttiConfig_t, device))
    return InvalidArgument("the config says that it is {} bytes long, which is too short",
                           config->size);
  std::memcpy(&full, config, std::min(config->size, sizeof(full)));
  const int deterministic = full.deterministic;
  if (deterministic != NCCL_CONFIG_UNDEF_INT && deterministic != 0 && deterministic != 1)
    return InvalidArgument("config.deterministic is {}, but must be from 0 to 1", deterministic);
  return full;
}

// A handle with settings of its own: read now, or taken over from `parent`.
Result<OwnedHandle> MakeHandle(const ncclConfig_t* config, const ncclComm* parent) {
  OwnedHandle handle(Handles().Make());
  if (parent != nullptr) {
    handle->settings = parent->settings;
    handle->blocking = parent->blocking;
    handle->device = parent->device;
  } else {
    TUTTI_ASSIGN(handle->settings, ReadProcessSettings());
    if (handle->settings.comm_blocking >= 0) handle->blocking = handle->settings.comm_blocking == 1;
  }
  TUTTI_TRY(ReadConfig(config, *handle));
  return handle;
}

// Another thread may look for the handle, to abort an initialisation that waits: it reads the
// variable with an atomic load.
void Publish(ncclComm_t* out, ncclComm* comm) {
  std::atomic_ref<ncclComm_t>(*out).store(comm, std::memory_order_release);
}

// Frees a handle that the caller is inside of, if no other thread does it already.
void End(HandleUse use) {
  if (use.CloseAndLeave()) Handles().Remove(use.comm());
}

// Starts `job`, which fills the handle. A blocking failure outside a group leaves no communicator
// behind. REQUIRES: the caller is inside of `parent`, unless that is null.
Status StartInit(OwnedHandle handle, ncclComm* parent, ncclComm_t* out,
                 std::function<Status()> job) {
  ncclComm* const comm = handle.release();
  HandleTable::GateOf(comm).Open();
  HandleUse use(comm);  // another thread may free the handle as soon as it is published
  Publish(out, comm);
  Status status = ThreadGroup().AddInit(*comm, parent, std::move(job));
  if (status.ok() || status.code() == Code::kInProgress) return status;
  Publish(out, nullptr);
  End(std::move(use));
  return status;
}

// What makes the communicator of `comm`, on whatever thread.
std::function<Status()> InitJob(ncclComm* comm, Process* process,
                                const Communicator::InitOptions& options) {
  return [comm, process, options]() -> Status {
    const log::ThreadRankMark mark(options.rank);
    TUTTI_ASSIGN(comm->comm, Communicator::Init(*process, comm->settings, options));
    return Status::Ok();
  };
}

Status InitRank(ncclComm_t* out, int num_ranks, std::span<const ncclUniqueId> ids, int rank,
                const ncclConfig_t* config, std::optional<int> device = std::nullopt,
                bool deterministic = false) {
  if (out == nullptr) return InvalidArgument("comm is null");
  Publish(out, nullptr);
  if (device && *device < -1) return InvalidArgument("device is {}, which is no device", *device);
  if (num_ranks < 1) return InvalidArgument("nranks is {}, but must be at least 1", num_ranks);
  if (rank < 0 || rank >= num_ranks)
    return InvalidArgument("rank is {}, but nranks is {}: ranks go from 0 to {}", rank, num_ranks,
                           num_ranks - 1);
  Communicator::InitOptions options;
  for (const ncclUniqueId& id : ids) {
    TUTTI_ASSIGN(UniqueId decoded, UniqueId::Decode(id.internal));
    options.ids.push_back(decoded);
  }
  TUTTI_ASSIGN(OwnedHandle handle, MakeHandle(config, nullptr));
  handle->settings.deterministic |= deterministic;
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  options.rank = rank;
  options.num_ranks = num_ranks;
  options.name = handle->name;
  options.abort_flag = &handle->abort_flag;
  if (device) {
    if (*device >= 0 && handle->settings.backend == "host")
      return InvalidUsage("CUDA device {} is asked for, but TUTTI_BACKEND is host", *device);
    options.cuda_device = *device;
  } else {
    TUTTI_ASSIGN(options.cuda_device, Process::CurrentDevice(handle->settings));
  }
  if (options.cuda_device >= 0) handle->device = options.cuda_device;
  ncclComm* const comm = handle.get();
  return StartInit(std::move(handle), nullptr, out, InitJob(comm, process, options));
}

Status GetUniqueId(ncclUniqueId* out) {
  if (out == nullptr) return InvalidArgument("uniqueId is null");
  TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  TUTTI_ASSIGN(const UniqueId id, process->StartRoot(settings));
  id.Encode(out->internal);
  return Status::Ok();
}

Status InitAll(ncclComm_t* comms, int num_ranks, const int* devices) {
  if (comms == nullptr) return InvalidArgument("comm is null");
  if (num_ranks < 1) return InvalidArgument("ndev is {}, but must be at least 1", num_ranks);
  std::set<int> seen;
  for (int i = 0; devices != nullptr && i < num_ranks; ++i) {
    if (devices[i] < 0)
      return InvalidArgument("devlist[{}] is {}, which is no device", i, devices[i]);
    if (!seen.insert(devices[i]).second)
      return InvalidUsage("device {} stands in devlist twice: each rank needs a device of its own",
                          devices[i]);
  }
  ncclUniqueId id;
  TUTTI_TRY(GetUniqueId(&id));
  Group group;
  group.Start();
  std::vector<OwnedHandle> made;
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  TUTTI_ASSIGN(const UniqueId decoded, UniqueId::Decode(id.internal));
  for (int rank = 0; rank < num_ranks; ++rank) {
    TUTTI_ASSIGN(OwnedHandle handle, MakeHandle(nullptr, nullptr));
    handle->blocking =
        true;  // there is no config to say otherwise, and the caller gets all ranks at once
    handle->device = devices != nullptr ? devices[rank] : rank;
    ncclComm* const comm = handle.get();
    TUTTI_ASSIGN(const int current, Process::CurrentDevice(handle->settings));
    const Communicator::InitOptions options = {.ids = {decoded},
                                               .rank = rank,
                                               .num_ranks = num_ranks,
                                               .name = "",
                                               .cuda_device = current < 0 ? -1 : handle->device,
                                               .abort_flag = &comm->abort_flag};
    HandleTable::GateOf(comm).Open();
    TUTTI_TRY(group.AddInit(*comm, nullptr, InitJob(comm, process, options)));
    made.push_back(std::move(handle));
  }
  Status status = group.End();
  for (int rank = 0; rank < num_ranks; ++rank)
    Publish(&comms[rank], status.ok() ? made[static_cast<size_t>(rank)].release() : nullptr);
  return status;
}

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

// For what makes a communicator from it, which a revoked one allows.
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
  std::lock_guard lock(comm->mutex);
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
    std::lock_guard lock(parent->mutex);
    if (parent->grow_id != request.id->id)
      return InvalidUsage("the id was not made by ncclCommGetUniqueId of this communicator");
    parent->grow_id = 0;
  }
  return Resize(parent, out, config, [parent, request](ncclComm& child) {
    return GrowCommunicator(*parent->comm, request, child.name, child.abort_flag);
  });
}

// Waits for the operations issued so far; the handle stays.
Status Finalize(ncclComm_t comm) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  if (!comm->comm) return CheckUsable(use);
  if (comm->finalized.exchange(true))
    return InvalidUsage("the communicator has been finalized already");
  if (comm->blocking) return comm->comm->operations().WaitForAll();
  const auto hold = std::make_shared<ncclComm::WorkHold>(*comm, ncclComm::Shown::kInProgress);
  comm->worker().Enqueue([comm, hold] {
    if (const Status status = comm->comm->operations().WaitForAll(); !status.ok())
      comm->Fail(status);
    *hold = {};
  });
  return Status(Code::kInProgress, "the communicator is being finalized");
}

Status Destroy(ncclComm_t comm) {
  if (comm == nullptr) return Status::Ok();
  HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  if (comm->comm) TUTTI_TRY(comm->comm->operations().WaitForAll());
  End(std::move(use));
  return Status::Ok();
}

// Work that has begun notices the abort within some 20 ms; a loaded machine needs longer.
constexpr auto kAbortPatience = std::chrono::seconds(2);

Status Abort(ncclComm_t comm) {
  if (comm == nullptr) return Status::Ok();
  HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  // Jobs end by an abort, too: the others may still have to take what this rank has sent.
  if (comm->comm) comm->comm->operations().NoteAbort();
  comm->RaiseAbort();
  if (comm->comm)
    comm->comm->Stop(InvalidUsage("the communicator was aborted on this rank"), false);
  if (!use.CloseAndLeave()) return Status::Ok();  // another thread frees it
  // What has begun ends now. What stands in a stream behind something that does not move holds the
  // communicator's memory until the stream gets to it, but not the caller.
  const auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  Result<std::thread> ender = StartThread("tutti-abort", [comm, ended] {
    Handles().Remove(comm);
    ended->set_value();
  });
  if (!ender.ok()) {
    Handles().Remove(comm);
    return Status::Ok();
  }
  if (end.wait_for(kAbortPatience) == std::future_status::ready)
    ender->join();
  else
    ender->detach();
  return Status::Ok();
}

Status Revoke(ncclComm_t comm, int flags) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (flags != NCCL_REVOKE_DEFAULT)
    return InvalidArgument("revokeFlags is {}, but must be NCCL_REVOKE_DEFAULT", flags);
  comm->revoked = true;
  comm->comm->Stop(InvalidUsage("the communicator was revoked on this rank"), false);
  return Status::Ok();
}

Status AsyncError(ncclComm_t comm, ncclResult_t* out) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  if (out == nullptr) return InvalidArgument("asyncError is null");
  *out = ncclSuccess;
  // Read first: work notes its failure before it is no longer pending.
  const bool in_progress = comm->in_progress();
  if (const Status error = comm->Error(); !error.ok()) {
    *out = static_cast<ncclResult_t>(error.code());
  } else if (in_progress) {
    *out = ncclInProgress;
  } else if (comm->comm && comm->comm->watch().stopped() && !comm->revoked) {
    *out = static_cast<ncclResult_t>(comm->comm->watch().StopReason().code());
  }
  return Status::Ok();
}

template <class F>
Status Query(ncclComm_t comm, int* out, F value) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (out == nullptr) return InvalidArgument("the place for the answer is null");
  *out = value(*comm->comm);
  return Status::Ok();
}

Status CopyText(const std::string& text, char* buffer, size_t capacity, size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (buffer == nullptr || capacity == 0) return Status::Ok();
  const size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
  return Status::Ok();
}

Status DescribeComm(ncclComm_t comm, char* buffer, size_t capacity, size_t* needed) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  return CopyText(comm->comm->DescribeAsJson(), buffer, capacity, needed);
}

Status GetLostRanks(ncclComm_t comm, int* ranks, int capacity, int* count) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (count == nullptr) return InvalidArgument("count is null");
  if (capacity < 0 || (ranks == nullptr && capacity > 0))
    return InvalidArgument("there is no place for {} ranks at {}", capacity,
                           static_cast<const void*>(ranks));
  const std::vector<int> lost = comm->comm->watch().LostRanks();
  *count = static_cast<int>(lost.size());
  std::copy_n(lost.begin(), std::min(*count, capacity), ranks);
  return Status::Ok();
}

// What tuttiPlanDescribe knows: a plan of the other operations needs more than a count.
constexpr Collective kPlannedCollectives[] = {Collective::kAllReduce,     Collective::kReduce,
                                              Collective::kBroadcast,     Collective::kAllGather,
                                              Collective::kReduceScatter, Collective::kAlltoAll,
                                              Collective::kGather,        Collective::kScatter};
// A plan is found by walking the algorithm chunk by chunk, some 10^9 chunks here.
constexpr size_t kMostPlannedBytes = size_t{1} << 44;

ReduceKind KindOf(ncclRedOp_t op) {
  return op == ncclProd  ? ReduceKind::kProd
         : op == ncclMax ? ReduceKind::kMax
         : op == ncclMin ? ReduceKind::kMin
                         : ReduceKind::kSum;
}

Status DescribePlan(ncclComm_t comm, const char* collective, size_t count, ncclDataType_t type,
                    ncclRedOp_t op, char* buffer, size_t capacity, size_t* needed) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (collective == nullptr) return InvalidArgument("the collective's name is null");
  TUTTI_TRY(CheckType(type));
  if (count > kMostPlannedBytes / SizeOf(static_cast<DataType>(type)))
    return InvalidArgument(
        "a plan for {} elements of {} would be too long to lay out: {} bytes is "
        "the most",
        count, Name(static_cast<DataType>(type)), kMostPlannedBytes);
  for (const Collective one : kPlannedCollectives) {
    if (Name(one) != std::string_view(collective)) continue;
    Task task = {.collective = one, .count = count};
    task.type = static_cast<DataType>(type);
    task.op.kind = KindOf(op);
    return CopyText(comm->comm->operations().Describe(task), buffer, capacity, needed);
  }
  return InvalidArgument("\"{}\" is no collective; they are written as in AllReduce", collective);
}

}  // namespace
}  // namespace tutti::api

using namespace tutti;  // NOLINT(google-build-using-namespace): the C API below is outside of it
using api::Return;

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  return Return(__func__, [&] { return api::GetUniqueId(uniqueId); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return Return(__func__,
                [&] { return api::InitRank(comm, nranks, std::span(&commId, 1), rank, nullptr); });
}

ncclResult_t tuttiCommInitRankOn(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                 int device) {
  return Return(__func__, [&] {
    return api::InitRank(comm, nranks, std::span(&commId, 1), rank, nullptr, device);
  });
}

ncclResult_t tuttiCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config, const tuttiConfig_t* tuttiConfig) {
  return Return(__func__, [&]() -> Status {
    TUTTI_ASSIGN(const tuttiConfig_t own, api::ReadTuttiConfig(tuttiConfig));
    std::optional<int> device;
    if (own.device != NCCL_CONFIG_UNDEF_INT) device = own.device;
    return api::InitRank(comm, nranks, std::span(&commId, 1), rank, config, device,
                         own.deterministic == 1);
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config) {
  return Return(__func__,
                [&] { return api::InitRank(comm, nranks, std::span(&commId, 1), rank, config); });
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId* commIds, ncclConfig_t* config) {
  if (nId < 1 || nId > nranks || commIds == nullptr)
    return Return(__func__,
                  InvalidArgument("there must be at least one id and at most one per rank"));
  return Return(__func__, [&] {
    return api::InitRank(newcomm, nranks, std::span(commIds, static_cast<size_t>(nId)), myrank,
                         config);
  });
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  return Return(__func__, [&] { return api::InitAll(comm, ndev, devlist); });
}

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

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return Return(__func__, [&] { return api::Finalize(comm); });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return Return(__func__, [&] { return api::Destroy(comm); });
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return Return(__func__, [&] { return api::Abort(comm); });
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  return Return(__func__, [&] { return api::Revoke(comm, revokeFlags); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  return Return(__func__, [&] { return api::AsyncError(comm, asyncError); });
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return Return(__func__, [&] {
    return api::Query(comm, count, [](Communicator& c) { return c.num_ranks(); });
  });
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return Return(__func__,
                [&] { return api::Query(comm, rank, [](Communicator& c) { return c.rank(); }); });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return Return(__func__, [&] {
    return api::Query(comm, device, [comm](Communicator& c) {
      return comm->device >= 0 ? comm->device : c.LocalRank();
    });
  });
}

ncclResult_t tuttiCommDescribe(ncclComm_t comm, char* buffer, size_t capacity, size_t* needed) {
  return Return(__func__, [&] { return api::DescribeComm(comm, buffer, capacity, needed); });
}

ncclResult_t tuttiCommGetLostRanks(ncclComm_t comm, int* ranks, int capacity, int* count) {
  return Return(__func__, [&] { return api::GetLostRanks(comm, ranks, capacity, count); });
}

ncclResult_t tuttiPlanDescribe(ncclComm_t comm, const char* collective, size_t count,
                               ncclDataType_t datatype, ncclRedOp_t op, char* buffer,
                               size_t capacity, size_t* needed) {
  return Return(__func__, [&] {
    return api::DescribePlan(comm, collective, count, datatype, op, buffer, capacity, needed);
  });
}

TUTTI_PNCCL(GetUniqueId);
TUTTI_PNCCL(CommInitRank);
TUTTI_PNCCL(CommInitRankConfig);
TUTTI_PNCCL(CommInitRankScalable);
TUTTI_PNCCL(CommInitAll);
TUTTI_PNCCL(CommSplit);
TUTTI_PNCCL(CommShrink);
TUTTI_PNCCL(CommGetUniqueId);
TUTTI_PNCCL(CommGrow);
TUTTI_PNCCL(CommFinalize);
TUTTI_PNCCL(CommDestroy);
TUTTI_PNCCL(CommAbort);
TUTTI_PNCCL(CommRevoke);
TUTTI_PNCCL(CommGetAsyncError);
TUTTI_PNCCL(CommCount);
TUTTI_PNCCL(CommUserRank);
TUTTI_PNCCL(CommCuDevice);
