#include "coordinator/coordinator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "coordinator/round_call.h"

namespace tutti::coordinator {
namespace {

// The time in which communicators, which notice a lost rank too, may tell more about the loss.
constexpr int64_t kGraceNs = 500'000'000;
// Between two comparisons of the clock with rank 0's while a timeline is written. Unsteered clocks
// drift by 50 us a second at most, by half a millisecond in this time, and interpolation in a merge
// takes out most of the drift.
constexpr int64_t kMeasureEveryNs = 10'000'000'000;
// The most round calls that are kept for sets unknown to this rank. One set is made at a time.
constexpr size_t kMaxEarlyRoundCalls = 1024;

}  // namespace

int64_t Coordinator::QuarterOf(double seconds) {
  return std::max(int64_t{1'000'000}, static_cast<int64_t>(seconds * 1e9 / 4));
}

Coordinator::Coordinator(const Options& options)
    : options_(options),
      timeline_(options.rank, options.clock,
                [this] { loop_->AddTimer(Timeline::kFlushNs, [this] { timeline_.Flush(); }); }),
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
  common_.tuning.hierarchical_allreduce =
      settings.hierarchical_allreduce && !settings.deterministic;
  common_.tuning.hierarchical_allgather = settings.hierarchical_allgather;
  common_.cache_capacity = static_cast<uint64_t>(settings.cache_capacity);
  common_.fuse_groups = !settings.disable_group_fusion;
  common_.autotune = settings.autotune;
  common_.encrypt = settings.encrypt;
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

// Meets the other ranks, agrees with them on settings and plugins, and makes the set of all ranks.
// Every step is collective, and a failure ends the making on all ranks.
Status Coordinator::Connect() {
  const Settings& settings = options_.settings;
  TUTTI_ASSIGN(loop_, EventLoop::Create("tutti-calls"));
  Bootstrap::Options bootstrap;
  bootstrap.rank = options_.rank;
  bootstrap.num_ranks = options_.num_ranks;
  bootstrap.ids = {options_.id};
  bootstrap.deadline = Deadline::AfterSeconds(settings.init_timeout_s);
  TUTTI_ASSIGN(bootstrap_, Bootstrap::Create(*loop_, settings, bootstrap));
  ncclUniqueId id = {};
  TUTTI_ASSIGN(common_, AgreeOnSettings(&id));
  TUTTI_ASSIGN(controller_plugin_,
               ChooseFor("HOROVOD_CONTROLLER", common_.controller, settings.controller));
  TUTTI_ASSIGN(data_plugin_, ChooseFor("HOROVOD_CPU_OPERATIONS", common_.cpu_operations,
                                       settings.cpu_operations));
  TUTTI_TRY(ChooseGpuOperations());
  TUTTI_TRY(MakeGlobalSet(common_, id));
  if (!settings.timeline.empty() && settings.timeline != "DYNAMIC") {
    // A folder that is missing on one host does not end the job.
    const Status opened = StartTimeline(settings.timeline, settings.timeline_mark_cycles);
    if (!opened.ok()) TUTTI_WARN("HOROVOD_TIMELINE has no effect here: {}", opened.message());
  }
  if (settings.stall_check_time_s > 0) {
    tick_ns_ = std::min(tick_ns_, QuarterOf(settings.stall_check_time_s));
  }
  TUTTI_TRY(bootstrap_->Complete());
  // Twice within ProcessSet::Options::longest_round_ns.
  if (settings.timeout_s > 0) tick_ns_ = std::min(tick_ns_, QuarterOf(settings.timeout_s) / 2);
  loop_->RunSync([this] { tick_ = loop_->AddTimer(tick_ns_, [this] { OnTick(); }); });
  return Status::Ok();
}

// The loop's thread calls these functions.
void Coordinator::ListenForEvents() {
  Bootstrap::Events events;
  events.control = [this](int, std::span<const std::byte> payload) { OnControl(payload); };
  events.ranks_lost = [this](std::span<const LostRank> lost) {
    for (const LostRank& one : lost)
      OnLost(one.rank, fmt::format("rank {} is lost: {}", one.rank, one.why), /*died=*/true);
  };
  events.peer_left = [this](int rank) {
    OnLost(rank, fmt::format("rank {} has left without a shutdown", rank), /*died=*/false);
  };
  bootstrap_->SetEvents(std::move(events));
}

// The first comparison of clocks begins at once, on the loop's thread, which owns the meter.
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

// Runs at every tick: writes waiting events, and compares clocks when the time has come.
void Coordinator::TendTimeline() {
  if (!timeline_.is_open()) return;
  timeline_.Flush();
  const int64_t now_ns = NowNs();
  if (now_ns < next_measure_ns_) return;
  next_measure_ns_ = now_ns + kMeasureEveryNs;
  clock_meter_.Measure();
}

// A set without this rank has a record, too, and the error says which case it is.
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

// Malformed round calls have no effect.
void Coordinator::OnControl(std::span<const std::byte> payload) {
  if (clock_meter_.OnMessage(payload)) return;
  const std::optional<RoundCall> call = RoundCall::Decode(payload);
  if (!call) return;
  const auto [id, round] = *call;
  std::shared_ptr<ProcessSet> set;
  {
    const MutexLock lock(mutex_);
    const auto found = sets_.find(id);
    if (round == RoundCall::kJoinFailed) {
      if (found == sets_.end() || !found->second.set) return;
      // Passes the message on when the message comes for the first time.
      if (found->second.communicators->join_failed.exchange(true)) return;
      TellJoinFailed(id, found->second.ranks);
    } else if (found != sets_.end()) {
      set = found->second.set;
      // Another rank may have made the set already; the call is kept until this rank has.
    } else if (id >= next_set_ && early_round_calls_.size() < kMaxEarlyRoundCalls) {
      early_round_calls_[id] = std::max(early_round_calls_[id], round);
    }
  }
  if (set) set->OnRoundCall(round);
}

// Fails the sets of the lost rank, after a pause in which the communicators may fail them with a
// better reason.
void Coordinator::OnLost(int rank, const std::string& why, bool died) {
  loop_->AddTimer(kGraceNs, [this, rank, why, died] {
    // Copied, because Fail must not be called with the lock held.
    std::map<int, SetRecord> sets;
    {
      const MutexLock lock(mutex_);
      sets = sets_;
    }
    for (const auto& [id, record] : sets) {
      const auto& members = record.ranks;
      if (!record.set || std::find(members.begin(), members.end(), rank) == members.end()) continue;
      record.set->Fail(RemoteError("{}", why));
      // A set that has ended may still wait for work queued on GPUs before.
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
  tick_ = loop_->AddTimer(tick_ns_, [this] { OnTick(); });
}

// Announces the end in all sets first, and then waits for them: the sets end in parallel, within
// one deadline.
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
  // Waits here, as long as the loop notices the death of a rank.
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
  // Nothing may come from the loop any more when the sets go, nor use the loop while the loop ends.
  std::map<int, SetRecord> sets;
  {
    const MutexLock lock(mutex_);
    sets.swap(sets_);
  }
  if (loop_) loop_->RunSync([this] { loop_->CancelTimer(tick_); });
  sets.clear();
  bootstrap_.reset();
  loop_.reset();
}

}  // namespace tutti::coordinator
