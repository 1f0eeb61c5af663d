// The steps by which a communicator comes to life. Each is a function of a few lines; the order is
// in Build.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/log.h"
#include "comm/communicator.h"
#include "comm/ports.h"
#include "gpu/mesh.h"
#include "gpu/relay.h"
#include "operations/net_connector.h"
#include "transport/shm/remote_copy.h"

namespace tutti {
namespace {

// One piece of a stage: two of them and the user's buffers stay in a 2 MB L2 cache.
constexpr size_t kStageBytes = 128 << 10;
// A ring's slot: within one machine eight of them stay in L2; between machines they must cover the
// link's latency (NCCL's own buffer is 4 MB in eight steps).
constexpr size_t kLocalSlotBytes = 64 << 10;
constexpr size_t kNetSlotBytes = 512 << 10;

// How long a wait spins when every rank has a processor of its own.
constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kYieldNs = 500'000;

// What the ids of lanes differ by from that of their communicator.
constexpr uint64_t kLaneIds = 0x9E3779B97F4A7C15;

struct ShareResult {
  int32_t leader;  // of the arena this rank has mapped; itself when none
  uint8_t can_pull;
  uint8_t asks_topology;  // it would have to look at the machine: see TopologyMatters
  uint8_t reserved[2];
};

FdKey ArenaKey(const Bootstrap& bootstrap) {
  FdKey key;
  std::copy(bootstrap.key_holder().key.begin(), bootstrap.key_holder().key.end(), key.begin());
  const uint64_t id = bootstrap.id();
  for (size_t i = 0; i < sizeof(id); ++i) key[i] ^= static_cast<uint8_t>(id >> (8 * i));
  return key;
}

bool MayShare(const PeerInfo& a, const PeerInfo& b) {
  return a.host_hash == b.host_hash && !a.shm_disabled && !b.shm_disabled;
}

// Each rank shares the arena of the lowest rank of its machine, or is alone (with
// TUTTI_STRICT_TRANSPORT an error). A record that says anything else must not be worked with.
Status CheckLeaders(std::span<const ShareResult> results, std::span<const PeerInfo> peers,
                    bool strict) {
  for (size_t r = 0; r < results.size(); ++r) {
    size_t lowest = 0;
    while (lowest != r && !MayShare(peers[lowest], peers[r])) ++lowest;
    const int rank = static_cast<int>(r);
    const int leader = results[r].leader;
    if (leader == static_cast<int>(lowest)) continue;
    if (leader != rank)
      return RemoteError("{} says that it shares the memory of rank {}, which it cannot",
                         RankName(rank, peers[r]), leader);
    if (strict)
      return InvalidUsage("TUTTI_STRICT_TRANSPORT is set, and {} cannot share memory with {}",
                          RankName(rank, peers[r]),
                          RankName(static_cast<int>(lowest), peers[lowest]));
  }
  return Status::Ok();
}

// A lane's thread is busy while data moves, and so are those of the network: two processors for
// each, on the host that has fewest for its ranks. The same on all ranks. Between two H200s by
// sockets, AllReduce of 64 MiB ran at 2.3, 4.8, 6.7 and 10.3 GB/s over 1, 2, 4 and 8 lanes
// (bench/results/gpu_paths.md).
int RelayLanes(const Settings& settings, std::span<const PeerInfo> peers) {
  constexpr int kMost = cuda::kMostRelayLanes;
  if (settings.gpu_lanes > 0) return std::min(static_cast<int>(settings.gpu_lanes), kMost);
  std::map<uint64_t, int> ranks;
  for (const PeerInfo& peer : peers) ++ranks[peer.host_hash];
  int lanes = kMost;
  for (const PeerInfo& peer : peers)
    lanes = std::min(lanes, peer.cpus / (2 * ranks[peer.host_hash]));
  return std::max(lanes, 1);
}

WaitPolicy WaitPolicyFor(const Settings& settings, bool oversubscribed) {
  WaitPolicy policy;
  policy.spin_ns = oversubscribed ? 0 : kSpinNs;
  policy.yield_ns = kYieldNs;
  if (settings.spin_us >= 0) policy.spin_ns = settings.spin_us * 1000;
  return policy;
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::Init(Process& process, const Settings& settings,
                                                         const InitOptions& options) {
  std::unique_ptr<Communicator> comm(
      new Communicator(process, settings, options.name, options.cuda_device));
  const Bootstrap::Options bootstrap = {.rank = options.rank,
                                        .num_ranks = options.num_ranks,
                                        .ids = options.ids,
                                        .deadline = comm->init_deadline_,
                                        .abort_flag = options.abort_flag,
                                        .abort_reason = options.abort_reason};
  TUTTI_ASSIGN(comm->bootstrap_, Bootstrap::Create(process.loop(), settings, bootstrap));
  return Built(std::move(comm), options.abort_flag, options.abort_reason);
}

Result<std::unique_ptr<Communicator>> Communicator::InitChild(
    Communicator& parent, uint64_t child_id, std::vector<int> parent_ranks, std::string name,
    std::atomic<bool>* abort_flag, const std::function<Status()>& abort_reason) {
  std::unique_ptr<Communicator> comm(
      new Communicator(parent.process_, parent.settings_, std::move(name), parent.cuda_device_));
  comm->bootstrap_ = parent.bootstrap_->CreateChild(child_id, std::move(parent_ranks), abort_flag);
  return Built(std::move(comm), abort_flag, abort_reason);
}

// The others may wait for this rank in a step of theirs: they hear what is wrong, not that it left.
Result<std::unique_ptr<Communicator>> Communicator::Built(
    std::unique_ptr<Communicator> comm, std::atomic<bool>* abort_flag,
    const std::function<Status()>& abort_reason) {
  Status built = comm->Build(abort_flag);
  if (built.ok()) return comm;
  // A step that saw the flag rise knows less than who raised it.
  const bool aborted = abort_flag != nullptr && abort_flag->load(std::memory_order_acquire);
  if (Status reason = comm->bootstrap_->CancelReason(); !reason.ok())
    built = std::move(reason);
  else if (Status raised = aborted && abort_reason ? abort_reason() : Status(); !raised.ok())
    built = std::move(raised);
  comm->bootstrap_->GiveUp(built);
  return built;
}

Status Communicator::Open() {
  TUTTI_TRY(bootstrap_->Complete());
  watch_->Start();
  LogTransports();
  return Status::Ok();
}

Status Communicator::Build(std::atomic<bool>* abort_flag) {
  const int64_t start_ns = NowNs();
  TUTTI_TRY(ExchangePeers());
  if (cuda_device_ >= 0) return JoinGpus(abort_flag);
  const int64_t peers_ns = NowNs();
  TUTTI_TRY(ShareMemory(abort_flag));
  const int64_t memory_ns = NowNs();
  TUTTI_TRY(OpenNetwork());
  const int64_t network_ns = NowNs();
  TUTTI_TRY(ChooseByTopology());
  MakeExecutor();
  TUTTI_TRY(Open());
  if (settings_.print_init_times) {
    const auto ms = [](int64_t ns) { return static_cast<double>(ns) / 1e6; };
    const Bootstrap::PhaseTimes times = bootstrap_->phase_times();
    log::Write(
        LogLevel::kInfo,
        fmt::format(
            "init of {} ranks: register {:.2f} ms, link {:.2f} ms, addresses {:.2f} "
            "ms, peers {:.2f} ms, shared memory {:.2f} ms, network {:.2f} ms, topology {:.2f} ms",
            num_ranks(), ms(times.register_ns), ms(times.link_ns), ms(times.exchange_ns),
            ms(peers_ns - start_ns), ms(memory_ns - peers_ns), ms(network_ns - memory_ns),
            ms(NowNs() - network_ns)));
  }
  return Status::Ok();
}

// The places that windows may lie in are tried in turn, by all ranks together.
Status Communicator::MakeMesh(const GpuPeers& peers, Status* why) {
  *why = GpuMesh::CheckRanks(peers_);
  if (!why->ok()) return Status::Ok();
  const auto any = [&](uint8_t PeerInfo::*flag) {
    return std::any_of(peers_.begin(), peers_.end(),
                       [&](const PeerInfo& p) { return p.*flag != 0; });
  };
  Status tried;
  for (const WindowPlace place :
       {WindowPlace::kPeerMemory, WindowPlace::kPeerMemoryByIpc, WindowPlace::kHostMemory}) {
    const bool peer = IsOnGpu(place);
    const bool by_ipc = place == WindowPlace::kPeerMemoryByIpc;
    const bool asked = any(&PeerInfo::cumem_disabled);
    if (place == WindowPlace::kPeerMemory && asked) continue;
    // What the driver refuses in one way it may do in the other.
    if (by_ipc && !asked && why->code() != Code::kUnhandledCudaError) continue;
    if (any(peer ? &PeerInfo::p2p_disabled : &PeerInfo::shm_disabled)) {
      tried = InvalidUsage("{} is set on a rank",
                           peer ? "NCCL_P2P_DISABLE (or NCCL_P2P_LEVEL=LOC)" : "NCCL_SHM_DISABLE");
      continue;
    }
    TUTTI_ASSIGN(std::unique_ptr<GpuMesh> mesh, GpuMesh::Create(peers, settings_, place, why));
    gpu_ = std::move(mesh);
    if (gpu_) return Status::Ok();
    const bool has_other = peer && !by_ipc && why->code() == Code::kUnhandledCudaError;
    if (settings_.strict_transport && !has_other)
      return InvalidUsage("TUTTI_STRICT_TRANSPORT is set, and windows in {} do not serve: {}",
                          Name(place), why->message());
    if (rank() == 0)
      TUTTI_WARN("GPUs cannot work in one another's windows in {}, so another way is taken: {}",
                 Name(place), why->message());
  }
  if (why->ok()) *why = tried;
  return Status::Ok();
}

Status Communicator::MakeRelay(const cuda::Device& device, std::atomic<bool>* abort_flag) {
  if (rank() == 0) WarnOfEmptyLists();
  TUTTI_TRY(ShareMemory(abort_flag));
  TUTTI_TRY(OpenNetwork());
  TUTTI_TRY(ChooseByTopology());
  MakeExecutor();
  GpuRelay::Parts parts = {.device = &device,
                           .rank = rank(),
                           .num_ranks = num_ranks(),
                           .executors = {executor_.get()},
                           .watch = watch_.get()};
  std::vector<int> all(static_cast<size_t>(num_ranks()));
  std::iota(all.begin(), all.end(), 0);
  const int lanes = RelayLanes(settings_, peers_);
  for (int i = 1; i < lanes; ++i) {
    std::unique_ptr<Communicator> lane(
        new Communicator(process_, settings_, fmt::format("{} lane {}", name_, i), -1));
    lane->is_lane_ = true;
    lane->bootstrap_ = bootstrap_->CreateChild(
        bootstrap_->id() ^ kLaneIds * static_cast<uint64_t>(i), all, abort_flag);
    TUTTI_ASSIGN(lane, Built(std::move(lane), abort_flag, {}));
    parts.executors.push_back(lane->executor_.get());
    lanes_.push_back(std::move(lane));
  }
  TUTTI_ASSIGN(gpu_, GpuRelay::Create(parts, settings_));
  return Status::Ok();
}

Result<GpuPeers> Communicator::DescribeGpus(Deadline deadline,
                                            const std::atomic<bool>* abort_flag) {
  GpuPeers peers;
  TUTTI_ASSIGN(peers.device, process_.OpenDevice(cuda_device_));
  peers.bootstrap = bootstrap_.get();
  peers.fd_server = &process_.fd_server();
  peers.peers = peers_;
  peers.key = ArenaKey(*bootstrap_);
  peers.deadline = deadline;
  peers.abort_flag = abort_flag;
  return peers;
}

Status Communicator::JoinGpus(std::atomic<bool>* abort_flag) {
  const int64_t start_ns = NowNs();
  for (int r = 0; r < num_ranks(); ++r) local_ranks_.push_back(r);
  arena_leader_.assign(static_cast<size_t>(num_ranks()), 0);
  TUTTI_ASSIGN(const GpuPeers peers, DescribeGpus(init_deadline_, abort_flag));
  Status why;
  TUTTI_TRY(MakeMesh(peers, &why));
  if (!gpu_) {
    TUTTI_INFO(kLogInit, "data of GPUs goes through their hosts: {}", why.message());
    TUTTI_TRY(MakeRelay(*peers.device, abort_flag));
  }
  // A relay's executors check what they run, but pieces of messages of other lengths may fit.
  if (num_ranks() > 1)
    calls_ = std::make_unique<CallChecker>(
        process_.loop(), *watch_,
        CallChecker::Options{
            .rank = rank(), .num_ranks = num_ranks(), .collectives = executor_ == nullptr},
        [this] { return gpu_->State() == QueueState::kUnderWay; });
  gpu_->SetCalls(calls_.get());
  watch_->SetStopHook([this] {
    gpu_->Abort();
    for (const auto& lane : lanes_)
      lane->Stop(InternalError("the communicator of the lane has stopped"), /*tell=*/false);
  });
  TUTTI_TRY(Open());
  if (settings_.print_init_times)
    log::Write(LogLevel::kInfo, fmt::format("init of {} GPUs: windows {:.2f} ms", num_ranks(),
                                            static_cast<double>(NowNs() - start_ns) / 1e6));
  return Status::Ok();
}

Status Communicator::ExchangePeers() {
  peers_.resize(static_cast<size_t>(num_ranks()));
  PeerInfo& self = peers_[static_cast<size_t>(rank())];
  self = DescribeSelf(settings_);
  process_.DescribeMemory(self);
  if (cuda_device_ >= 0) {
    TUTTI_ASSIGN(const cuda::Device* const device, process_.OpenDevice(cuda_device_));
    self.device = device->pci_address();
    self.device_identity = device->identity();
    self.multiprocessors = device->multiprocessors();
  }
  if (num_ranks() > 1) {
    TUTTI_ASSIGN(interfaces_, ListNetworkInterfaces());
    self.networks = NetworksOf(interfaces_, settings_);
  }
  probe_token_ = RandomRemoteToken();
  self.probe_address = reinterpret_cast<uint64_t>(probe_token_.data());
  self.probe_token = probe_token_;
  if (!self.pull_disabled) PermitRemoteCopies();
  TUTTI_TRY(bootstrap_->AllGather(peers_.data(), sizeof(PeerInfo), init_deadline_));
  for (PeerInfo& peer : peers_) MakePrintable(peer);
  TUTTI_TRY(CheckPeers(peers_));
  plan_.deterministic = settings_.deterministic;
  TUTTI_TRY(ApplyAlgorithmList(settings_.algo, plan_));
  TUTTI_TRY(ApplyProtocolList(settings_.proto, plan_));
  if (rank() == 0 && cuda_device_ < 0 && !is_lane_) WarnOfEmptyLists();
  std::vector<std::string> names;
  for (int r = 0; r < num_ranks(); ++r)
    names.push_back(RankName(r, peers_[static_cast<size_t>(r)]));
  watch_ = std::make_unique<Watch>(*bootstrap_, static_cast<int64_t>(settings_.timeout_s * 1e9),
                                   std::move(names));
  return Status::Ok();
}

// NCCL_ALGO=NVLS on hosts, for example: what programs set for other machines is no error.
void Communicator::WarnOfEmptyLists() const {
  if (LeavesNothing(settings_.algo, plan_.allowed_algorithms))
    TUTTI_WARN("NCCL_ALGO={} names nothing that is there on hosts, and has no effect",
               settings_.algo);
  if (LeavesNothing(settings_.proto, plan_.allowed_protocols))
    TUTTI_WARN("NCCL_PROTO={} names nothing that is there on hosts, and has no effect",
               settings_.proto);
}

Status Communicator::AttachArena(int leader, uint64_t offer, const ArenaLayout& layout,
                                 HugePages huge, const std::atomic<bool>* abort_flag) {
  TUTTI_ASSIGN(UniqueFd fd, FetchFd(peers_[static_cast<size_t>(leader)].fd_server, offer,
                                    ArenaKey(*bootstrap_), init_deadline_, abort_flag));
  TUTTI_ASSIGN(arena_memory_, SharedMemory::Map(std::move(fd), layout.TotalBytes(), huge));
  TUTTI_ASSIGN(arena_, Arena::Attach(arena_memory_.data(), layout));
  return Status::Ok();
}

// The lowest rank of each machine makes an arena; the others fetch it from there. Who cannot is
// alone, and says why.
Status Communicator::ShareMemory(const std::atomic<bool>* abort_flag) {
  const auto peer = [&](int r) -> const PeerInfo& { return peers_[static_cast<size_t>(r)]; };
  std::vector<int> group;  // those who may share memory with this rank, itself among them
  for (int r = 0; r < num_ranks(); ++r)
    if (r == rank() || MayShare(peer(r), peer(rank()))) group.push_back(r);
  const bool expect_one_host = std::all_of(peers_.begin(), peers_.end(), [&](const PeerInfo& p) {
    return p.host_hash == peers_[0].host_hash && !p.shm_disabled;
  });

  ArenaLayout layout;
  layout.num_ranks = static_cast<uint32_t>(group.size());
  layout.stage_bytes = expect_one_host ? kStageBytes : 0;
  layout.fifo_slot_bytes = expect_one_host || num_ranks() == 1 ? kLocalSlotBytes : kNetSlotBytes;
  if (settings_.buffsize > 0)
    layout.fifo_slot_bytes = std::max<uint64_t>(
        4096, static_cast<uint64_t>(settings_.buffsize) / kFifoSlots / 4096 * 4096);
  plan_.slot_bytes = layout.fifo_slot_bytes;
  plan_.stage_bytes = layout.stage_bytes;

  const int leader = group[0];
  const HugePages huge = settings_.huge_pages ? HugePages::kAdvise : HugePages::kNo;
  std::vector<uint64_t> offers(static_cast<size_t>(num_ranks()));
  if (leader == rank() && group.size() > 1) {
    TUTTI_ASSIGN(arena_memory_, SharedMemory::Create(layout.TotalBytes(), huge));
    arena_ = Arena::Format(arena_memory_.data(), layout);
    arena_offer_ = process_.fd_server().Offer(arena_memory_.fd(), ArenaKey(*bootstrap_));
    offers[static_cast<size_t>(rank())] = arena_offer_;
  }
  TUTTI_TRY(bootstrap_->AllGather(offers.data(), sizeof(uint64_t), init_deadline_));

  std::vector<ShareResult> results(static_cast<size_t>(num_ranks()));
  ShareResult& mine = results[static_cast<size_t>(rank())];
  mine.leader = rank();
  if (leader != rank()) {
    const Status attached =
        AttachArena(leader, offers[static_cast<size_t>(leader)], layout, huge, abort_flag);
    if (attached.ok())
      mine.leader = leader;
    else
      TUTTI_WARN(
          "{} cannot share memory with {} although both seem to be on one machine: {}. They will "
          "use sockets",
          RankName(rank(), peer(rank())), RankName(leader, peer(leader)), attached.message());
  }
  if (mine.leader == leader) {
    const auto place = std::find(group.begin(), group.end(), rank()) - group.begin();
    PlaceMemory(static_cast<int>(place));
  }
  mine.can_pull = mine.leader == leader && CanReadPeers(group);
  mine.asks_topology = TopologyMatters(settings_, AskAboutHost(group));
  TUTTI_TRY(bootstrap_->AllGather(results.data(), sizeof(ShareResult), init_deadline_));
  TUTTI_TRY(CheckLeaders(results, peers_, settings_.strict_transport));

  arena_leader_.clear();
  for (const ShareResult& result : results) arena_leader_.push_back(result.leader);
  local_ranks_ = group;
  plan_.num_ranks = num_ranks();
  plan_.one_host =
      expect_one_host && std::all_of(results.begin(), results.end(),
                                     [](const ShareResult& r) { return r.leader == 0; });
  plan_.oversubscribed = Oversubscribed(peers_);
  topology_matters_ =
      !plan_.one_host || std::any_of(results.begin(), results.end(),
                                     [](const ShareResult& r) { return r.asks_topology != 0; });
  plan_.can_pull =
      plan_.one_host && std::all_of(results.begin(), results.end(),
                                    [](const ShareResult& r) { return r.can_pull != 0; });
  return Status::Ok();
}

// Proves that the next rank of the machine can be read across processes; if each can read its
// neighbour, all can.
bool Communicator::CanReadPeers(std::span<const int> group) const {
  const auto self = std::find(group.begin(), group.end(), rank());
  const int next = self + 1 == group.end() ? group.front() : self[1];
  const PeerInfo& mine = peers_[static_cast<size_t>(rank())];
  const PeerInfo& peer = peers_[static_cast<size_t>(next)];
  if (mine.pull_disabled || peer.pull_disabled) return false;
  if (SameProcess(peer, mine)) return true;
  Status why;
  if (ProbeRemoteRead(peer.pid, peer.probe_address, peer.probe_token, &why)) return true;
  TUTTI_INFO(kLogInit | kLogShm,
             "{} cannot read the memory of {}, so data is copied through shared memory: {}",
             RankName(rank(), mine), RankName(next, peer), why.message());
  return false;
}

Status Communicator::OpenNetwork() {
  if (num_ranks() == 1 || plan_.one_host) return Status::Ok();
  TUTTI_ASSIGN(network_, OpenNet(process_.proxy(), settings_, *bootstrap_));
  return Status::Ok();
}

void Communicator::MakeExecutor() {
  std::unique_ptr<NetConnector> net;
  if (network_)
    net = MakeNetConnector(process_.proxy(), *bootstrap_, std::move(network_), device_,
                           plan_.slot_bytes, peers_, watch_->stop_flag(), *watch_);
  // A rank's place in the arena is its place among those of its machine.
  std::vector<int> local_index(static_cast<size_t>(num_ranks()), -1);
  const int my_leader = arena_leader_[static_cast<size_t>(rank())];
  for (size_t i = 0; i < local_ranks_.size(); ++i) {
    const auto r = static_cast<size_t>(local_ranks_[i]);
    if (arena_leader_[r] == my_leader) local_index[r] = static_cast<int>(i);
  }
  connections_ =
      std::make_unique<Connections>(rank(), std::move(local_index), arena_, std::move(net),
                                    static_cast<int64_t>(settings_.init_timeout_s * 1e9));
  if (plan_.one_host && num_ranks() > 1) {
    std::vector<StageView> stages;
    for (int i = 0; i < num_ranks(); ++i) stages.push_back(arena_.stage(i));
    stages_ = std::make_unique<StageGroup>(std::move(stages), local_ranks_, rank());
    std::vector<bool> same_process;
    std::vector<int> pids;
    for (const PeerInfo& info : peers_) {
      same_process.push_back(SameProcess(info, peers_[static_cast<size_t>(rank())]));
      pids.push_back(info.pid);
    }
    if (!settings_.p2p_disable)
      pull_ = std::make_unique<PullReach>(process_.memory(), process_.fd_server(), plan_.can_pull,
                                          std::move(same_process), std::move(pids));
  }
  executor_ = std::make_unique<Executor>(Executor::Parts{
      .rank = rank(),
      .num_ranks = num_ranks(),
      .plan = plan_,
      .ring = std::move(ring_),
      .connections = connections_.get(),
      .stages = stages_.get(),
      .pull = pull_.get(),
      .watch = watch_.get(),
      .wait_policy = WaitPolicyFor(settings_, plan_.oversubscribed),
  });
}

}  // namespace tutti
