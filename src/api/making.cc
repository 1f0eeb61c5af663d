// Communicators made from nothing: ids, and initialisation by rank or all at once.

#include "api/making.h"

#include <atomic>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "comm/group.h"
#include "config/settings_news.h"
#include "launch/environment.h"
#include "launch/listen.h"
#include "operations/networks.h"
#include "sys/network_interface.h"
#include "tutti/tutti.h"

namespace tutti::api {

Result<OwnedHandle> MakeHandle(const ncclConfig_t* config, const ncclComm* parent) {
  OwnedHandle handle(Handles().Make());
  if (parent != nullptr) {
    handle->settings = parent->settings;
    handle->blocking = parent->blocking;
    handle->device = parent->device;
  } else {
    TUTTI_ASSIGN(handle->settings, ReadSettings());
    if (handle->settings.comm_blocking >= 0) handle->blocking = handle->settings.comm_blocking == 1;
  }
  TUTTI_TRY(ReadConfig(config, *handle));
  TUTTI_TRY(CheckNetName(handle->settings));
  return handle;
}

void Publish(ncclComm_t* out, ncclComm* comm) {
  std::atomic_ref<ncclComm_t>(*out).store(comm, std::memory_order_release);
}

void End(HandleUse use) {
  if (use.CloseAndLeave()) Handles().Remove(use.comm());
}

Status StartInit(OwnedHandle handle, ncclComm* parent, ncclComm_t* out, std::function<Status()> job,
                 std::function<void(const Status&)> refused) {
  ncclComm* const comm = handle.release();
  HandleTable::GateOf(comm).Open();
  HandleUse use(comm);  // Another thread may free the handle as soon as it is published.
  Publish(out, comm);
  Status status = ThreadGroup().AddInit(*comm, parent, std::move(job), std::move(refused));
  if (status.ok() || status.code() == Code::kInProgress) return status;
  Publish(out, nullptr);
  End(std::move(use));
  return status;
}

namespace {

// Logs the settings of this job without effect. Each process knows its own settings. The settings
// of all processes usually agree, so that rank 0 of the first communicator speaks for all ranks.
// TakeSettingsNews drops the news where rank 0 is in another process.
void TellSettingsNews(int rank) {
  if (rank != 0) return;
  for (const std::string& sentence : TakeSettingsNews()) TUTTI_WARN("{}", sentence);
}

// Returns the job that makes the communicator of `comm`. Any thread may run it.
std::function<Status()> InitJob(ncclComm* comm, Process* process,
                                const Communicator::InitOptions& options) {
  return [comm, process, options]() -> Status {
    const log::ThreadRankMark mark(options.rank);
    TUTTI_ASSIGN(comm->comm, Communicator::Init(*process, comm->settings, options));
    TakeSettingsNews();  // Every rank of this process has begun.
    return Status::Ok();
  };
}

// Tells the root that this rank does not come, so the remaining ranks end their wait for this rank.
// `settings` is null where this rank could not read its settings.
void Decline(const Settings* settings, const Communicator::InitOptions& options,
             const Status& why) {
  if (options.num_ranks == 1) return;
  const Bootstrap::Options where = {
      .rank = options.rank, .num_ranks = options.num_ranks, .ids = options.ids};
  Bootstrap::Decline(settings != nullptr ? *settings : Settings(), where, why);
}

// Makes the handle, and fills in the options that depend on the settings.
Result<Process*> PrepareInit(const ncclConfig_t* config, std::optional<int> device,
                             const tuttiConfig_t& own, OwnedHandle& handle,
                             Communicator::InitOptions& options) {
  TUTTI_ASSIGN(handle, MakeHandle(config, nullptr));
  handle->settings.deterministic |= own.deterministic == 1;
  if (own.timeoutSeconds > 0) handle->settings.timeout_s = own.timeoutSeconds;
  if (own.initTimeoutSeconds > 0) handle->settings.init_timeout_s = own.initTimeoutSeconds;
  if (own.shownRanks != nullptr)
    options.shown_ranks.assign(own.shownRanks, own.shownRanks + options.num_ranks);
  TUTTI_ASSIGN(Process* const process, ThisProcess());
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
  return process;
}

}  // namespace

// A wrong argument leaves the id as it is: the caller may call again.
Status InitRank(ncclComm_t* out, int num_ranks, std::span<const ncclUniqueId> ids, int rank,
                const ncclConfig_t* config, std::optional<int> device, const tuttiConfig_t& own) {
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
  options.rank = rank;
  options.num_ranks = num_ranks;
  OwnedHandle handle;
  Process* process = nullptr;
  // A lack of memory, too, is told to the other ranks.
  const Status prepared = WithoutExceptions([&]() -> Status {
    TUTTI_ASSIGN(process, PrepareInit(config, device, own, handle, options));
    return Status::Ok();
  });
  if (!prepared.ok()) {
    if (prepared.code() != Code::kInvalidArgument)
      Decline(handle ? &handle->settings : nullptr, options, prepared);
    return prepared;
  }
  TellSettingsNews(rank);
  ncclComm* const comm = handle.get();
  return StartInit(std::move(handle), nullptr, out, InitJob(comm, process, options),
                   [comm, options](const Status& why) { Decline(&comm->settings, options, why); });
}

namespace {

// Returns the address of the host at which the ranks meet: of the wanted family, else IPv4 before
// IPv6, as interfaces are chosen. A name that nobody knows is no address.
SocketAddress MeetingAddress(const std::string& host, const Settings& settings) {
  // NCCL_COMM_ID has an address, and a lookup may take seconds.
  if (host.empty() || !settings.comm_id.empty()) return {};
  const auto found = launch::LookUp(host, /*port=*/0);
  if (!found.ok()) return {};
  const int family = FamilyNumber(settings.socket_family);
  for (const SocketAddress& address : *found)
    if (address.family == (family == 0 ? 4 : family)) return address;
  return family == 0 ? found->front() : SocketAddress();
}

Status GetUniqueId(ncclUniqueId* out, const std::string& meeting_host) {
  if (out == nullptr) return InvalidArgument("uniqueId is null");
  TUTTI_ASSIGN(const Settings settings, ReadSettings());
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  TUTTI_ASSIGN(const UniqueId id,
               process->StartRoot(settings, MeetingAddress(meeting_host, settings)));
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
  TUTTI_TRY(GetUniqueId(&id, ""));
  TellSettingsNews(/*rank=*/0);
  Group group;
  group.Start();
  std::vector<OwnedHandle> made;
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  TUTTI_ASSIGN(const UniqueId decoded, UniqueId::Decode(id.internal));
  for (int rank = 0; rank < num_ranks; ++rank) {
    TUTTI_ASSIGN(OwnedHandle handle, MakeHandle(nullptr, nullptr));
    // No config says otherwise, and the caller gets all ranks at once.
    handle->blocking = true;
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

}  // namespace
}  // namespace tutti::api

using namespace tutti;  // NOLINT(google-build-using-namespace): the C API below is outside of it
using api::Return;

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  return Return(__func__, [&] {
    return api::GetUniqueId(uniqueId, launch::MeetingHost(ProcessVariables()));
  });
}

ncclResult_t tuttiGetUniqueIdFor(ncclUniqueId* uniqueId, const char* meetingHost) {
  return Return(__func__, [&]() -> Status {
    if (meetingHost == nullptr) return InvalidArgument("meetingHost is null");
    return api::GetUniqueId(uniqueId, meetingHost);
  });
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
    return api::InitRank(comm, nranks, std::span(&commId, 1), rank, config, device, own);
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

TUTTI_PNCCL(GetUniqueId);
TUTTI_PNCCL(CommInitRank);
TUTTI_PNCCL(CommInitRankConfig);
TUTTI_PNCCL(CommInitRankScalable);
TUTTI_PNCCL(CommInitAll);
