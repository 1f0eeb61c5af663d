// The coordinator's part in tensors on GPUs: the communicators that join the GPUs of a process set,
// and their end.

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "coordinator/coordinator.h"
#include "coordinator/library_operations.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

constexpr const char* kGpuVariables[] = {"HOROVOD_GPU_ALLREDUCE", "HOROVOD_GPU_ALLGATHER",
                                         "HOROVOD_GPU_BROADCAST", "HOROVOD_GPU_ALLTOALL",
                                         "HOROVOD_GPU_REDUCESCATTER"};
constexpr char kCannotJoin[] = "{} cannot join the GPUs of the ranks, so that Tutti does";
constexpr std::string_view kNccl = "nccl";
constexpr std::string_view kMpi = "mpi";
constexpr std::string_view kTutti = "tutti";

using Missing = std::map<std::string_view, std::string>;  // why a library is missing, by name

std::string WhyMissing(const Missing& missing, const std::string& name) {
  const auto found = missing.find(name);
  if (found != missing.end()) return found->second;
  return fmt::format("there is no \"{}\" for tensors on GPUs: tutti, nccl and mpi there are", name);
}

// Returns whether a list names `name` before tutti.
bool AsksFor(const std::string& list, std::string_view name) {
  const auto names = NamesIn(list);
  const auto tutti = std::find(names.begin(), names.end(), kTutti);
  return std::find(names.begin(), tutti, name) != tutti;
}

}  // namespace

// Returns "" where all ranks found the same, else the reason for going without. A rank that found
// nothing says "- " and the reason.
Result<std::string> Coordinator::WhyNotEverywhere(const std::string& mine) const {
  TUTTI_ASSIGN(const std::vector<std::string> all, TextGatherer()(mine));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].starts_with("- ")) return fmt::format("rank {}: {}", rank, all[rank].substr(2));
    if (all[rank] != all[0]) {
      return fmt::format("rank 0 has {} and rank {} has {}", all[0], rank, all[rank]);
    }
  }
  return std::string();
}

// Returns the reason for a missing library, or "" where all ranks have the library.
Result<std::string> Coordinator::FindGpuLibrary() {
  auto found = FindNcclForGpus(options_.settings.nccl_library, NcclCandidates());
  TUTTI_ASSIGN(std::string missing,
               WhyNotEverywhere(found.ok() ? (*found)->Name()
                                           : fmt::format("- {}", found.status().message())));
  if (!missing.empty()) return missing;
  gpu_library_ = std::move(*found);
  TUTTI_INFO(kLogInit, "tensors on GPUs go through {} ({})", gpu_library_->Name(),
             gpu_library_->path());
  return missing;
}

// Returns the reason for a missing MPI that takes the memory of GPUs, or "" where all ranks have
// such an MPI.
Result<std::string> Coordinator::FindGpuPlugin() {
  const std::string name(kMpi);
  auto found = options_.find_plugin(name, options_.rank, options_.num_ranks);
  std::string mine = found.ok() ? fmt::format("{}", (*found)->name())
                                : fmt::format("- {}", found.status().message());
  if (found.ok() && !(*found)->TakesGpuMemory()) {
    mine = fmt::format("- {} says that it does not take the memory of GPUs (CUDA-aware MPI does)",
                       (*found)->name());
  }
  TUTTI_ASSIGN(std::string missing, WhyNotEverywhere(mine));
  if (missing.empty()) gpu_plugin_ = std::move(*found);
  return missing;
}

// Looks for a library only where a list names the library before tutti; all ranks then look.
Status Coordinator::ChooseGpuOperations() {
  const auto& lists = common_.gpu_operations;
  Missing missing;
  const auto asked = [&](std::string_view name) {
    return std::any_of(lists.begin(), lists.end(),
                       [&](const std::string& list) { return AsksFor(list, name); });
  };
  if (asked(kNccl)) {
    TUTTI_ASSIGN(missing[kNccl], FindGpuLibrary());
  }
  if (asked(kMpi)) {
    TUTTI_ASSIGN(missing[kMpi], FindGpuPlugin());
  }
  std::set<std::string> warned;
  for (size_t kind = 0; kind < kNumGpuKinds; ++kind) {
    bool by_library = false;
    bool by_plugin = false;
    // The first name that can be had decides; warnings about the names before come once a list.
    const bool own = lists[kind] != options_.settings.gpu_operations;
    const char* const variable = own ? kGpuVariables[kind] : "HOROVOD_GPU_OPERATIONS";
    for (const std::string& name : NamesIn(lists[kind])) {
      if (name == kTutti) break;
      const Status plain = MayCarryPlain(common_.encrypt, name, lists[kind]);
      by_library = name == kNccl && gpu_library_ && plain.ok();
      by_plugin = name == kMpi && gpu_plugin_ && plain.ok();
      const bool fresh = warned.insert(name + lists[kind]).second;
      if (by_library || by_plugin) {
        if (common_.encrypt && fresh) WarnOfPlain(variable, name);
        break;
      }
      if (options_.rank == 0 && fresh)
        TUTTI_WARN(
            "{} asks for {}, which cannot be had: {}. What comes after it is used, or Tutti's own.",
            variable, name, plain.ok() ? WhyMissing(missing, name) : plain.message());
    }
    gpu_library_takes_[kind] = by_library;
    gpu_plugin_takes_[kind] = by_plugin;
  }
  return Status::Ok();
}

// The flag tells a thread that is just making a communicator of GPUs to break it as well.
void Coordinator::Communicators::BreakOff() {
  control.Break();
  data.Break();
  local.Break();
  cross.Break();
  {
    const MutexLock lock(gpu_mutex);
    broken = true;
    gpu.Break();
    gpu_local.Break();
    gpu_cross.Break();
  }
  BreakGpuLibrary();
}

void Coordinator::Communicators::BreakGpuLibrary() {
  std::vector<std::shared_ptr<GpuCommunicator>> all;
  {
    const MutexLock lock(gpu_mutex);
    library_broken = true;
    all = gpu_library;
  }
  for (const auto& communicator : all) communicator->Break();
}

// A rank without tensors on GPUs stands in with the GPU of its local rank.
Result<std::shared_ptr<Gpu>> Coordinator::OpenGpu(int device) const {
  const HierarchyShape& place = options_.place;
  if (device < 0) device = place.local_size > 0 ? place.local_rank : options_.rank;
  return options_.open_gpu(device);
}

// Makes communicators of the ranks' GPUs, where the GPUs can reach one another in some way.
Result<GpuPerformer::Joined> Coordinator::JoinGpus(int set, const std::shared_ptr<Gpu>& gpu,
                                                   const std::vector<int>& ranks,
                                                   Communicators& communicators) const {
  const OperationsGroup group = GroupOf(ranks, communicators.data.get());
  GpuPerformer::Joined joined;
  OperationsList& list = joined.operations;
  if (gpu_library_ && gpu_library_takes_.any()) {
    TUTTI_TRY(JoinByLibrary(set, gpu, group, communicators, list));
  }
  if (gpu_plugin_ && gpu_plugin_takes_.any()) TUTTI_TRY(JoinByPlugin(gpu, group, list));
  if (list.empty() || !(gpu_library_takes_ | gpu_plugin_takes_).all()) {
    TUTTI_TRY(JoinByTutti(*gpu, group, communicators, list));
  }
  Request adasum;
  adasum.kind = OpKind::kAllreduce;
  adasum.op = ReduceOp::kAdasum;
  if (std::none_of(list.begin(), list.end(), [&](const auto& o) { return o->Takes(adasum, 0); })) {
    return joined;
  }
  // The call asks for no work, and the library refuses the call where it has no code for the GPU.
  const Status combines = FromNccl(tuttiAdasumSumDots(nullptr, 1, 0, nullptr, gpu->rank_device(),
                                                      static_cast<cudaStream_t>(gpu->stream())));
  TUTTI_ASSIGN(joined.combines, AllJoined(group, combines, ""));
  return joined;
}

// Returns whether all ranks of the group went well. Otherwise rank 0 warns, by `otherwise` and the
// first failure, unless `otherwise` is empty.
Result<bool> Coordinator::AllJoined(const OperationsGroup& group, const Status& mine,
                                    std::string_view otherwise, bool derived) const {
  TUTTI_ASSIGN(const FirstFailure failure,
               CompareOutcomes(group.gather, group.members.size(), mine, derived));
  if (failure && group.rank == 0 && !otherwise.empty()) {
    TUTTI_WARN("{}; rank {} says: {}", otherwise, group.members[failure->first], failure->second);
  }
  return !failure;
}

// Adds nothing on all ranks where a rank failed.
Status Coordinator::JoinByPlugin(const std::shared_ptr<Gpu>& gpu, OperationsGroup group,
                                 OperationsList& list) const {
  group.gpu_memory = true;
  auto made = gpu_plugin_->Open(group);
  TUTTI_ASSIGN(const bool joined,
               AllJoined(group, made.status(), fmt::format(kCannotJoin, gpu_plugin_->name())));
  if (!joined) return Status::Ok();
  BlockingGpuOptions options;
  options.operations = std::move(*made);
  options.gpu = gpu;
  options.rank = group.rank;
  options.num_ranks = group.size();
  options.takes = gpu_plugin_takes_;
  list.push_back(MakeBlockingGpuOperations(std::move(options)));
  return Status::Ok();
}

// Adds nothing on all ranks where a rank failed; the two functions below do the same.
Status Coordinator::JoinByTutti(const Gpu& gpu, const OperationsGroup& group,
                                Communicators& communicators, OperationsList& list) const {
  ncclUniqueId mine = {};
  std::vector<ncclUniqueId> all(group.members.size());
  if (group.rank == 0) TUTTI_TRY(FromNccl(ncclGetUniqueId(&mine)));
  TUTTI_TRY(group.gather(&mine, sizeof(mine), all.data()));
  ncclComm_t comm = nullptr;
  const Status made =
      FromNccl(tuttiCommInitRankOn(&comm, group.size(), all[0], group.rank, gpu.rank_device()));
  Communicator communicator(made.ok() ? comm : nullptr);
  TUTTI_ASSIGN(const bool joined,
               AllJoined(group, made,
                         list.empty() ? "the GPUs of the ranks cannot be joined, so their tensors "
                                        "go through the host's memory"
                                      : ""));
  if (!joined) return Status::Ok();
  {
    const MutexLock lock(communicators.gpu_mutex);
    communicators.gpu = std::move(communicator);
    if (communicators.broken) communicators.gpu.Break();
  }
  if (communicators.local.get() != nullptr) {
    TUTTI_TRY(JoinHostsByTutti(gpu, group, communicators, list));
  }
  list.push_back(MakeStreamOperations(comm, group.rank, group.size(), gpu.stream()));
  return Status::Ok();
}

// Splits the two levels of a hierarchy from the communicator of all.
Status Coordinator::JoinHostsByTutti(const Gpu& gpu, const OperationsGroup& group,
                                     Communicators& communicators, OperationsList& list) const {
  const HierarchyShape& place = options_.place;
  const ncclComm_t all = communicators.gpu.get();
  // This rank splits a second time even after the first has failed, as ranks of other hosts do.
  Result<Communicator> local = Communicator::Split(all, place.cross_rank, place.local_rank);
  Result<Communicator> cross = Communicator::Split(all, place.local_rank, place.cross_rank);
  TUTTI_ASSIGN(const bool joined, AllJoined(group, local.ok() ? cross.status() : local.status(),
                                            "tensors on GPUs are not moved host by host"));
  if (!joined) return Status::Ok();
  GpuHierarchyOptions options;
  options.local = BorrowComm(local->get());
  options.cross = BorrowComm(cross->get());
  {
    const MutexLock lock(communicators.gpu_mutex);
    communicators.gpu_local = std::move(*local);
    communicators.gpu_cross = std::move(*cross);
    if (communicators.broken) {
      communicators.gpu_local.Break();
      communicators.gpu_cross.Break();
    }
  }
  options.shape = place;
  options.stream = gpu.stream();
  options.switches = switches_;
  list.push_back(MakeGpuHierarchy(std::move(options)));
  return Status::Ok();
}

// Returns the ranks of this rank's host, or the ranks of its place on all hosts. All of `group` use
// the result together.
OperationsGroup Coordinator::PartOf(const OperationsGroup& group, bool across) const {
  const HierarchyShape& place = options_.place;
  OperationsGroup part;
  part.rank = across ? place.cross_rank : place.local_rank;
  part.members = across ? place.RanksAcross() : place.RanksOfHost();
  part.gather = [members = part.members, gather = group.gather, n = group.members.size()](
                    const void* mine, size_t bytes, void* all) -> Status {
    std::vector<std::byte> everything(n * bytes);
    TUTTI_TRY(gather(mine, bytes, everything.data()));
    auto* to = static_cast<std::byte*>(all);
    for (const int rank : members) {
      std::memcpy(to, everything.data() + static_cast<size_t>(rank) * bytes, bytes);
      to += bytes;
    }
    return Status::Ok();
  };
  return part;
}

// Makes a communicator of `group` by the NCCL library at the same time as all ranks of `all`; null
// on all of them after a failure.
Result<std::shared_ptr<GpuCommunicator>> Coordinator::OpenLibrary(
    int set, const std::shared_ptr<Gpu>& gpu, const OperationsGroup& all,
    const OperationsGroup& group, Communicators& communicators) const {
  GpuCommunicator::Options options;
  options.library = gpu_library_;
  options.gpu = gpu;
  options.init_timeout_s = options_.settings.init_timeout_s;
  options.timeout_s = options_.settings.timeout_s;
  options.healthy = [data = communicators.data.get(),
                     &failed = communicators.join_failed](bool joining) {
    if (joining && failed) return RemoteError("another rank could not join");
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(data, &state);
    if (asked != ncclSuccess) state = asked;
    return FromNccl(state == ncclInProgress ? ncclSuccess : state, data);
  };
  auto communicator = std::make_shared<GpuCommunicator>(std::move(options));
  {
    // The communicator is stored before any wait, because Break must find the communicator of a
    // waiting rank.
    const MutexLock lock(communicators.gpu_mutex);
    communicators.gpu_library.push_back(communicator);
    if (communicators.library_broken) communicator->Break();
  }
  const Status made = communicator->Join(group);
  const bool derived = communicators.join_failed;
  // The others may wait for this rank in the library.
  if (!made.ok()) {
    communicator->Break();
    communicators.join_failed = true;
    TellJoinFailed(set, all.members);
  }
  TUTTI_ASSIGN(const bool joined,
               AllJoined(all, made, fmt::format(kCannotJoin, gpu_library_->Name()), derived));
  if (joined) return communicator;
  const MutexLock lock(communicators.gpu_mutex);
  communicators.gpu_library.pop_back();
  return std::shared_ptr<GpuCommunicator>();
}

Status Coordinator::JoinByLibrary(int set, const std::shared_ptr<Gpu>& gpu,
                                  const OperationsGroup& group, Communicators& communicators,
                                  OperationsList& list) const {
  TUTTI_ASSIGN(const auto all, OpenLibrary(set, gpu, group, group, communicators));
  if (!all) return Status::Ok();
  if (communicators.local.get() != nullptr && (IsTaken(gpu_library_takes_, OpKind::kAllreduce) ||
                                               IsTaken(gpu_library_takes_, OpKind::kAllgather))) {
    GpuHierarchyOptions options;
    TUTTI_ASSIGN(options.local,
                 OpenLibrary(set, gpu, group, PartOf(group, /*across=*/false), communicators));
    if (options.local) {
      TUTTI_ASSIGN(options.cross,
                   OpenLibrary(set, gpu, group, PartOf(group, /*across=*/true), communicators));
    }
    options.shape = options_.place;
    options.stream = gpu->stream();
    options.takes = gpu_library_takes_;
    options.reduces_float8 = false;
    options.switches = switches_;
    if (options.local && options.cross) list.push_back(MakeGpuHierarchy(std::move(options)));
  }
  LibraryOperationsOptions operations;
  operations.rank = group.rank;
  operations.num_ranks = group.size();
  operations.stream = gpu->stream();
  operations.takes = gpu_library_takes_;
  // NVIDIA's library reduces 8-bit floats since 2.24 on some GPUs, which are not known here.
  operations.reduces_float8 = false;
  list.push_back(MakeLibraryOperations(all, std::move(operations)));
  return Status::Ok();
}

}  // namespace tutti::coordinator
