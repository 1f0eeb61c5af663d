// The coordinator's process sets: how ranks make them together, and their callbacks.

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/log.h"
#include "coordinator/coordinator.h"
#include "coordinator/exchange.h"
#include "coordinator/operations_plugin.h"
#include "coordinator/round_call.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

// Returns the gather of an OperationsGroup.
auto GatherOver(ncclComm_t comm) {
  return [comm](const void* mine, size_t bytes, void* all) {
    return FromNccl(ncclAllGather(mine, all, bytes, ncclUint8, comm, nullptr), comm);
  };
}

}  // namespace

int Coordinator::PlaceIn(const std::vector<int>& ranks) const {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin());
}

OperationsGroup Coordinator::GroupOf(const std::vector<int>& ranks, ncclComm_t data) const {
  OperationsGroup group;
  group.members = ranks;
  group.rank = PlaceIn(ranks);
  group.gather = GatherOver(data);
  return group;
}

// `comm` is the communicator among `communicators` that has these ranks. The call may block as long
// as the plugin's library blocks, and may be left to itself.
Result<std::unique_ptr<Operations>> Coordinator::OpenPlugin(
    const std::shared_ptr<OperationsPlugin>& plugin, const std::vector<int>& ranks, ncclComm_t comm,
    const std::shared_ptr<Communicators>& communicators, SetMaking& making) const {
  auto operations = making.Run(
      [plugin, communicators, group = GroupOf(ranks, comm)] { return plugin->Open(group); });
  if (operations.ok()) return operations;
  return std::move(operations).status().Annotate(plugin->name());
}

// Both levels use the operations that move the data of flat operations.
Result<std::unique_ptr<Operations>> Coordinator::MakeHierarchy(
    const std::shared_ptr<Communicators>& communicators, SetMaking& making) const {
  const HierarchyShape& place = options_.place;
  const ncclComm_t local = communicators->local.get();
  const ncclComm_t cross = communicators->cross.get();
  if (!data_plugin_) {
    return MakeHierarchicalOperations(MakeNcclOperations(local, place.local_rank),
                                      MakeNcclOperations(cross, place.cross_rank), place,
                                      switches_);
  }
  TUTTI_ASSIGN(auto inner,
               OpenPlugin(data_plugin_, place.RanksOfHost(), local, communicators, making));
  TUTTI_ASSIGN(auto outer,
               OpenPlugin(data_plugin_, place.RanksAcross(), cross, communicators, making));
  return MakeHierarchicalOperations(std::move(inner), std::move(outer), place, switches_);
}

// Makes an object by which the failure of a rank, or of the set of all ranks, can break off the
// making.
std::shared_ptr<SetMaking> Coordinator::BeginMaking() {
  auto making = std::make_shared<SetMaking>();
  const MutexLock lock(mutex_);
  making_ = making;
  return making;
}

void Coordinator::BreakMaking(const Status& reason) {
  std::shared_ptr<SetMaking> making;
  {
    const MutexLock lock(mutex_);
    making = making_;
  }
  if (making) making->Break(reason);
}

// Negotiation and data have communicators of their own, because a round may run while a batch is
// moved.
Status Coordinator::MakeGlobalSet(const Common& common, const ncclUniqueId& id) {
  const std::shared_ptr<SetMaking> making = BeginMaking();
  // Earlier losses are told now, when they can end the making.
  ListenForEvents();
  auto communicators = std::make_shared<Communicators>();
  ncclComm_t comm = nullptr;
  // The communicator works on memory of the host, even where the calling thread has a GPU.
  TUTTI_TRY(FromNccl(tuttiCommInitRankOn(&comm, options_.num_ranks, id, options_.rank, -1)));
  communicators->control = Communicator(comm);
  TUTTI_ASSIGN(communicators->data, Communicator::Split(comm, 0, options_.rank));
  TUTTI_TRY(SplitHosts(common, *communicators));
  making->Adopt([communicators] { communicators->BreakOff(); });
  std::vector<int> ranks(static_cast<size_t>(options_.num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  TUTTI_ASSIGN(const std::shared_ptr<ProcessSet> set, MakeSet(0, ranks, communicators, *making));
  EnterSet(0, {ranks, set, communicators});
  return Status::Ok();
}

// Returns whether ranks are numbered host by host, with several hosts and equally many ranks, more
// than one, on each. All ranks come to the same result, from the places of all.
Result<bool> Coordinator::HasHierarchy(const Communicators& communicators) const {
  const HierarchyShape mine = options_.place;
  std::vector<HierarchyShape> places(static_cast<size_t>(options_.num_ranks));
  const ncclComm_t data = communicators.data.get();
  TUTTI_TRY(
      FromNccl(ncclAllGather(&mine, places.data(), sizeof(mine), ncclUint8, data, nullptr), data));
  const bool several = std::any_of(places.begin(), places.end(), [](const HierarchyShape& place) {
    return place.local_size > 1 && place.cross_size > 1;
  });
  for (int r = 0; several && r < options_.num_ranks; ++r) {
    const HierarchyShape& place = places[static_cast<size_t>(r)];
    if (place.local_size * place.cross_size == options_.num_ranks && place.local_size > 1 &&
        place.cross_size > 1 && place.local_size == mine.local_size && place.local_rank >= 0 &&
        place.local_rank < place.local_size &&
        place.cross_rank * place.local_size + place.local_rank == r)
      continue;
    if (options_.rank == 0) {
      TUTTI_WARN(
          "operations are not hierarchical, which needs ranks numbered host by host and equally "
          "many on each: rank {} of {} is rank {} of {} on host {} of {}",
          r, options_.num_ranks, place.local_rank, place.local_size, place.cross_rank,
          place.cross_size);
    }
    return false;
  }
  return several;
}

// Autotune may switch hierarchical operations on later, and then needs the communicators, too.
Status Coordinator::SplitHosts(const Common& common, Communicators& communicators) {
  const HierarchyShape& place = options_.place;
  const bool wanted = common.tuning.hierarchical_allreduce ||
                      common.tuning.hierarchical_allgather || common.autotune;
  if (!wanted) return Status::Ok();
  TUTTI_ASSIGN(const bool has_hierarchy, HasHierarchy(communicators));
  if (!has_hierarchy) return Status::Ok();
  const ncclComm_t data = communicators.data.get();
  TUTTI_ASSIGN(communicators.local, Communicator::Split(data, place.cross_rank, place.local_rank));
  TUTTI_ASSIGN(communicators.cross, Communicator::Split(data, place.local_rank, place.cross_rank));
  switches_->allreduce = common.tuning.hierarchical_allreduce;
  switches_->allgather = common.tuning.hierarchical_allgather;
  switches_->adasum = common.tuning.hierarchical_allreduce;
  return Status::Ok();
}

// Rank 0 alone searches. A deterministic order excludes hierarchical allreduces, whose sums have
// another order.
std::unique_ptr<Autotune> Coordinator::MakeAutotune(const Communicators& communicators) const {
  if (!common_.autotune || options_.rank != 0) return nullptr;
  const Settings& settings = options_.settings;
  Autotune::Options options;
  options.warmup_samples = static_cast<int>(settings.autotune_warmup_samples);
  options.steps_per_sample = static_cast<int>(settings.autotune_steps_per_sample);
  options.max_samples = static_cast<int>(settings.autotune_bayes_opt_max_samples);
  options.noise = settings.autotune_gaussian_process_noise;
  options.try_hierarchical_allgather = communicators.local.get() != nullptr;
  options.try_hierarchical_allreduce =
      options.try_hierarchical_allgather && !settings.deterministic;
  options.log_path = settings.autotune_log;
  return std::make_unique<Autotune>(options, common_.tuning);
}

// Ends the making of the set: failures reach the set itself from now on.
void Coordinator::EnterSet(int id, const SetRecord& record) {
  std::optional<uint64_t> early;
  {
    const MutexLock lock(mutex_);
    making_.reset();
    next_set_ = id + 1;
    if (const auto found = early_round_calls_.find(id); found != early_round_calls_.end()) {
      early = found->second;
      early_round_calls_.erase(found);
    }
    if (!record.ranks.empty()) sets_[id] = record;
  }
  // Called without the lock, because the set passes the call on.
  if (early && record.set) record.set->OnRoundCall(*early);
}

// Waits for the other ranks where a plugin makes a part of the set.
Result<std::shared_ptr<ProcessSet>> Coordinator::MakeSet(
    int id, const std::vector<int>& ranks, const std::shared_ptr<Communicators>& communicators,
    SetMaking& making) {
  const Settings& settings = options_.settings;
  ProcessSet::Options options;
  options.id = id;
  options.members = ranks;
  options.rank = PlaceIn(ranks);
  options.cache_capacity = common_.cache_capacity;
  options.tuning = common_.tuning;
  options.fuse_groups = common_.fuse_groups;
  options.stall_warn_ns =
      settings.stall_check_disable ? 0 : static_cast<int64_t>(settings.stall_check_time_s * 1e9);
  options.stall_shutdown_ns = static_cast<int64_t>(settings.stall_shutdown_time_s * 1e9);
  if (settings.timeout_s > 0) {
    options.longest_round_ns = std::min(options.longest_round_ns, QuarterOf(settings.timeout_s));
  }
  const int n = static_cast<int>(ranks.size());
  // The first operations that take a request run it: hierarchical, the plugin's, Tutti's own.
  std::vector<std::unique_ptr<Operations>> operations;
  if (communicators->local.get() != nullptr) {
    TUTTI_ASSIGN(auto made, MakeHierarchy(communicators, making));
    operations.push_back(std::move(made));
  }
  if (data_plugin_) {
    TUTTI_ASSIGN(auto made,
                 OpenPlugin(data_plugin_, ranks, communicators->data.get(), communicators, making));
    operations.push_back(std::move(made));
  }
  operations.push_back(MakeNcclOperations(communicators->data.get(), options.rank));
  std::unique_ptr<Exchange> exchange;
  if (controller_plugin_) {
    TUTTI_ASSIGN(auto made, OpenPlugin(controller_plugin_, ranks, communicators->data.get(),
                                       communicators, making));
    exchange = MakeOperationsExchange(std::move(made), options.rank, n);
  } else {
    exchange = MakeNcclExchange(communicators->control.get(), options.rank, n);
  }
  auto autotune = id == 0 ? MakeAutotune(*communicators) : nullptr;
  auto set = std::make_shared<ProcessSet>(
      std::move(options), std::move(exchange), std::move(operations),
      MakeHooks(id, ranks, communicators), &timeline_, std::move(autotune));
  TUTTI_TRY(set->Start());
  return set;
}

// Small messages spread as a flood over the links at distance 2^k, because nobody should send or
// get many.
std::vector<int> Coordinator::NeighboursOf(const std::vector<int>& ranks) const {
  std::vector<int> neighbours;
  const auto n = static_cast<int64_t>(ranks.size());
  for (int64_t distance = 1; distance < n; distance *= 2) {
    neighbours.push_back(ranks[static_cast<size_t>((PlaceIn(ranks) + distance) % n)]);
  }
  return neighbours;
}

// Most hooks run with locks of a set held. Therefore hooks that reach other sets post to the loop
// instead of calling the sets.
ProcessSet::Hooks Coordinator::MakeHooks(int id, const std::vector<int>& ranks,
                                         const std::shared_ptr<Communicators>& communicators) {
  ProcessSet::Hooks hooks;
  const std::vector<int> neighbours = NeighboursOf(ranks);
  hooks.call_to_round = [this, id, neighbours](uint64_t round) {
    const Bytes message = RoundCall{id, round}.Encode();
    for (const int rank : neighbours) bootstrap_->SendControl(rank, message);
  };
  hooks.change_sets = [this](const Agreement& agreement) { return ChangeSets(agreement); };
  hooks.break_off = [this, id, communicators] {
    communicators->BreakOff();
    // Sets are made in rounds of the set of all ranks, by all of them.
    if (id == 0) BreakMaking(RemoteError("the process set of all ranks has ended"));
  };
  hooks.gpu.open = [this](int device) { return OpenGpu(device); };
  hooks.gpu.join = [this, id, ranks, communicators](const std::shared_ptr<Gpu>& gpu) {
    return JoinGpus(id, gpu, ranks, *communicators);
  };
  // A tensor that waits too long in any set ends the job.
  if (id != 0) {
    hooks.overdue = [this](const std::string& reason) {
      loop_->Post([this, reason] {
        if (const auto all = FindSet(0); all.ok()) (*all)->Leave(reason);
      });
    };
  }
  hooks.other_sets = [this, id] { return mismatch_watch_.DescribeOtherSets(id); };
  if (id != 0) return hooks;
  hooks.collect_waits = [this] { return mismatch_watch_.CollectWaits(); };
  hooks.waits_collected = [this](const SetWaits& waits) {
    loop_->Post([this, waits] { mismatch_watch_.Decide(waits); });
  };
  hooks.tuned = [this](const Tuning& tuning) {
    switches_->allreduce = tuning.hierarchical_allreduce;
    switches_->allgather = tuning.hierarchical_allgather;
  };
  // The end of the set of all ranks ends each set.
  hooks.ended = [this](const Status& reason) {
    loop_->Post([this, text = std::string(reason.message())] {
      for (const auto& set : LiveSets()) {
        if (set->id() != 0) set->Leave(text);
      }
    });
  };
  return hooks;
}

// A change of sets is agreed on like a tensor, and needs no handle of the user's.
Status Coordinator::ChangeAndWait(const tuttiTensor_t& change, int* number) const {
  TUTTI_ASSIGN(const std::shared_ptr<ProcessSet> all, FindSet(0));
  const TicketHold ticket = TicketHold::Make();
  TicketHold shared = ticket.Share();
  TUTTI_TRY(all->Enqueue({&change, 1}, nullptr, {&shared, 1}));
  all->Wait(*ticket);
  *number = ticket->number;
  return ticket->status;
}

Result<int> Coordinator::AddSet(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty() || ranks.front() < 0 || ranks.back() >= options_.num_ranks ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return InvalidArgument("a process set needs different ranks from 0 to {}",
                           options_.num_ranks - 1);
  }
  const std::vector<int64_t> shape(ranks.begin(), ranks.end());
  tuttiTensor_t change = MakeTensor("add_process_set", OpKind::kAddSet);
  change.type = tuttiInt64;
  change.shape = shape.data();
  change.ndim = static_cast<int>(shape.size());
  int number = -1;
  TUTTI_TRY(ChangeAndWait(change, &number));
  return number;
}

Status Coordinator::RemoveSet(int id) {
  if (id == 0) return InvalidArgument("the process set of all ranks cannot be removed");
  TUTTI_TRY(SetRanks(id).status());
  tuttiTensor_t change = MakeTensor("remove_process_set", OpKind::kRemoveSet);
  change.root = id;
  int number = -1;
  return ChangeAndWait(change, &number);
}

Result<int> Coordinator::ChangeSets(const Agreement& agreement) {
  const Request& request = agreement.request;
  if (request.kind == OpKind::kRemoveSet) return RemoveSetNow(request.root);
  return AddSetNow({request.shape.begin(), request.shape.end()});
}

Result<int> Coordinator::AddSetNow(const std::vector<int>& ranks) {
  std::shared_ptr<Communicators> parents;
  int id = 0;
  {
    const MutexLock lock(mutex_);
    parents = sets_.at(0).communicators;
    id = next_set_;
  }
  const std::shared_ptr<SetMaking> making = BeginMaking();
  const ncclComm_t parent = parents->control.get();
  SetRecord record;
  record.ranks = ranks;
  const Status made = AllMade(parent, JoinSet(id, parent, *making, record));
  // The number is used up on all ranks, even after a failure.
  EnterSet(id, made.ok() ? record : SetRecord());
  TUTTI_TRY(Status(made));
  return id;
}

// This rank's part in the new set, if it is a member.
Status Coordinator::JoinSet(int id, ncclComm_t parent, SetMaking& making, SetRecord& record) {
  const std::vector<int>& ranks = record.ranks;
  const bool member = PlaceIn(ranks) < static_cast<int>(ranks.size());
  const int color = member ? 0 : NCCL_SPLIT_NOCOLOR;
  // The second split follows even a failed first, because the other ranks split twice as well.
  Result<Communicator> control = Communicator::Split(parent, color, options_.rank);
  Result<Communicator> data = Communicator::Split(parent, color, options_.rank);
  TUTTI_TRY(control.status());
  TUTTI_TRY(data.status());
  auto communicators = std::make_shared<Communicators>();
  communicators->control = std::move(*control);
  communicators->data = std::move(*data);
  making.Adopt([communicators] { communicators->BreakOff(); });
  if (!member) return Status::Ok();
  TUTTI_ASSIGN(record.set, MakeSet(id, ranks, communicators, making));
  record.communicators = std::move(communicators);
  return Status::Ok();
}

// Returns the same on all ranks: ok if all of them have made their part, else the error of the
// first rank that has not. Nobody may have a set in which another member never comes.
Status Coordinator::AllMade(ncclComm_t parent, const Status& mine) const {
  TUTTI_ASSIGN(const FirstFailure failure,
               CompareOutcomes(GatherOver(parent), static_cast<size_t>(options_.num_ranks), mine));
  if (!failure) return Status::Ok();
  return RemoteError("the process set cannot be made: rank {} says: {}", failure->first,
                     failure->second);
}

Result<int> Coordinator::RemoveSetNow(int id) {
  SetRecord record;
  {
    const MutexLock lock(mutex_);
    const auto found = sets_.find(id);
    if (found == sets_.end()) return InvalidArgument("there is no process set {}", id);
    record = found->second;
    if (!record.set) sets_.erase(found);
  }
  if (!record.set) return id;
  record.set->Leave("the process set was removed");
  if (!record.set->AwaitEnd(Deadline::AfterSeconds(kShutdownS))) {
    record.set->Fail(Timeout("the members of process set {} did not come to its end", id));
  }
  record.set->SettleGpu();
  const MutexLock lock(mutex_);
  sets_.erase(id);
  return id;
}

void Coordinator::TellJoinFailed(int set, const std::vector<int>& ranks) const {
  const Bytes message = RoundCall{set, RoundCall::kJoinFailed}.Encode();
  for (const int rank : NeighboursOf(ranks)) bootstrap_->SendControl(rank, message);
}

}  // namespace tutti::coordinator
