// The coordinator's part in tensors on GPUs: whose communicators join the GPUs of a process set, and how
// they end.

#include <algorithm>
#include <set>
#include <sstream>
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
constexpr std::string_view kNccl = "nccl";
constexpr std::string_view kTutti = "tutti";

std::vector<std::string> NamesOf(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream text(list);
  for (std::string name; std::getline(text, name, ',');) names.push_back(PlainName(name));
  return names;
}

// Whether a list comes to nccl before tutti.
bool AsksForNccl(const std::string& list) {
  const auto names = NamesOf(list);
  const auto tutti = std::find(names.begin(), names.end(), kTutti);
  return std::find(names.begin(), tutti, kNccl) != tutti;
}

// What each rank says of an attempt that all made; "" where it went well. `derived`: it failed because
// another did.
struct Failed {
  char text[512];
  bool derived;
};
// Who failed first, if anybody did: its place in the group, and its sentence.
using FirstFailure = std::optional<std::pair<size_t, std::string>>;
Result<FirstFailure> Compare(const OperationsGroup& group, const Status& mine,
                             bool derived = false) {
  Failed my = {};
  my.derived = derived;
  if (!mine.ok()) mine.message().copy(my.text, sizeof(my.text) - 1);
  std::vector<Failed> all(group.members.size());
  TUTTI_TRY(group.gather(&my, sizeof(my), all.data()));
  FirstFailure first;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].text[sizeof(all[i].text) - 1] = '\0';
    if (all[i].text[0] == '\0') continue;
    if (!first) first = {i, all[i].text};
    if (!all[i].derived) return FirstFailure({i, all[i].text});
  }
  return first;
}

}  // namespace

// Looks for the library only where a list comes to it, on all ranks then.
Status Coordinator::ChooseGpuOperations() {
  const auto& lists = common_.gpu_operations;
  std::string missing;  // why there is no library
  if (std::any_of(lists.begin(), lists.end(), AsksForNccl)) {
    auto found = FindNcclForGpus(options_.settings.nccl_library, NcclCandidates());
    const std::string mine =
        found.ok() ? (*found)->Name()
                   : fmt::format("- rank {}: {}", options_.rank, found.status().message());
    TUTTI_ASSIGN(const std::vector<std::string> all, TextGatherer()(mine));
    for (size_t rank = 0; rank < all.size() && missing.empty(); ++rank) {
      if (all[rank].starts_with("- ")) {
        missing = all[rank].substr(2);
      } else if (all[rank] != all[0]) {
        missing = fmt::format("rank 0 has {} and rank {} has {}", all[0], rank, all[rank]);
      }
    }
    if (missing.empty()) {
      gpu_library_ = std::move(*found);
      TUTTI_INFO(kLogInit, "tensors on GPUs go through {} ({})", gpu_library_->Name(),
                 gpu_library_->path());
    }
  }
  bool* const takes[] = {&gpu_library_takes_.allreduce, &gpu_library_takes_.allgather,
                         &gpu_library_takes_.broadcast, &gpu_library_takes_.alltoall,
                         &gpu_library_takes_.reducescatter};
  std::set<std::string> warned;
  for (size_t kind = 0; kind < kNumGpuKinds; ++kind) {
    *takes[kind] = false;
    for (const std::string& name : NamesOf(lists[kind])) {
      *takes[kind] = name == kNccl && gpu_library_;
      if (*takes[kind] || name == kTutti) break;
      const std::string why = name == kNccl ? missing
                                            : fmt::format(
                                                  "there is no \"{}\" for tensors on GPUs: tutti "
                                                  "and nccl there are",
                                                  name);
      if (options_.rank != 0 || !warned.insert(name + lists[kind]).second) continue;
      const bool own = lists[kind] != options_.settings.gpu_operations;
      TUTTI_WARN(
          "{} asks for {}, which cannot be had: {}. What comes after it is used, or Tutti's own.",
          own ? kGpuVariables[kind] : "HOROVOD_GPU_OPERATIONS", name, why);
    }
  }
  return Status::Ok();
}

void Coordinator::Communicators::BreakOff() {
  control.Break();
  data.Break();
  local.Break();
  cross.Break();
  {
    const std::lock_guard lock(gpu_mutex);
    broken = true;
    gpu.Break();
  }
  BreakGpuLibrary();
}

void Coordinator::Communicators::BreakGpuLibrary() {
  std::shared_ptr<GpuCommunicator> library;
  {
    const std::lock_guard lock(gpu_mutex);
    library_broken = true;
    library = gpu_library;
  }
  if (library) library->Break();
}

Result<std::shared_ptr<Gpu>> Coordinator::OpenGpu(int device) const {
  const HierarchyShape& place = options_.place;
  if (device < 0) device = place.local_size > 0 ? place.local_rank : options_.rank;
  return options_.open_gpu(device);
}

// Communicators of the ranks' GPUs, where they have one way or another of reaching one another.
Result<std::vector<std::unique_ptr<Operations>>> Coordinator::JoinGpus(
    int set, const std::shared_ptr<Gpu>& gpu, const std::vector<int>& ranks,
    Communicators& communicators) const {
  const OperationsGroup group = GroupOf(ranks, communicators.data.get());
  std::vector<std::unique_ptr<Operations>> list;
  if (gpu_library_ && gpu_library_takes_.Any()) {
    TUTTI_ASSIGN(auto made, JoinByLibrary(set, gpu, group, communicators));
    if (made) list.push_back(std::move(made));
  }
  if (list.empty() || !gpu_library_takes_.All()) {
    TUTTI_ASSIGN(auto made, JoinByTutti(*gpu, group, communicators));
    if (made) list.push_back(std::move(made));
  }
  return list;
}

// Null on all ranks where one of them failed.
Result<std::unique_ptr<Operations>> Coordinator::JoinByTutti(const Gpu& gpu,
                                                             const OperationsGroup& group,
                                                             Communicators& communicators) const {
  ncclUniqueId mine = {};
  std::vector<ncclUniqueId> all(group.members.size());
  if (group.rank == 0) TUTTI_TRY(FromNccl(ncclGetUniqueId(&mine)));
  TUTTI_TRY(group.gather(&mine, sizeof(mine), all.data()));
  ncclComm_t comm = nullptr;
  const Status made =
      FromNccl(tuttiCommInitRankOn(&comm, group.size(), all[0], group.rank, gpu.rank_device()));
  Communicator communicator(made.ok() ? comm : nullptr);
  TUTTI_ASSIGN(const FirstFailure failure, Compare(group, made));
  if (failure) {
    if (group.rank == 0) {
      TUTTI_WARN(
          "the GPUs of the ranks cannot be joined, so their tensors go through the host's "
          "memory; rank {} says: {}",
          group.members[failure->first], failure->second);
    }
    return std::unique_ptr<Operations>();
  }
  const std::lock_guard lock(communicators.gpu_mutex);
  communicators.gpu = std::move(communicator);
  if (communicators.broken) communicators.gpu.Break();
  return MakeStreamOperations(comm, group.rank, group.size(), gpu.stream());
}

// Likewise.
Result<std::unique_ptr<Operations>> Coordinator::JoinByLibrary(int set,
                                                               const std::shared_ptr<Gpu>& gpu,
                                                               const OperationsGroup& group,
                                                               Communicators& communicators) const {
  GpuCommunicator::Options options;
  options.library = gpu_library_;
  options.gpu = gpu;
  options.init_timeout_s = options_.settings.init_timeout_s;
  options.timeout_s = options_.settings.timeout_s;
  options.healthy = [data = communicators.data.get(), &failed = communicators.join_failed] {
    if (failed) return RemoteError("another rank could not join");
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(data, &state);
    if (asked != ncclSuccess) state = asked;
    return FromNccl(state == ncclInProgress ? ncclSuccess : state, data);
  };
  const auto communicator = std::make_shared<GpuCommunicator>(std::move(options));
  {
    // Before it waits for anybody, so that whoever breaks the others off finds it.
    const std::lock_guard lock(communicators.gpu_mutex);
    communicators.gpu_library = communicator;
    if (communicators.library_broken) communicator->Break();
  }
  const Status made = communicator->Join(group);
  const bool derived = communicators.join_failed;
  // The others may wait for this rank in the library.
  if (!made.ok()) {
    communicator->Break();
    communicators.join_failed = true;
    TellJoinFailed(set, group.members);
  }
  TUTTI_ASSIGN(const FirstFailure failure, Compare(group, made, derived));
  if (failure) {
    if (group.rank == 0) {
      TUTTI_WARN("{} cannot join the GPUs of the ranks, so that Tutti does; rank {} says: {}",
                 gpu_library_->Name(), group.members[failure->first], failure->second);
    }
    const std::lock_guard lock(communicators.gpu_mutex);
    communicators.gpu_library.reset();
    return std::unique_ptr<Operations>();
  }
  LibraryOperationsOptions operations;
  operations.rank = group.rank;
  operations.num_ranks = group.size();
  operations.stream = gpu->stream();
  operations.takes = gpu_library_takes_;
  // NVIDIA's reduces them since 2.24, and on some GPUs: which of them is not known here.
  operations.reduces_float8 = false;
  return MakeLibraryOperations(communicator, std::move(operations));
}

}  // namespace tutti::coordinator
