#include "coordinator/coordinator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "base/log.h"
#include "bootstrap/wire.h"
#include "coordinator/nccl_exchange.h"
#include "coordinator/nccl_library.h"
#include "coordinator/operations_exchange.h"
#include "coordinator/outcomes.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

// The communicators notice a lost rank too, and say more about it; this is how long they have.
constexpr int64_t kGraceNs = 500'000'000;
// A rank that cannot take part in the last round is past helping.
constexpr double kShutdownS = 30;
// Between two comparisons of the clock with rank 0's while a timeline is written. Clocks that
// nothing steers drift by 50 us a second at most, by half a millisecond in this time, most of which
// a merge takes out by interpolation.
constexpr int64_t kMeasureEveryNs = 10'000'000'000;
// The most doorbells that are kept for sets which this rank does not know yet. One set is made at a
// time.
constexpr size_t kMaxEarlyDoorbells = 1024;

// Returns a quarter of a timeout, in ns: how often to check so that the timeout is met.
int64_t QuarterOf(double seconds) {
  return std::max(int64_t{1'000'000}, static_cast<int64_t>(seconds * 1e9 / 4));
}

// Stands in a doorbell in place of a round: this rank cannot join the GPUs of the set by a library.
constexpr uint64_t kJoinFailed = ~uint64_t{0};

// As OperationsGroup has it.
auto GatherOver(ncclComm_t comm) {
  return [comm](const void* mine, size_t bytes, void* all) {
    return FromNccl(ncclAllGather(mine, all, bytes, ncclUint8, comm, nullptr), comm);
  };
}

Bytes EncodeDoorbell(int set, uint64_t round) {
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(set));
  writer.U64(round);
  return std::move(writer).Take();
}

}  // namespace

Coordinator::Coordinator(const Options& options)
    : options_(options),
      timeline_(options.rank, options.clock),
      clock_meter_(options.rank, options.num_ranks, ClockHooks()),
      mismatch_watch_(
          options.rank, options.settings.stall_check_time_s, [this] { return LiveSets(); },
          [this] {
            const MutexLock lock(mutex_);
            return sets_.size() > 1;
          }) {
  const Settings& settings = options_.settings;
  common_.tuning.fusion_threshold = settings.fusion_threshold;
  common_.tuning.window_ns = static_cast<int64_t>(settings.cycle_time_ms * 1e6);
  // Sums of hosts' sums are not in the order of the ranks.
  common_.tuning.hierarchical = settings.hierarchical_allreduce && !settings.deterministic;
  common_.cache_capacity = static_cast<uint64_t>(settings.cache_capacity);
  common_.fuse_groups = !settings.disable_group_fusion;
  common_.hierarchical_allgather = settings.hierarchical_allgather;
  common_.autotune = settings.autotune;
  common_.controller = settings.controller;
  common_.cpu_operations = settings.cpu_operations;
  const std::string* const own_lists[] = {&settings.gpu_allreduce, &settings.gpu_allgather,
                                          &settings.gpu_broadcast, &settings.gpu_alltoall,
                                          &settings.gpu_reducescatter};
  for (size_t kind = 0; kind < kNumGpuKinds; ++kind) {
    const std::string& own = *own_lists[kind];
    common_.gpu_operations[kind] = own.empty() ? settings.gpu_operations : own;
  }
}

Result<std::unique_ptr<Coordinator>> Coordinator::Create(const Options& options) {
  std::unique_ptr<Coordinator> coordinator(new Coordinator(options));
  TUTTI_TRY(coordinator->Connect());
  return coordinator;
}

Status Coordinator::Connect() {
  const Settings& settings = options_.settings;
  TUTTI_ASSIGN(loop_, EventLoop::Create("tutti-doorbell"));
  Bootstrap::Options bootstrap;
  bootstrap.rank = options_.rank;
  bootstrap.num_ranks = options_.num_ranks;
  bootstrap.ids = {options_.id};
  bootstrap.deadline = Deadline::AfterSeconds(settings.init_timeout_s);
  TUTTI_ASSIGN(bootstrap_, Bootstrap::Create(*loop_, settings, bootstrap));
  ncclUniqueId id = {};
  TUTTI_ASSIGN(common_, AgreeOnSettings(&id));
  TUTTI_ASSIGN(controller_plugin_, ChooseFor("HOROVOD_CONTROLLER", common_.controller));
  TUTTI_ASSIGN(data_plugin_, ChooseFor("HOROVOD_CPU_OPERATIONS", common_.cpu_operations));
  TUTTI_TRY(ChooseGpuOperations());
  TUTTI_TRY(MakeGlobalSet(common_, id));
  if (!settings.timeline.empty() && settings.timeline != "DYNAMIC") {
    // A job does not end for a folder that is missing on one of its hosts.
    const Status opened = StartTimeline(settings.timeline, settings.timeline_mark_cycles);
    if (!opened.ok()) TUTTI_WARN("HOROVOD_TIMELINE has no effect here: {}", opened.message());
  }
  if (settings.stall_check_time_s > 0) {
    tick_ns_ = std::min(tick_ns_, QuarterOf(settings.stall_check_time_s));
  }
  // Twice within ProcessSet::Options::longest_round_ns.
  if (settings.timeout_s > 0) tick_ns_ = std::min(tick_ns_, QuarterOf(settings.timeout_s) / 2);
  loop_->AddTimer(tick_ns_, [this] { OnTick(); });
  return Status::Ok();
}

void Coordinator::ListenForEvents() {
  Bootstrap::Events events;
  events.control = [this](int, std::span<const std::byte> payload) { OnControl(payload); };
  events.peer_lost = [this](int rank, const std::string& why) {
    OnLost(rank, fmt::format("rank {} is lost: {}", rank, why), /*died=*/true);
  };
  events.peer_left = [this](int rank) {
    OnLost(rank, fmt::format("rank {} has left without a shutdown", rank), /*died=*/false);
  };
  bootstrap_->SetEvents(std::move(events));
}

// Rank 0 says what must be the same everywhere, and where the communicator's ranks meet.
Result<Coordinator::Common> Coordinator::AgreeOnSettings(ncclUniqueId* id) {
  Bytes mine;
  if (options_.rank == 0) {
    TUTTI_TRY(FromNccl(ncclGetUniqueId(id)));
    WireWriter writer;
    WriteText(writer, std::string_view(id->internal, sizeof(id->internal)));
    writer.U64(static_cast<uint64_t>(common_.tuning.fusion_threshold));
    writer.U64(static_cast<uint64_t>(common_.tuning.window_ns));
    writer.U64(common_.cache_capacity);
    writer.U8(common_.tuning.hierarchical ? 1 : 0);
    writer.U8(common_.fuse_groups ? 1 : 0);
    writer.U8(common_.hierarchical_allgather ? 1 : 0);
    writer.U8(common_.autotune ? 1 : 0);
    WriteText(writer, common_.controller);
    WriteText(writer, common_.cpu_operations);
    for (const std::string& list : common_.gpu_operations) WriteText(writer, list);
    mine = std::move(writer).Take();
  }
  TUTTI_ASSIGN(
      const std::vector<Bytes> all,
      bootstrap_->AllGatherV(mine, Deadline::AfterSeconds(options_.settings.init_timeout_s)));
  WireReader reader(all.front());
  std::string meeting;
  if (!ReadText(reader, sizeof(id->internal), meeting)) {
    return RemoteError("rank 0 sent no unique id");
  }
  std::memcpy(id->internal, meeting.data(), meeting.size());
  Common common;
  common.tuning.fusion_threshold = static_cast<int64_t>(reader.U64());
  common.tuning.window_ns = static_cast<int64_t>(reader.U64());
  common.cache_capacity = reader.U64();
  common.tuning.hierarchical = reader.U8() != 0;
  common.fuse_groups = reader.U8() != 0;
  common.hierarchical_allgather = reader.U8() != 0;
  common.autotune = reader.U8() != 0;
  bool lists = ReadText(reader, kMaxNameBytes, common.controller) &&
               ReadText(reader, kMaxNameBytes, common.cpu_operations);
  for (std::string& list : common.gpu_operations) {
    lists = lists && ReadText(reader, kMaxNameBytes, list);
  }
  if (!lists || reader.failed() || !reader.AtEnd()) {
    return RemoteError("rank 0 sent settings that this version does not understand");
  }
  return common;
}

// Every rank's text, by rank.
GatherTexts Coordinator::TextGatherer() const {
  return [this](const std::string& mine) -> Result<std::vector<std::string>> {
    TUTTI_ASSIGN(const std::vector<Bytes> all,
                 bootstrap_->AllGatherV(std::as_bytes(std::span(mine)),
                                        Deadline::AfterSeconds(options_.settings.init_timeout_s)));
    std::vector<std::string> texts;
    for (const Bytes& bytes : all) {
      texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return texts;
  };
}

// The first of a list that every rank has wins, and Tutti's own always is there.
Result<std::shared_ptr<OperationsPlugin>> Coordinator::ChooseFor(std::string_view variable,
                                                                 const std::string& list) {
  if (list.empty()) return std::shared_ptr<OperationsPlugin>();
  TUTTI_ASSIGN(const PluginChoice choice, ChoosePlugin(list, options_.rank, options_.num_ranks,
                                                       TextGatherer(), options_.find_plugin));
  if (!choice.why.empty() && options_.rank == 0) {
    TUTTI_WARN("{} asks for {}, which cannot be had: {}. {} is used.", variable, list, choice.why,
               choice.plugin ? choice.plugin->name() : "Tutti's own");
  }
  return choice.plugin;
}

OperationsGroup Coordinator::GroupOf(const std::vector<int>& ranks, ncclComm_t data) const {
  OperationsGroup group;
  group.members = ranks;
  group.rank =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin());
  group.gather = GatherOver(data);
  return group;
}

// The call may block for as long as the plugin's library likes, and be left to itself.
Result<std::unique_ptr<Operations>> Coordinator::OpenPlugin(
    const std::shared_ptr<OperationsPlugin>& plugin, const std::vector<int>& ranks,
    const std::shared_ptr<Communicators>& communicators, SetMaking& making) const {
  auto operations =
      making.Run([plugin, communicators, group = GroupOf(ranks, communicators->data.get())] {
        return plugin->Open(group);
      });
  if (operations.ok()) return operations;
  return std::move(operations).status().Annotate(plugin->name());
}

// Makes what the failure of a rank, or of the set of all ranks, can break off from now on.
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

Status Coordinator::MakeGlobalSet(const Common& common, const ncclUniqueId& id) {
  const std::shared_ptr<SetMaking> making = BeginMaking();
  // Losses that came earlier are told now, when there is something that they can end.
  ListenForEvents();
  auto communicators = std::make_shared<Communicators>();
  ncclComm_t comm = nullptr;
  // Of the host's memory, also where a GPU is the calling thread's.
  TUTTI_TRY(FromNccl(tuttiCommInitRankOn(&comm, options_.num_ranks, id, options_.rank, -1)));
  communicators->control = Communicator(comm);
  ncclComm_t data = nullptr;
  TUTTI_TRY(FromNccl(ncclCommSplit(comm, 0, options_.rank, &data, nullptr), comm));
  communicators->data = Communicator(data);
  TUTTI_TRY(SplitHosts(common, *communicators));
  making->Adopt([communicators] { communicators->BreakOff(); });
  std::vector<int> ranks(static_cast<size_t>(options_.num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  TUTTI_ASSIGN(const std::shared_ptr<ProcessSet> set, MakeSet(0, ranks, communicators, *making));
  EnterSet(0, {ranks, set, communicators});
  return Status::Ok();
}

// Whether ranks are numbered host by host, several and equally many on each of several. All ranks
// come to the same, from the places of all.
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

Status Coordinator::SplitHosts(const Common& common, Communicators& communicators) {
  const HierarchyShape& place = options_.place;
  const bool wanted =
      common.tuning.hierarchical || common.hierarchical_allgather || common.autotune;
  if (!wanted) return Status::Ok();
  TUTTI_ASSIGN(const bool has_hierarchy, HasHierarchy(communicators));
  if (!has_hierarchy) return Status::Ok();
  const ncclComm_t data = communicators.data.get();
  ncclComm_t local = nullptr;
  TUTTI_TRY(
      FromNccl(ncclCommSplit(data, place.cross_rank, place.local_rank, &local, nullptr), data));
  communicators.local = Communicator(local);
  ncclComm_t cross = nullptr;
  TUTTI_TRY(
      FromNccl(ncclCommSplit(data, place.local_rank, place.cross_rank, &cross, nullptr), data));
  communicators.cross = Communicator(cross);
  switches_->allreduce = common.tuning.hierarchical;
  switches_->allgather = common.hierarchical_allgather;
  return Status::Ok();
}

std::unique_ptr<Autotune> Coordinator::MakeAutotune(const Communicators& communicators) const {
  if (!common_.autotune || options_.rank != 0) return nullptr;
  const Settings& settings = options_.settings;
  Autotune::Options options;
  options.warmup_samples = static_cast<int>(settings.autotune_warmup_samples);
  options.steps_per_sample = static_cast<int>(settings.autotune_steps_per_sample);
  options.max_samples = static_cast<int>(settings.autotune_bayes_opt_max_samples);
  options.noise = settings.autotune_gaussian_process_noise;
  options.try_hierarchical = communicators.local.get() != nullptr && !settings.deterministic;
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
    if (const auto found = early_doorbells_.find(id); found != early_doorbells_.end()) {
      early = found->second;
      early_doorbells_.erase(found);
    }
    if (!record.ranks.empty()) sets_[id] = record;
  }
  if (early && record.set) record.set->OnDoorbell(*early);
}

// Waits for the other ranks where a plugin makes a part of the set.
Result<std::shared_ptr<ProcessSet>> Coordinator::MakeSet(
    int id, const std::vector<int>& ranks, const std::shared_ptr<Communicators>& communicators,
    SetMaking& making) {
  const Settings& settings = options_.settings;
  ProcessSet::Options options;
  options.id = id;
  options.members = ranks;
  options.rank =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin());
  options.cache_capacity = common_.cache_capacity;
  options.deterministic = options_.settings.deterministic;
  options.tuning = common_.tuning;
  options.fuse_groups = common_.fuse_groups;
  options.stall_warn_ns =
      settings.stall_check_disable ? 0 : static_cast<int64_t>(settings.stall_check_time_s * 1e9);
  options.stall_shutdown_ns = static_cast<int64_t>(settings.stall_shutdown_time_s * 1e9);
  if (settings.timeout_s > 0) {
    options.longest_round_ns = std::min(options.longest_round_ns, QuarterOf(settings.timeout_s));
  }
  const int n = static_cast<int>(ranks.size());
  std::vector<std::unique_ptr<Operations>> operations;
  if (communicators->local.get() != nullptr) {
    operations.push_back(MakeHierarchicalOperations(
        communicators->local.get(), communicators->cross.get(), options_.place, switches_));
  }
  if (data_plugin_) {
    TUTTI_ASSIGN(auto made, OpenPlugin(data_plugin_, ranks, communicators, making));
    operations.push_back(std::move(made));
  }
  operations.push_back(MakeNcclOperations(communicators->data.get(), options.rank));
  std::unique_ptr<Exchange> exchange;
  if (controller_plugin_) {
    TUTTI_ASSIGN(auto made, OpenPlugin(controller_plugin_, ranks, communicators, making));
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

// Small messages spread as a flood over the links at distance 2^k, so that nobody sends or gets
// many.
std::vector<int> Coordinator::NeighboursOf(const std::vector<int>& ranks) const {
  std::vector<int> neighbours;
  const auto n = static_cast<int64_t>(ranks.size());
  const auto me = std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin();
  for (int64_t distance = 1; distance < n; distance *= 2) {
    neighbours.push_back(ranks[static_cast<size_t>((me + distance) % n)]);
  }
  return neighbours;
}

ProcessSet::Hooks Coordinator::MakeHooks(int id, const std::vector<int>& ranks,
                                         const std::shared_ptr<Communicators>& communicators) {
  ProcessSet::Hooks hooks;
  const std::vector<int> neighbours = NeighboursOf(ranks);
  hooks.ring_doorbell = [this, id, neighbours](uint64_t round) {
    const Bytes message = EncodeDoorbell(id, round);
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
  // What waits too long in any set ends the job.
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
  hooks.tuned = [this](const Tuning& tuning) { switches_->allreduce = tuning.hierarchical; };
  // The end of all is the end of each.
  hooks.ended = [this](const Status& reason) {
    loop_->Post([this, text = std::string(reason.message())] {
      for (const auto& set : LiveSets()) {
        if (set->id() != 0) set->Leave(text);
      }
    });
  };
  return hooks;
}

Status Coordinator::StartTimeline(const std::string& path, bool mark_rounds) {
  TUTTI_TRY(timeline_.Open(options_.rank == 0 ? path : fmt::format("{}.{}", path, options_.rank),
                           mark_rounds));
  loop_->Post([this] {
    next_measure_ns_ = 0;
    TendTimeline();
  });
  return Status::Ok();
}

ClockMeter::Hooks Coordinator::ClockHooks() {
  ClockMeter::Hooks hooks;
  hooks.now_ns = options_.clock.now_ns;
  hooks.send = [this](int rank, std::span<const std::byte> message) {
    bootstrap_->SendControl(rank, message);
  };
  hooks.measured = [this](const ClockDistance& distance) { timeline_.Measured(distance); };
  return hooks;
}

void Coordinator::TendTimeline() {
  if (!timeline_.is_open()) return;
  timeline_.Flush();
  const int64_t now_ns = NowNs();
  if (now_ns < next_measure_ns_) return;
  next_measure_ns_ = now_ns + kMeasureEveryNs;
  clock_meter_.Measure();
}

Result<std::shared_ptr<ProcessSet>> Coordinator::FindSet(int id) const {
  const MutexLock lock(mutex_);
  const auto found = sets_.find(id);
  if (found == sets_.end()) {
    if (making_ && id == next_set_) {
      return InvalidArgument("process set {} is still being made", id);
    }
    return InvalidArgument("there is no process set {}", id);
  }
  if (!found->second.set) {
    return InvalidArgument("rank {} is not in process set {}", options_.rank, id);
  }
  return found->second.set;
}

Result<std::vector<int>> Coordinator::SetRanks(int id) const {
  const MutexLock lock(mutex_);
  const auto found = sets_.find(id);
  if (found == sets_.end()) return InvalidArgument("there is no process set {}", id);
  return found->second.ranks;
}

std::vector<std::shared_ptr<ProcessSet>> Coordinator::LiveSets() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<ProcessSet>> sets;
  for (const auto& [id, record] : sets_) {
    if (record.set) sets.push_back(record.set);
  }
  return sets;
}

Status Coordinator::ChangeAndWait(Ask ask, int* number) const {
  TUTTI_ASSIGN(const std::shared_ptr<ProcessSet> all, FindSet(0));
  const TicketHold ticket = TicketHold::Make();
  ask.ticket = ticket.Share();
  TUTTI_TRY(all->Enqueue({&ask, 1}));
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
  Ask ask;
  ask.name = "add_process_set";
  ask.fields.kind = OpKind::kAddSet;
  ask.fields.type = ElementType::kInt64;
  ask.shape = shape;
  int number = -1;
  TUTTI_TRY(ChangeAndWait(std::move(ask), &number));
  return number;
}

Status Coordinator::RemoveSet(int id) {
  if (id == 0) return InvalidArgument("the process set of all ranks cannot be removed");
  TUTTI_TRY(SetRanks(id).status());
  Ask ask;
  ask.name = "remove_process_set";
  ask.fields.kind = OpKind::kRemoveSet;
  ask.fields.root = id;
  int number = -1;
  return ChangeAndWait(std::move(ask), &number);
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
  // The number is used up on all ranks, whatever came of it.
  EnterSet(id, made.ok() ? record : SetRecord());
  TUTTI_TRY(Status(made));
  return id;
}

// This rank's part in the new set, if it is a member.
Status Coordinator::JoinSet(int id, ncclComm_t parent, SetMaking& making, SetRecord& record) {
  const std::vector<int>& ranks = record.ranks;
  const bool member = std::find(ranks.begin(), ranks.end(), options_.rank) != ranks.end();
  const int color = member ? 0 : NCCL_SPLIT_NOCOLOR;
  ncclComm_t control = nullptr;
  ncclComm_t data = nullptr;
  // Both, whatever becomes of the first: the others split twice as well.
  const Status first =
      FromNccl(ncclCommSplit(parent, color, options_.rank, &control, nullptr), parent);
  const Status second =
      FromNccl(ncclCommSplit(parent, color, options_.rank, &data, nullptr), parent);
  auto communicators = std::make_shared<Communicators>();
  communicators->control = Communicator(control);
  communicators->data = Communicator(data);
  making.Adopt([communicators] { communicators->BreakOff(); });
  TUTTI_TRY(Status(first));
  TUTTI_TRY(Status(second));
  if (!member) return Status::Ok();
  TUTTI_ASSIGN(record.set, MakeSet(id, ranks, communicators, making));
  record.communicators = std::move(communicators);
  return Status::Ok();
}

// The same on all ranks: ok if all of them have made their part, else what the first says that has
// not. Nobody may have a set in which another member never comes.
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
  const Bytes message = EncodeDoorbell(set, kJoinFailed);
  for (const int rank : NeighboursOf(ranks)) bootstrap_->SendControl(rank, message);
}

// Malformed doorbells have no effect.
void Coordinator::OnControl(std::span<const std::byte> payload) {
  if (clock_meter_.OnMessage(payload)) return;
  WireReader reader(payload);
  const auto id = static_cast<int>(reader.U32());
  const uint64_t round = reader.U64();
  if (reader.failed() || !reader.AtEnd()) return;
  std::shared_ptr<ProcessSet> set;
  {
    const MutexLock lock(mutex_);
    const auto found = sets_.find(id);
    if (round == kJoinFailed) {
      if (found == sets_.end() || !found->second.set) return;
      // On to the others, when it comes for the first time.
      if (found->second.communicators->join_failed.exchange(true)) return;
      TellJoinFailed(id, found->second.ranks);
    } else if (found != sets_.end()) {
      set = found->second.set;
    } else if (id >= next_set_ && early_doorbells_.size() < kMaxEarlyDoorbells) {
      early_doorbells_[id] = std::max(early_doorbells_[id], round);
    }
  }
  if (set) set->OnDoorbell(round);
}

void Coordinator::OnLost(int rank, const std::string& why, bool died) {
  loop_->AddTimer(kGraceNs, [this, rank, why, died] {
    std::map<int, SetRecord> sets;
    {
      const MutexLock lock(mutex_);
      sets = sets_;
    }
    for (const auto& [id, record] : sets) {
      const auto& members = record.ranks;
      if (!record.set || std::find(members.begin(), members.end(), rank) == members.end()) continue;
      record.set->Fail(RemoteError("{}", why));
      // A set that has ended may still wait for what was queued on GPUs before.
      if (died) record.communicators->BreakGpuLibrary();
    }
    BreakMaking(RemoteError("{}", why));
  });
}

void Coordinator::OnTick() {
  const auto sets = LiveSets();
  bool due = false;
  for (const auto& set : sets) due = set->Tick(sets.size() > 1) || due;
  mismatch_watch_.Tick(due);
  TendTimeline();
  loop_->AddTimer(tick_ns_, [this] { OnTick(); });
}

void Coordinator::Shutdown(const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(closing_, true)) return;
  }
  const auto sets = LiveSets();
  for (const auto& set : sets) set->Leave(reason);
  const Deadline deadline = Deadline::AfterSeconds(kShutdownS);
  for (const auto& set : sets) {
    if (set->AwaitEnd(deadline)) continue;
    set->Fail(Timeout("the other ranks did not come to the shutdown within {} s", kShutdownS));
  }
  // Here, as long as the death of a rank that they wait for is noticed.
  for (const auto& set : sets) set->SettleGpu();
  timeline_.Close();
}

Status Coordinator::ended() const {
  const auto all = FindSet(0);
  return all.ok() ? (*all)->ended() : all.status();
}

Coordinator::~Coordinator() {
  if (bootstrap_) Shutdown("its coordinator was destroyed");
  if (bootstrap_) bootstrap_->SetEvents({});
  // Nothing may come from the loop any more when the sets go.
  std::map<int, SetRecord> sets;
  {
    const MutexLock lock(mutex_);
    sets.swap(sets_);
  }
  if (loop_) loop_->RunSync([] {});
  sets.clear();
  bootstrap_.reset();
  loop_.reset();
}

}  // namespace tutti::coordinator
