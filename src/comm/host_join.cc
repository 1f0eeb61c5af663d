#include "comm/host_join.h"

#include <algorithm>

#include "base/erased.h"
#include "base/log.h"
#include "bootstrap/auth.h"
#include "comm/reach.h"
#include "operations/net_connector.h"
#include "operations/networks.h"

namespace tutti {
namespace {

// The size of one piece of a stage: two pieces and the user's buffers stay in a 2 MB L2 cache.
constexpr size_t kStageBytes = 128 << 10;
// The size of a FIFO's slot. Within one machine eight slots stay in L2. Between machines the slots
// must cover the link's latency (NCCL's own buffer is 4 MB in eight steps).
constexpr size_t kLocalSlotBytes = 64 << 10;
constexpr size_t kNetSlotBytes = 512 << 10;

// A wait spins for this time when every rank has a processor of its own, and then yields.
constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kYieldNs = 500'000;

WaitPolicy WaitPolicyFor(const Settings& settings, bool oversubscribed) {
  WaitPolicy policy;
  policy.spin_ns = oversubscribed ? 0 : kSpinNs;
  policy.yield_ns = kYieldNs;
  if (settings.spin_us >= 0) policy.spin_ns = settings.spin_us * 1000;
  return policy;
}

}  // namespace

FdKey OfferKey(const Bootstrap& bootstrap) {
  ErasedText text(fmt::format("key of the offers of communicator {:016x} ", bootstrap.id()));
  const Key& job = bootstrap.key_holder().key;
  text.append(reinterpret_cast<const char*>(job.data()), job.size());
  return KeyFromText(text);
}

size_t FifoSlotBytes(const Settings& settings, size_t usual) {
  constexpr size_t kPage = 4096;
  if (settings.buffsize <= 0) return usual;
  return std::max(kPage, static_cast<size_t>(settings.buffsize) / kFifoSlots / kPage * kPage);
}

void WarnOfEmptyLists(const Settings& settings, const PlanContext& lists) {
  if (LeavesNothing(settings.algo, lists.allowed_algorithms))
    TUTTI_WARN("NCCL_ALGO={} names nothing that is there on hosts, and has no effect",
               settings.algo);
  if (LeavesNothing(settings.proto, lists.allowed_protocols))
    TUTTI_WARN("NCCL_PROTO={} names nothing that is there on hosts, and has no effect",
               settings.proto);
}

HostJoin::HostJoin(const JoinContext& context) : context_(context) {
  parts_.plan = context.lists;
  parts_.profiler = Profiler::Load(
      context.settings,
      {context.bootstrap.id(), context.name, num_ranks(), HostCount(context.peers), rank()});
}

ArenaLayout HostJoin::LayoutFor(size_t ranks_here) const {
  ArenaLayout layout;
  layout.num_ranks = static_cast<uint32_t>(ranks_here);
  layout.stage_bytes = one_host_expected_ ? kStageBytes : 0;
  layout.fifo_slot_bytes = FifoSlotBytes(
      context_.settings, one_host_expected_ || Alone() ? kLocalSlotBytes : kNetSlotBytes);
  return layout;
}

// Makes the arena and offers the arena to the ranks of this machine.
Status HostJoin::OfferArena(const ArenaLayout& layout, HugePages huge) {
  SharedArena& arena = parts_.arena;
  TUTTI_ASSIGN(arena.memory, SharedMemory::Create(layout.TotalBytes(), huge));
  arena.arena = Arena::Format(arena.memory.data(), layout);
  arena.fd_server = &context_.process.fd_server();
  arena.offer = arena.fd_server->Offer(arena.memory.fd(), OfferKey(context_.bootstrap));
  return Status::Ok();
}

// Maps the arena of `leader`.
Status HostJoin::AttachArena(int leader, uint64_t offer, const ArenaLayout& layout, HugePages huge,
                             bool* no_descriptors) {
  const JointRanks ranks = {&context_.bootstrap, context_.peers, context_.deadline,
                            context_.abort_flag};
  const auto follow = ranks.FollowWait("the shared memory of", static_cast<size_t>(leader));
  TUTTI_ASSIGN(UniqueFd fd, FetchFd(peer(leader).fd_server, offer, OfferKey(context_.bootstrap),
                                    ranks.limits(follow), no_descriptors));
  TUTTI_ASSIGN(parts_.arena.memory, SharedMemory::Map(std::move(fd), layout.TotalBytes(), huge));
  // Only the leader offers the descriptor to others, so that this rank can close its own. One
  // descriptor fewer for each rank matters where hundreds of ranks are in one process.
  parts_.arena.memory.CloseFd();
  TUTTI_ASSIGN(parts_.arena.arena, Arena::Attach(parts_.arena.memory.data(), layout));
  return Status::Ok();
}

// Takes three steps together with the other ranks. The lowest rank of each machine makes an arena.
// All ranks learn the offers and try to map the arena of their machine. All ranks learn who could.
// A rank that could not is a machine of its own from then on.
Status HostJoin::ShareMemory() {
  std::vector<int> group = MemorySharersOf(rank(), context_.peers);
  one_host_expected_ = std::all_of(
      context_.peers.begin(), context_.peers.end(),
      [&](const PeerInfo& p) { return p.host_hash == peer(0).host_hash && !p.shm_disabled; });
  const ArenaLayout layout = LayoutFor(group.size());
  parts_.plan.host.slot_bytes = layout.fifo_slot_bytes;
  parts_.plan.host.stage_bytes = layout.stage_bytes;

  const int leader = group[0];
  const HugePages huge = context_.settings.huge_pages ? HugePages::kAdvise : HugePages::kNo;
  JointStep<uint64_t> offers(context_.ranks());
  if (leader == rank() && group.size() > 1) {
    TUTTI_TRY(OfferArena(layout, huge));
    offers.mine() = parts_.arena.offer;
  }
  // A peer reads this rank's memory only after the exchange.
  if (MayCopy(group, context_.peers)) parts_.copy_permit = context_.process.copy_permits().Take();
  TUTTI_TRY(offers.Exchange());

  JointStep<ShareResult> results(context_.ranks());
  ShareResult& mine = results.mine();
  mine.leader = rank();
  if (leader != rank()) {
    bool no_descriptors = false;
    const uint64_t offer = offers.offers()[static_cast<size_t>(leader)];
    const Status attached = AttachArena(leader, offer, layout, huge, &no_descriptors);
    // This rank has no descriptors left, and sockets would need more of them.
    if (no_descriptors) return attached;
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
  mine.asks_topology = TopologyMatters(context_.settings, AskAboutHost(context_, group));
  TUTTI_TRY(results.Exchange());
  for (const ShareResult& result : results.offers())
    parts_.machines.leader.push_back(result.leader);
  TUTTI_TRY(
      CheckLeaders(parts_.machines.leader, context_.peers, context_.settings.strict_transport));
  parts_.machines.here = std::move(group);
  ConcludeSharing(results.offers());
  if (!parts_.plan.host.can_pull) parts_.copy_permit.reset();
  return Status::Ok();
}

// Derives the parameters of the plan from the results of all ranks; the same on every rank.
void HostJoin::ConcludeSharing(std::span<const ShareResult> results) {
  const auto all = [&](auto holds) { return std::all_of(results.begin(), results.end(), holds); };
  PlanContext& plan = parts_.plan;
  plan.num_ranks = num_ranks();
  plan.host.one_host =
      one_host_expected_ && all([](const ShareResult& r) { return r.leader == 0; });
  plan.host.oversubscribed = FewestCpusOfARank(context_.peers) < 1;
  plan.host.can_pull =
      plan.host.one_host && all([](const ShareResult& r) { return r.can_pull != 0; });
  topology_matters_ =
      !plan.host.one_host || !all([](const ShareResult& r) { return r.asks_topology == 0; });
}

// Proves that this rank can read the memory of the next rank of its machine. All ranks can read one
// another if each can read its neighbour.
bool HostJoin::CanReadPeers(std::span<const int> group) const {
  const auto self = std::find(group.begin(), group.end(), rank());
  const int next = self + 1 == group.end() ? group.front() : self[1];
  const Status why = CheckMayRead(peer(rank()), peer(next));
  if (why.ok()) return true;
  TUTTI_INFO(kLogInit | kLogShm,
             "{} cannot read the memory of {}, so data is copied through shared memory: {}",
             RankName(rank(), peer(rank())), RankName(next, peer(next)), why.message());
  return false;
}

Status HostJoin::OpenNetwork() {
  if (Alone() || parts_.plan.host.one_host) return Status::Ok();
  TUTTI_ASSIGN(network_, OpenNet(context_.process.proxy(), context_.settings, context_.ranks(),
                                 parts_.profiler));
  return Status::Ok();
}

std::unique_ptr<HostOperations> HostJoin::MakeOperations() {
  const Settings& settings = context_.settings;
  if (network_) {
    parts_.network = std::move(network_);
    parts_.one_sided_network = ChooseOneSided(context_.process.proxy(), settings,
                                              context_.bootstrap, parts_.network, network_device_);
    parts_.net = MakeNetConnector(context_.process.proxy(), context_.bootstrap, parts_.network,
                                  network_device_, parts_.plan.host.slot_bytes, context_.peers,
                                  context_.watch.stop_flag(), context_.watch);
  }
  parts_.rank = rank();
  parts_.peers = context_.peers;
  parts_.tuner = context_.tuner;
  parts_.memory = &context_.process.memory();
  parts_.fd_server = &context_.process.fd_server();
  parts_.watch = &context_.watch;
  parts_.wait_policy = WaitPolicyFor(settings, parts_.plan.host.oversubscribed);
  parts_.may_pull = !settings.p2p_disable;
  parts_.timeout_s = settings.timeout_s;
  parts_.connect_timeout_s = settings.init_timeout_s;
  return std::make_unique<HostOperations>(std::move(parts_));
}

Result<std::unique_ptr<Operations>> JoinHosts(const JoinContext& context, JoinTimes& times) {
  HostJoin join(context);
  const int64_t start_ns = NowNs();
  TUTTI_TRY(join.ShareMemory());
  const int64_t memory_ns = NowNs();
  TUTTI_TRY(join.OpenNetwork());
  const int64_t network_ns = NowNs();
  TUTTI_TRY(join.ChooseByTopology());
  times = {memory_ns - start_ns, network_ns - memory_ns, NowNs() - network_ns};
  return std::unique_ptr<Operations>(join.MakeOperations());
}

}  // namespace tutti
