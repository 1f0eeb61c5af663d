// The steps by which a communicator comes to life. The order is in Build.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/log.h"
#include "comm/communicator.h"
#include "comm/join.h"
#include "comm/nics.h"
#include "sys/memory_files.h"

namespace tutti {

Communicator::Communicator(Process& process, const Settings& settings, std::string name,
                           int cuda_device, double init_timeout_s, observe::Identity identity)
    : process_(process),
      settings_(settings),
      name_(std::move(name)),
      device_(MakeRankDevice(process, cuda_device)),
      init_deadline_(Deadline::AfterSeconds(init_timeout_s)) {
  identity.cuda_device = cuda_device;
  identity.name = observe::ToShortText<64>(name_);
  record_ = process.board().Claim(identity);
  process.StartRas(settings);
}

Result<std::unique_ptr<Communicator>> Communicator::Init(Process& process, const Settings& settings,
                                                         const InitOptions& options) {
  std::unique_ptr<Communicator> comm(new Communicator(
      process, settings, options.name, options.cuda_device, settings.init_timeout_s,
      {.meeting = options.ids.empty() ? 0 : options.ids[0].id,
       .rank = options.rank,
       .num_ranks = options.num_ranks}));
  comm->shown_ranks_ = options.shown_ranks;
  const Bootstrap::Options bootstrap = {.rank = options.rank,
                                        .num_ranks = options.num_ranks,
                                        .ids = options.ids,
                                        .deadline = comm->init_deadline_,
                                        .name = options.name,
                                        .abort_flag = options.abort_flag,
                                        .abort_reason = options.abort_reason};
  TUTTI_ASSIGN(comm->bootstrap_, Bootstrap::Create(process.loop(), settings, bootstrap));
  return Built(std::move(comm), options.abort_flag, options.abort_reason);
}

Result<std::unique_ptr<Communicator>> Communicator::InitChild(
    Communicator& parent, uint64_t child_id, std::vector<int> parent_ranks, std::string name,
    std::atomic<bool>* abort_flag, const std::function<Status()>& abort_reason) {
  const auto at = std::find(parent_ranks.begin(), parent_ranks.end(), parent.rank());
  std::unique_ptr<Communicator> comm(
      new Communicator(parent.process_, parent.settings_, std::move(name),
                       parent.device_->cuda_ordinal(), parent.JointTimeout().seconds,
                       {.id = child_id,
                        .rank = static_cast<int32_t>(at - parent_ranks.begin()),
                        .num_ranks = static_cast<int32_t>(parent_ranks.size())}));
  comm->bootstrap_ = parent.bootstrap_->CreateChild(child_id, std::move(parent_ranks), abort_flag);
  return Built(std::move(comm), abort_flag, abort_reason);
}

// Returns the communicator once it is built. Tells the other ranks the reason of a failure, because
// they may be waiting for this rank.
Result<std::unique_ptr<Communicator>> Communicator::Built(
    std::unique_ptr<Communicator> comm, std::atomic<bool>* abort_flag,
    const std::function<Status()>& abort_reason) {
  Status built = comm->Build(abort_flag);
  if (built.ok()) return comm;
  // The rank that gave up, and the raiser of the flag, know more than a step that the flag has
  // ended.
  const bool aborted = abort_flag != nullptr && abort_flag->load(std::memory_order_acquire);
  if (Status reason = comm->bootstrap_->CancelReason(); !reason.ok())
    built = std::move(reason);
  else if (Status raised = aborted && abort_reason ? abort_reason() : Status(); !raised.ok())
    built = std::move(raised);
  Status told = built;
  // A system error names no rank. The peers are therefore told the number.
  if (told.code() == Code::kSystemError && comm->bootstrap_->CancelReason().ok())
    told = std::move(told).Annotate(fmt::format("rank {} cannot take part", comm->rank()));
  comm->bootstrap_->GiveUp(told);
  return built;
}

Status Communicator::Open() {
  watch_->SetStopHook([this] {
    operations_->Abort();
    device_communicators_.Abort();
    if (OneSided* const calls = calls_on_streams_.load(std::memory_order_acquire)) calls->Abort();
  });
  TUTTI_TRY(bootstrap_->Complete());
  watch_->Start();
  LogTransports();
  return Status::Ok();
}

Status Communicator::Build(std::atomic<bool>* abort_flag) {
  const int64_t start_ns = NowNs();
  PlanContext lists;
  std::vector<PluginFile> tuners;
  // A rank that is alone has nothing to choose from.
  if (num_ranks() > 1) tuners = TunerPlugin::Find(settings_);
  TUTTI_TRY(ExchangePeers(!tuners.empty(), lists));
  const int64_t peers_ns = NowNs();
  TUTTI_TRY(MakeTuner(tuners, abort_flag));
  const JoinContext context = {.process = process_,
                               .settings = settings_,
                               .bootstrap = *bootstrap_,
                               .watch = *watch_,
                               .peers = peers_,
                               .interfaces = interfaces_,
                               .lists = lists,
                               .tuner = tuner_.get(),
                               .name = name_,
                               .deadline = init_deadline_,
                               .abort_flag = abort_flag};
  JoinTimes times;
  TUTTI_ASSIGN(operations_, device_->Join(context, times));
  if (settings_.find_slow_ranks && num_ranks() > 1)
    slow_ranks_ = std::make_unique<SlowRankFinder>(
        process_.loop(), *watch_,
        SlowRankFinder::Options{.rank = rank(), .num_ranks = num_ranks(), .run_delay_ns = [this] {
                                  return process_.run_delay().TotalNs(NowNs());
                                }});
  TUTTI_TRY(MakeSymmetricMemory());
  TUTTI_TRY(Open());
  if (settings_.print_init_times) {
    const auto ms = [](int64_t ns) { return static_cast<double>(ns) / 1e6; };
    const Bootstrap::PhaseTimes phases = bootstrap_->phase_times();
    log::Write(LogLevel::kInfo,
               fmt::format("init of {} ranks: register {:.2f} ms, link {:.2f} ms, addresses {:.2f} "
                           "ms, peers {:.2f} ms, shared memory {:.2f} ms, network {:.2f} ms, "
                           "topology {:.2f} ms, operations {:.2f} ms",
                           num_ranks(), ms(phases.register_ns), ms(phases.link_ns),
                           ms(phases.exchange_ns), ms(peers_ns - start_ns), ms(times.memory_ns),
                           ms(times.network_ns), ms(times.topology_ns), ms(NowNs() - peers_ns)));
  }
  return Status::Ok();
}

// Gathers the records of all ranks. Every rank checks all records alike.
Status Communicator::ExchangePeers(bool has_tuner, PlanContext& lists) {
  peers_.resize(static_cast<size_t>(num_ranks()));
  PeerInfo& self = peers_[static_cast<size_t>(rank())];
  self = DescribeSelf(settings_);
  self.has_tuner = has_tuner;
  process_.DescribeMemory(self);
  TUTTI_TRY(device_->Describe(self));
  Status forbidden;
  if (num_ranks() > 1) {
    forbidden = CheckSharedMemory(self);
    TUTTI_ASSIGN(interfaces_, ListNetworkInterfaces());
    self.networks = NetworksOf(interfaces_, settings_);
  }
  probe_token_ = RandomRemoteToken();
  self.probe_address = reinterpret_cast<uint64_t>(probe_token_.data());
  self.probe_token = probe_token_;
  TUTTI_TRY(bootstrap_->AllGather(peers_.data(), sizeof(PeerInfo), init_deadline_));
  for (PeerInfo& peer : peers_) MakePrintable(peer);
  TUTTI_TRY(CheckPeers(peers_));
  // A rank without others on its host needs no shared memory.
  if (std::count_if(peers_.begin(), peers_.end(),
                    [&self](const PeerInfo& peer) { return peer.host_hash == self.host_hash; }) > 1)
    TUTTI_TRY(std::move(forbidden));
  ShareMultiprocessors(peers_);
  lists.deterministic = settings_.deterministic;
  TUTTI_TRY(ApplyAlgorithmList(settings_.algo, lists));
  TUTTI_TRY(ApplyProtocolList(settings_.proto, lists));
  std::vector<std::string> names;
  for (size_t r = 0; r < peers_.size(); ++r)
    names.push_back(
        RankName(shown_ranks_.empty() ? static_cast<int>(r) : shown_ranks_[r], peers_[r]));
  ShowRanks();
  watch_ = std::make_unique<Watch>(
      *bootstrap_,
      Watch::Options{.timeout_ns = static_cast<int64_t>(settings_.timeout_s * 1e9),
                     .rank_names = std::move(names),
                     .name = name_,
                     .joint_setting = JointTimeout().setting,
                     .board = &process_.waits()},
      std::move(record_));
  return Status::Ok();
}

// Has this rank be reached by the network where shared memory is forbidden. Fails where the network
// may not take the place of shared memory.
Status Communicator::CheckSharedMemory(PeerInfo& self) const {
  if (self.shm_disabled) return Status::Ok();
  Status allowed = CheckMemoryFilesAllowed();
  if (allowed.ok()) return allowed;
  self.shm_disabled = 1;
  if (settings_.strict_transport) return allowed;
  TUTTI_WARN("rank {} uses the network also within its host: {}", rank(), allowed.message());
  return Status::Ok();
}

void Communicator::ShowRanks() {
  if (std::optional<observe::Identity> identity = record_->identity.Load()) {
    identity->id = bootstrap_->id();
    record_->identity.Store(*identity);
  }
  auto names = std::make_unique<observe::RankNames>();
  for (const PeerInfo& peer : peers_) names->Add(peer.host, peer.pid);
  record_->names.Store(*names);
}

// Takes a step together with the other ranks only where all ranks have found a library.
Status Communicator::MakeTuner(std::span<const PluginFile> libraries,
                               const std::atomic<bool>* abort_flag) {
  const auto without = std::find_if(peers_.begin(), peers_.end(),
                                    [](const PeerInfo& peer) { return peer.has_tuner == 0; });
  if (without != peers_.end()) {
    if (!libraries.empty())
      TUTTI_WARN("tuner plugin {} is not used, because {} has none", libraries[0].name(),
                 RankName(static_cast<int>(without - peers_.begin()), *without));
    return Status::Ok();
  }
  tuner_ = TunerPlugin::Load(libraries, {bootstrap_->id(), num_ranks(), HostCount(peers_)});
  const JointRanks ranks = {bootstrap_.get(), peers_, init_deadline_, abort_flag};
  TUTTI_ASSIGN(const Agreement agreed,
               ranks.Agree(tuner_ ? Status::Ok() : InvalidUsage("no tuner plugin is usable")));
  if (agreed.go_on()) {
    watch_->set_has_tuner();
    TUTTI_INFO(kLogInit | kLogTuning, "tuner plugin {} advises the choice of algorithms",
               tuner_->name());
  } else if (tuner_) {
    TUTTI_WARN("tuner plugin {} is not used: {}", tuner_->name(), agreed.refusal.message());
    tuner_.reset();
  }
  return Status::Ok();
}

}  // namespace tutti
