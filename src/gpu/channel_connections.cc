#include "gpu/channel_connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/cuda/own_stream.h"
#include "base/log.h"
#include "base/rounding.h"

namespace tutti {
namespace {

constexpr size_t kLineBytes = 128;  // A line of a GPU's cache.

// Return the sizes in a FIFO of a window: the lines that announce its slots, and then the slots.
size_t HeadersBytes() { return sizeof(FifoSlotWords) * kFifoSlots; }
size_t FifoBytes(size_t slot_bytes) { return HeadersBytes() + kFifoSlots * slot_bytes; }

}  // namespace

ChannelConnections::ChannelConnections(const GpuPeers& peers, const ChannelShape& shape,
                                       ChannelRings rings, const GpuDirect& direct)
    : peers_(peers),
      shape_(shape),
      rings_(std::move(rings)),
      rank_(peers.bootstrap->rank()),
      num_ranks_(peers.bootstrap->num_ranks()),
      direct_(direct) {
  const uint64_t host = peers.peers[static_cast<size_t>(rank_)].host_hash;
  for (int r = 0; r < num_ranks_; ++r)
    if (peers.peers[static_cast<size_t>(r)].host_hash == host) here_.push_back(r);
  std::map<uint64_t, int> ranks;
  for (const PeerInfo& peer : peers.peers)
    most_here_ = std::max(most_here_, ++ranks[peer.host_hash]);
}

Result<TriedWindows<ChannelConnections>> ChannelConnections::Create(
    const GpuPeers& peers, const ChannelShape& shape, ChannelRings rings,
    std::optional<WindowPlace> place, const GpuDirect& direct) {
  std::unique_ptr<ChannelConnections> made(
      new ChannelConnections(peers, shape, std::move(rings), direct));
  if (place) {
    TUTTI_ASSIGN(GpuWindows::Shared shared, GpuWindows::Share(peers, *place, made->WindowBytes()));
    if (!shared.refusal.ok())
      return TriedWindows<ChannelConnections>{nullptr, std::move(shared.refusal)};
    made->windows_ = std::move(shared.windows);
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
  for (int peer = 0; peer < n && n <= kFewRanks; ++peer) {
    if (peer == rank_) continue;
    for (uint32_t channel = 0; channel < shape_.message_channels; ++channel)
      for (const bool sends : {true, false})
        TUTTI_TRY(Get({peer, FifoUse::kMessages, channel, sends}).status());
  }
  return Status::Ok();
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
  return static_cast<size_t>(std::find(here_.begin(), here_.end(), rank) - here_.begin());
}

// All hosts lay out their windows as the one with most ranks needs it, so that they are equally
// long.
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

size_t ChannelConnections::Number(const Direction& direction) const {
  const size_t of_pair = kMostGpuChannels + shape_.message_channels;
  const size_t slot =
      direction.use == FifoUse::kRing ? direction.channel : kMostGpuChannels + direction.channel;
  return (static_cast<size_t>(direction.peer) * of_pair + slot) * 2 + (direction.sends ? 1 : 0);
}
uint64_t* ChannelConnections::PassedAt(size_t number) const {
  return reinterpret_cast<uint64_t*>(words_.data() + kPassedAt) + number;
}
size_t ChannelConnections::TablesAt() const {
  const size_t ends =
      static_cast<size_t>(num_ranks_) * (kMostGpuChannels + shape_.message_channels) * 2;
  return RoundUp(kPassedAt + ends * sizeof(uint64_t), kLineBytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// Ends

Result<ChannelConnections::End> ChannelConnections::Get(const Direction& direction) {
  if (InWindow(direction.peer)) return InWindows(direction);
  return OverNetwork(direction);
}

ChannelConnections::End ChannelConnections::InWindows(const Direction& direction) const {
  const int producer = direction.sends ? rank_ : direction.peer;
  const int consumer = direction.sends ? direction.peer : rank_;
  std::byte* const fifo = windows_.of(consumer) + FifoAt(direction, HereIndex(producer));
  cuda::DeviceFifo end;
  end.head =
      reinterpret_cast<uint64_t*>(windows_.of(producer) + HeadAt(direction, HereIndex(consumer)));
  end.headers = reinterpret_cast<FifoSlotWords*>(fifo);
  end.data = fifo + HeadersBytes();
  end.slot_stride = SlotBytes(direction.use);
  end.passed = PassedAt(Number(direction));
  return {end, std::nullopt};
}

// Memory of the GPU serves only where the slots fill about a piece of it: among many ranks those of
// messages are short.
std::optional<DirectSlots> ChannelConnections::TryDirect(const Direction& direction) {
  bool& may = direction.sends ? direct_.sends : direct_.receives;
  const size_t bytes = kFifoSlots * SlotBytes(direction.use);
  if (direct_.net == nullptr || !may || bytes < DirectSlots::kFewestBytes) return std::nullopt;
  Result<DirectSlots> made = DirectSlots::Create(*peers_.device, direct_, bytes);
  if (made.ok()) {
    direct_bytes_ += made->device_bytes();
    return std::move(made).value();
  }
  may = false;
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

Result<ChannelConnections::End> ChannelConnections::OverNetwork(const Direction& direction) {
  const size_t number = Number(direction);
  const MutexLock lock(mutex_);
  auto found = pinned_.find(number);
  if (found == pinned_.end()) {
    TUTTI_ASSIGN(Pinned made, MakeFifo(direction));
    found = pinned_.emplace(number, std::move(made)).first;
  }
  const std::optional<DirectSlots>& slots = found->second.slots;
  std::byte* const base = found->second.memory.data();
  cuda::DeviceFifo end;
  end.head = reinterpret_cast<uint64_t*>(base);
  end.headers = reinterpret_cast<FifoSlotWords*>(base + kFifoHeadersOffset);
  end.data = slots ? slots->region().address : base + kFifoDataOffset;
  end.slot_stride = SlotBytes(direction.use) + (slots ? 0 : kOpTagGapBytes);
  end.passed = PassedAt(number);
  return End{end, number};
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
  fifo.end.number =
      direction.use == FifoUse::kRing ? direction.channel : kMostGpuChannels + direction.channel;
  fifo.end.place.slot_bytes = SlotBytes(direction.use);
  fifo.end.place.memory = pinned.memory.data();
  if (pinned.slots) {
    fifo.end.place.slots = pinned.slots->region();
    fifo.end.place.flush = pinned.slots->needs_flush();
  }
  fifo.sends = direction.sends;
  return fifo;
}

// ---------------------------------------------------------------------------------------------------------------------
// The connections of a KernelProxy

// All invitations go out before the first wait, so that no two ranks wait for each other as long as
// both ends of a connection are opening it.
Status ProxiedConnections::Open(const KernelOps& ops) {
  std::vector<size_t> missing;
  for (const KernelOp& op : ops.ops)
    if (Find(op.connection) == nullptr) missing.push_back(op.connection);
  for (const size_t number : missing) {
    const auto fifo = fifos_.Proxied(number);
    if (!fifo.sends) TUTTI_TRY(connector_->Invite(fifo.end));
  }
  for (const bool sends : {true, false}) {
    for (const size_t number : missing) {
      const auto fifo = fifos_.Proxied(number);
      if (fifo.sends != sends) continue;
      Result<std::unique_ptr<ProxyConnection>> made =
          sends ? connector_->ConnectTo(fifo.end, Deadline::After(connect_timeout_ns_))
                : connector_->AcceptFrom(fifo.end);
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
    if (!peer && connection->status().code() == Code::kRemoteError)
      peer = fifos_.Proxied(number).end.peer;
  watch_.Stop(watch_.FirstReason(std::move(status), peer), /*tell=*/true);
}

}  // namespace tutti
