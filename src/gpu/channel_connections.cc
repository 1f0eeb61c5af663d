#include "gpu/channel_connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/cuda/own_stream.h"
#include "base/log.h"
#include "base/rounding.h"
#include "gpu/pointers.h"
#include "plan/crossings.h"
#include "plan/plan.h"

namespace tutti {
namespace {

// The most memory of the GPU for slots of messages that the NIC writes and reads.
constexpr size_t kMostDirectMessageBytes = size_t{64} << 20;
// The shortest lent message. Kernels wait for the send of a lent message; short copies are faster.
constexpr size_t kFewestLentBytes = 32 << 10;
constexpr size_t kLineBytes = 128;  // A line of a GPU's cache.

// Return sizes inside a FIFO of a window. The headers of all slots come first, then the slots.
size_t HeadersBytes() { return sizeof(FifoSlotWords) * kFifoSlots; }
size_t FifoBytes(size_t slot_bytes) { return HeadersBytes() + kFifoSlots * slot_bytes; }

}  // namespace

ChannelConnections::ChannelConnections(const GpuPeers& peers, const ChannelShape& shape,
                                       ChannelRings rings, ChannelTrees trees,
                                       const GpuDirect& direct)
    : peers_(peers),
      shape_(shape),
      rings_(std::move(rings)),
      trees_(std::move(trees)),
      rank_(peers.bootstrap->rank()),
      num_ranks_(peers.bootstrap->num_ranks()),
      most_here_(HostLayoutOf(peers.machines.leader).most),
      direct_(direct) {}

Result<TriedWindows<ChannelConnections>> ChannelConnections::Create(
    const GpuPeers& peers, const ChannelShape& shape, ChannelRings rings, ChannelTrees trees,
    std::optional<WindowPlace> place, const GpuDirect& direct, const PxnRoutes& routes) {
  std::unique_ptr<ChannelConnections> made(
      new ChannelConnections(peers, shape, std::move(rings), std::move(trees), direct));
  if (place) {
    TUTTI_ASSIGN(GpuWindows::Shared shared, GpuWindows::Share(peers, *place, made->WindowBytes()));
    if (!shared.refusal.ok())
      return TriedWindows<ChannelConnections>{nullptr, std::move(shared.refusal)};
    made->windows_ = std::move(shared.windows);
  }
  made->routes_ = routes;
  if (routes.any()) {
    // Other ranks can use only slots that they can map.
    const bool on_gpus = place == WindowPlace::kPeerMemory;
    TUTTI_ASSIGN(made->pxn_,
                 PxnLanes::Share(peers, routes,
                                 {shape.message_channels, shape.channels, shape.message_slot_bytes},
                                 on_gpus ? direct : GpuDirect()));
    if (!made->pxn_) made->routes_ = PxnRoutes();
  }
  Status prepared = made->MakeWords();
  if (prepared.ok()) prepared = made->PinFirst();
  TUTTI_ASSIGN(const Agreement agreed, peers.Agree(prepared));
  TUTTI_TRY(agreed.refusal);
  return TriedWindows<ChannelConnections>{std::move(made), {}};
}

Status ChannelConnections::MakeWords() {
  const cuda::Device& device = *peers_.device;
  const std::span<const int> tables = rings_.tables();
  const size_t bytes = TablesAt() + tables.size_bytes();
  TUTTI_ASSIGN(words_, cuda::MappedMemory::Create(device, bytes, nullptr));
  const cuda::ManagingScope scope(device.driver(), device.context());
  TUTTI_ASSIGN(const cuda::OwnStream stream, cuda::OwnStream::Create(device));
  return stream.CopyIn(words_.address() + TablesAt(), tables.data(), tables.size_bytes());
}

// Pins the FIFOs that must exist before the first kernel: the FIFOs of the rings, the FIFOs of
// trees where AllReduces use trees unasked, and the FIFOs of messages among few ranks.
Status ChannelConnections::PinFirst() {
  const int n = num_ranks_;
  for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
    for (const bool sends : {true, false}) {
      const int way = sends ? 1 : -1;
      TUTTI_TRY(Get({rings_.RingNeighbour(channel, way), FifoUse::kRing, channel, sends}).status());
      if (HasTwoLevels())
        TUTTI_TRY(Get({rings_.RailNeighbour(way), FifoUse::kRing, channel, sends}).status());
    }
  }
  if (HasTrees() && n >= kFewestTreeRanks) TUTTI_TRY(PinTrees());
  for (int peer = 0; peer < n && n <= kFewRanks; ++peer) {
    if (peer == rank_) continue;
    for (uint32_t channel = 0; channel < shape_.message_channels; ++channel)
      for (const bool sends : {true, false})
        TUTTI_TRY(Get({peer, FifoUse::kMessages, channel, sends}).status());
  }
  return Status::Ok();
}

Status ChannelConnections::PinTrees() {
  for (uint32_t tree = 0; tree < trees_.size(); ++tree) {
    for (const TreeNode& node : trees_.Nodes(tree)) {
      for (const int peer : node.from)
        TUTTI_TRY(Get({peer, FifoUse::kTree, node.from_channel, /*sends=*/false}).status());
      for (const int peer : node.to)
        TUTTI_TRY(Get({peer, FifoUse::kTree, node.to_channel, /*sends=*/true}).status());
    }
  }
  return Status::Ok();
}

const void* ChannelConnections::Lend(std::span<std::byte> buffer) {
  const GpuDirect direct = this->direct();
  // Lending gains nothing on a network where processors copy the data, because slots stay in their
  // caches and long buffers do not (bench/results/gpu.md), nor on a network that would register the
  // buffer anew for each message.
  if (direct.net == nullptr ||
      !direct.net->devices()[static_cast<size_t>(direct.device)].shares_registrations)
    return nullptr;
  const GpuPointers pointers(*peers_.device, rank_, num_ranks_, /*thorough=*/false);
  // A managed page may move away, and the NIC would go on reading the old page.
  if (pointers.IsManaged(&buffer.front()) || pointers.IsManaged(&buffer.back())) return nullptr;
  const bool of_host = pointers.IsOfHost(&buffer.front()) && pointers.IsOfHost(&buffer.back());
  if (!of_host && !direct.sends) return nullptr;
  Result<NicMemory> made = of_host ? NicMemory::RegisterHost(direct, buffer)
                                   : NicMemory::Register(*peers_.device, direct, buffer);
  const std::string what =
      fmt::format("the {} bytes at {}", buffer.size(), fmt::ptr(buffer.data()));
  if (!made.ok()) {
    TUTTI_INFO(kLogNet, "what is sent from {} is copied: {}", what, made.status().message());
    return nullptr;
  }
  auto memory = std::make_shared<NicMemory>(std::move(made).value());
  TUTTI_INFO(kLogNet, "the NIC reads what is sent from {} where it lies, by {}", what,
             memory->way());
  const NetRegion* const region = &memory->region();
  return lent_.Add(std::shared_ptr<const NetRegion>(std::move(memory), region));
}

bool ChannelConnections::SendsByOwnNic(const Direction& direction) const {
  const int peer = direction.peer;
  if (InWindow(peer)) return false;
  return direction.use != FifoUse::kMessages ||
         (routes_.SenderOf(rank_, peer) == rank_ && routes_.NicOf(rank_, peer) < 0);
}

bool ChannelConnections::IsLent(const std::byte* data, size_t bytes) const {
  return bytes >= kFewestLentBytes && lent_.Find(data, bytes) != nullptr;
}

bool ChannelConnections::NeedsNetwork() const {
  if (!HasWindows()) return num_ranks_ > 1;
  return std::any_of(peers_.peers.begin(), peers_.peers.end(), [&](const PeerInfo& peer) {
    return peer.host_hash != peers_.peers[0].host_hash;
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Layouts

size_t ChannelConnections::HereIndex(int rank) const {
  const std::vector<int>& here = peers_.machines.here;
  return static_cast<size_t>(std::find(here.begin(), here.end(), rank) - here.begin());
}

// Every host lays out its windows for the host with most ranks. All windows are equally long.
size_t ChannelConnections::RingFifosAt() const {
  return kLineBytes * (shape_.channels + static_cast<size_t>(most_here_) * shape_.message_channels);
}
size_t ChannelConnections::MessageFifosAt() const {
  return RingFifosAt() + shape_.channels * FifoBytes(shape_.ring_slot_bytes);
}
size_t ChannelConnections::WindowBytes() const {
  return MessageFifosAt() + static_cast<size_t>(most_here_) * shape_.message_channels *
                                FifoBytes(shape_.message_slot_bytes);
}
size_t ChannelConnections::HeadAt(const Direction& direction, size_t consumer) const {
  const size_t line =
      direction.use == FifoUse::kRing
          ? direction.channel
          : shape_.channels + consumer * shape_.message_channels + direction.channel;
  return line * kLineBytes;
}
size_t ChannelConnections::FifoAt(const Direction& direction, size_t producer) const {
  if (direction.use == FifoUse::kRing)
    return RingFifosAt() + direction.channel * FifoBytes(shape_.ring_slot_bytes);
  return MessageFifosAt() + (producer * shape_.message_channels + direction.channel) *
                                FifoBytes(shape_.message_slot_bytes);
}

// Returns the number of connections between two ranks in each direction.
size_t ChannelConnections::EndsOfPair() const {
  return kFirstMessageNumber + shape_.message_channels;
}
size_t ChannelConnections::Number(const Direction& direction) const {
  return (static_cast<size_t>(direction.peer) * EndsOfPair() + NumberOfPair(direction)) * 2 +
         (direction.sends ? 1 : 0);
}
cuda::FifoCount* ChannelConnections::CountAt(size_t number) const {
  return reinterpret_cast<cuda::FifoCount*>(words_.data() + kCountsAt) + number;
}
size_t ChannelConnections::TablesAt() const {
  const size_t ends = static_cast<size_t>(num_ranks_) * EndsOfPair() * 2;
  return RoundUp(kCountsAt + ends * sizeof(cuda::FifoCount), kLineBytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// Ends

Result<ChannelConnections::End> ChannelConnections::Get(const Direction& direction) {
  if (InWindow(direction.peer)) {
    if (direction.use != FifoUse::kTree) return InWindows(direction);
    return InWindows({direction.peer, FifoUse::kRing, direction.channel, direction.sends});
  }
  TUTTI_ASSIGN(const std::optional<End> through, ThroughAnother(direction));
  if (through) return *through;
  return OverNetwork(direction);
}

ChannelConnections::End ChannelConnections::InWindows(const Direction& direction) const {
  const int producer = direction.sends ? rank_ : direction.peer;
  const int consumer = direction.sends ? direction.peer : rank_;
  std::byte* const fifo = windows_.of(consumer) + FifoAt(direction, HereIndex(producer));
  End end;
  end.fifo.head =
      reinterpret_cast<uint64_t*>(windows_.of(producer) + HeadAt(direction, HereIndex(consumer)));
  end.fifo.headers = reinterpret_cast<FifoSlotWords*>(fifo);
  end.fifo.data = fifo + HeadersBytes();
  end.fifo.slot_stride = static_cast<uint32_t>(SlotBytes(direction.use));
  end.fifo.count = CountAt(Number(direction));
  return end;
}

// Makes slots in memory of the GPU, within two limits. Short slots, as among many ranks, would
// waste a piece of GPU memory (DirectSlots::kFewestBytes). All slots of messages together have a
// limit too, because a rank may exchange messages with all ranks.
std::optional<DirectSlots> ChannelConnections::TryDirect(const Direction& direction) {
  GpuDirect direct = this->direct();
  const bool may = direction.sends ? direct.sends : direct.receives;
  const size_t bytes = kFifoSlots * SlotBytes(direction.use);
  if (direct.net == nullptr || !may || bytes < DirectSlots::kFewestBytes) return std::nullopt;
  const bool of_message = direction.use == FifoUse::kMessages;
  if (of_message && direct_message_bytes_ >= kMostDirectMessageBytes) return std::nullopt;
  if (direction.sends && of_message) {
    const int nic = routes_.NicOf(rank_, direction.peer);
    if (nic >= 0 && !routes_.IsNear(rank_, direction.peer)) return std::nullopt;
    if (nic >= 0) direct.device = nic;
  }
  Result<DirectSlots> made = DirectSlots::Create(*peers_.device, direct, bytes);
  if (made.ok()) {
    direct_bytes_ += made->device_bytes();
    if (of_message) direct_message_bytes_ += made->device_bytes();
    return std::move(made).value();
  }
  {
    const MutexLock lock(mutex_);
    (direction.sends ? direct_.sends : direct_.receives) = false;
  }
  TUTTI_WARN("rank {} {} by pinned memory of the host: {}", rank_,
             direction.sends ? "sends" : "receives", made.status().message());
  return std::nullopt;
}

Result<ChannelConnections::Pinned> ChannelConnections::MakeFifo(const Direction& direction) {
  std::optional<DirectSlots> slots = TryDirect(direction);
  const size_t bytes =
      slots ? kFifoDataOffset : FifoView::BytesFor(SlotBytes(direction.use), kOpTagGapBytes);
  TUTTI_ASSIGN(cuda::PinnedBlock memory, peers_.device->pinned().Take(bytes));
  std::memset(memory.data(), 0, kFifoDataOffset);
  pinned_bytes_ += memory.size();
  return Pinned{direction, std::move(memory), std::move(slots)};
}

// Returns this rank's end of a network connection. making_mutex_ is held throughout, and mutex_
// only to look into pinned_: pinning may wait for kernels, and a proxy thread must be able to look
// up FIFOs meanwhile.
Result<ChannelConnections::End> ChannelConnections::OverNetwork(const Direction& direction) {
  const size_t number = Number(direction);
  const auto end_of = [&](const Pinned& pinned) {
    End end = EndOf(pinned.memory.data(), pinned.slots ? pinned.slots->region().address : nullptr,
                    direction);
    end.proxied = number;
    return end;
  };
  const MutexLock making(making_mutex_);
  {
    const MutexLock lock(mutex_);
    const auto found = pinned_.find(number);
    if (found != pinned_.end()) return end_of(found->second);
  }
  TUTTI_ASSIGN(Pinned made, MakeFifo(direction));
  const MutexLock lock(mutex_);
  return end_of(pinned_.emplace(number, std::move(made)).first->second);
}

Result<std::optional<ChannelConnections::End>> ChannelConnections::ThroughAnother(
    const Direction& direction) {
  if (!pxn_ || !direction.sends || direction.use != FifoUse::kMessages) return std::optional<End>();
  const MutexLock making(making_mutex_);
  TUTTI_ASSIGN(const std::optional<PxnLanes::End> lane,
               pxn_->To(direction.peer, direction.channel));
  if (!lane) return std::optional<End>();
  End end = EndOf(lane->fifo, lane->slots, direction);
  end.inbox = lane->inbox;
  end.lane = lane->lane;
  return std::optional(std::move(end));
}

// Describes a FIFO in memory of the host. The slots of the FIFO may lie in memory of the GPU.
ChannelConnections::End ChannelConnections::EndOf(std::byte* base, std::byte* gpu_slots,
                                                  const Direction& direction) const {
  End end;
  end.fifo.head = reinterpret_cast<uint64_t*>(base);
  end.fifo.headers = reinterpret_cast<FifoSlotWords*>(base + kFifoHeadersOffset);
  end.fifo.data = gpu_slots != nullptr ? gpu_slots : base + kFifoDataOffset;
  end.fifo.slot_stride =
      static_cast<uint32_t>(SlotBytes(direction.use) + (gpu_slots != nullptr ? 0 : kOpTagGapBytes));
  end.fifo.count = CountAt(Number(direction));
  return end;
}

std::string ChannelConnections::DescribeDirect() const {
  const MutexLock lock(mutex_);
  const DirectSlots* receives = nullptr;
  const DirectSlots* sends = nullptr;
  for (const auto& [number, pinned] : pinned_)
    if (pinned.slots) (pinned.direction.sends ? sends : receives) = &*pinned.slots;
  if (receives == nullptr && sends == nullptr) return {};
  const DirectSlots& any = receives != nullptr ? *receives : *sends;
  return fmt::format("{}{}{} GPU memory by {}{}", receives != nullptr ? "into" : "",
                     receives != nullptr && sends != nullptr ? " and " : "",
                     sends != nullptr ? "from" : "", any.way(),
                     receives != nullptr && receives->needs_flush() ? " with a flush" : "");
}

ChannelConnections::NetFifo ChannelConnections::Proxied(size_t number) const {
  const MutexLock lock(mutex_);
  const Pinned& pinned = pinned_.at(number);
  const Direction& direction = pinned.direction;
  NetFifo fifo;
  fifo.end.peer = direction.peer;
  fifo.end.number = NumberOfPair(direction);
  if (direction.use == FifoUse::kMessages) {
    const int from = direction.sends ? rank_ : direction.peer;
    const int to = direction.sends ? direction.peer : rank_;
    fifo.end.number = WireNumber(from, to, direction.channel);
    if (direction.sends)
      fifo.nic = routes_.NicOf(from, to);
    else
      fifo.end.peer = routes_.SenderOf(from, to);
  }
  fifo.end.place.slot_bytes = SlotBytes(direction.use);
  fifo.end.place.memory = pinned.memory.data();
  if (pinned.slots) {
    fifo.end.place.slots = pinned.slots->region();
    fifo.end.place.flush = pinned.slots->needs_flush();
  }
  fifo.sends = direction.sends;
  if (direction.sends) fifo.end.place.lent = &lent_;
  return fifo;
}

std::set<int> ChannelConnections::OtherNics() const {
  std::set<int> nics;
  for (int to = 0; to < num_ranks_; ++to) {
    const int nic = routes_.NicOf(rank_, to);
    if (nic >= 0 && routes_.SenderOf(rank_, to) == rank_) nics.insert(nic);
  }
  return nics;
}

// Numbers the rings' channels and the trees first, then the messages that a rank sends for itself,
// and then the messages that the rank sends for each other rank.
uint32_t ChannelConnections::WireNumber(int from, int to, uint32_t channel) const {
  const bool by_itself = routes_.SenderOf(from, to) == from;
  const uint32_t block = by_itself ? 0 : 1 + static_cast<uint32_t>(from);
  return kFirstMessageNumber + block * shape_.message_channels + channel;
}

std::vector<ChannelConnections::Invited> ChannelConnections::ReceivedThroughOthers() const {
  std::vector<Invited> all;
  for (int from = 0; from < num_ranks_; ++from) {
    const int sender = routes_.SenderOf(from, rank_);
    for (uint32_t channel = 0; channel < shape_.message_channels && sender != from; ++channel) {
      Invited& one = all.emplace_back();
      one.channel = channel;
      one.number = Number({from, FifoUse::kMessages, channel, /*sends=*/false});
      one.end.peer = sender;
      one.end.number = WireNumber(from, rank_, channel);
    }
  }
  return all;
}

// ---------------------------------------------------------------------------------------------------------------------
// The connections of a KernelProxy

Status ProxiedConnections::InviteAhead(const ChannelConnections::Invited& receive) {
  invited_.insert(receive.number);
  return connectors_.at(-1)->Invite(receive.end);
}

// Sends all invitations before the first wait: ranks at the two ends never wait for each other.
Status ProxiedConnections::Open(const KernelOps& ops) {
  std::vector<size_t> missing;
  for (const KernelOp& op : ops.ops)
    if (Find(op.connection) == nullptr) missing.push_back(op.connection);
  for (const size_t number : missing) {
    const auto fifo = Fifo(number);
    if (!fifo.sends && !invited_.contains(number)) TUTTI_TRY(connectors_.at(-1)->Invite(fifo.end));
  }
  for (const bool sends : {true, false}) {
    for (const size_t number : missing) {
      const auto fifo = Fifo(number);
      if (fifo.sends != sends) continue;
      Result<std::unique_ptr<ProxyConnection>> made =
          sends
              ? connectors_.at(fifo.nic)->ConnectTo(fifo.end, Deadline::After(connect_timeout_ns_))
              : connectors_.at(-1)->AcceptFrom(fifo.end);
      TUTTI_TRY(made.status());
      connections_[number] = std::move(made).value();
    }
  }
  return Status::Ok();
}

ProxyConnection* ProxiedConnections::Find(size_t connection) {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? nullptr : found->second.get();
}

void ProxiedConnections::OnFailure(Status status) {
  std::optional<int> peer;
  for (const auto& [number, connection] : connections_)
    if (!peer && connection->status().code() == Code::kRemoteError) peer = Fifo(number).end.peer;
  watch_.Stop(watch_.FirstReason(std::move(status), peer), /*tell=*/true);
}

LaneConnections::LaneConnections(const ChannelConnections& fifos, Watch& watch,
                                 Connectors connectors, int64_t connect_timeout_ns, uint32_t thread)
    : ProxiedConnections(fifos, watch, std::move(connectors), connect_timeout_ns),
      fifos_(fifos),
      inbox_(fifos.pxn()->own()),
      thread_(thread) {
  for (size_t lane = 0; lane < inbox_->lanes().size(); ++lane)
    if (inbox_->ThreadOf(lane) == thread) lanes_.push_back({lane});
}

LaneConnections::~LaneConnections() {
  for (const Taken& taken : lanes_) {
    const PxnLane& lane = inbox_->lanes()[taken.lane];
    if (taken.chunks > 0)
      TUTTI_INFO(kLogNet, "sent for rank {} to rank {} (PXN): {} chunks of {} bytes together",
                 lane.from, lane.to, taken.chunks, taken.bytes);
  }
}

// Takes the chunks that senders have announced since the last call. `chunks` is read first, with
// acquire order, because a sender writes the bytes and the tag before `chunks`.
KernelOps LaneConnections::Take() {
  KernelOps ops;
  for (Taken& taken : lanes_) {
    const PxnInbox::Announced& announced = inbox_->announced(taken.lane);
    const uint64_t chunks = announced.chunks.load(std::memory_order_acquire);
    if (chunks == taken.chunks) continue;
    const uint64_t bytes = announced.bytes.load(std::memory_order_relaxed);
    ops.op_tag = announced.op_tag.load(std::memory_order_relaxed);
    ops.ops.push_back({taken.lane, chunks - taken.chunks, bytes - taken.bytes});
    taken.chunks = chunks;
    taken.bytes = bytes;
  }
  return ops;
}

bool LaneConnections::MayAnnounce() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const Taken& taken) {
    return inbox_->announced(taken.lane).left.load(std::memory_order_acquire) == 0;
  });
}

ChannelConnections::NetFifo LaneConnections::Fifo(size_t number) const {
  const PxnLane& lane = inbox_->lanes()[number];
  ChannelConnections::NetFifo fifo;
  fifo.end.peer = lane.to;
  fifo.end.number = fifos_.WireNumber(lane.from, lane.to, lane.channel);
  fifo.end.place.slot_bytes = inbox_->slot_bytes();
  fifo.end.place.memory = inbox_->fifo(number).data();
  fifo.end.place.slots = fifos_.pxn()->OwnSlots(number);
  fifo.sends = true;
  return fifo;
}

}  // namespace tutti
