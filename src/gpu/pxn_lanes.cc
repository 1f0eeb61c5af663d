#include "gpu/pxn_lanes.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "connection/fifo.h"

namespace tutti {

// Plans the inboxes that this rank fills, and its own inbox.
void PxnLanes::PlanInboxes() {
  const int rank = peers_.bootstrap->rank();
  const auto host = [&](int r) { return peers_.peers[static_cast<size_t>(r)].host_hash; };
  for (int via = 0; via < peers_.bootstrap->num_ranks(); ++via) {
    if (host(via) != host(rank)) continue;
    std::vector<PxnLane> lanes;
    bool concerned = false;
    for (const auto& [from, to] : routes_.PairsThrough(via)) {
      concerned |= via == rank || from == rank;
      for (uint32_t channel = 0; channel < shape_.channels; ++channel)
        lanes.push_back({from, to, channel});
    }
    if (concerned)
      inboxes_[via] =
          std::make_shared<PxnInbox>(std::move(lanes), shape_.threads, shape_.slot_bytes);
  }
}

size_t PxnLanes::LaneBytes() const { return kFifoSlots * shape_.slot_bytes; }

// Makes this rank's inbox, if other ranks send through this rank. Without GPU memory the slots are
// in shared memory of the host, which is slower but no failure.
Status PxnLanes::MakeOwn(const GpuDirect& direct, Offer& offer, UniqueFd& slots_fd) {
  const auto found = inboxes_.find(peers_.bootstrap->rank());
  if (found == inboxes_.end()) return Status::Ok();
  PxnInbox& inbox = *found->second;
  const size_t bytes = inbox.lanes().size() * LaneBytes();
  if (direct.net != nullptr && direct.sends && bytes <= kMostGpuBytes) {
    Result<DirectSlots> slots = DirectSlots::Create(*peers_.device, direct, bytes, &slots_fd);
    if (slots.ok())
      own_slots_ = std::move(slots).value();
    else
      TUTTI_WARN("rank {} sends for others by memory of the host: {}", peers_.bootstrap->rank(),
                 slots.status().message());
  }
  TUTTI_TRY(inbox.Create(/*with_slots=*/!own_slots_));
  offer.inbox = peers_.fd_server->Offer(inbox.fd(), peers_.key);
  if (!own_slots_) return Status::Ok();
  offer.slots = peers_.fd_server->Offer(slots_fd.get(), peers_.key);
  offer.slots_bytes = own_slots_->device_bytes();
  return Status::Ok();
}

Result<std::unique_ptr<PxnLanes>> PxnLanes::Share(const GpuPeers& peers, PxnRoutes routes,
                                                  const Shape& shape, const GpuDirect& direct) {
  std::unique_ptr<PxnLanes> made(new PxnLanes(peers, std::move(routes), shape));
  const int rank = peers.bootstrap->rank();
  made->PlanInboxes();
  JointStep<Offer> step(peers);
  UniqueFd slots_fd;
  Result<Agreement> agreed =
      step.ExchangeAndUse(made->MakeOwn(direct, step.mine(), slots_fd),
                          [&](std::span<const Offer> offers) { return made->MapOthers(offers); });
  for (const uint64_t descriptor : {step.mine().inbox, step.mine().slots})
    if (descriptor != 0) peers.fd_server->Withdraw(descriptor);
  TUTTI_TRY(agreed.status());
  if (agreed->go_on()) return made;
  if (rank == 0)
    TUTTI_WARN("GPUs do not send through one another (PXN): {}", agreed->refusal.message());
  return std::unique_ptr<PxnLanes>();
}

Status PxnLanes::Map(int owner, PxnInbox& inbox, const Offer& offer) {
  const auto rank = static_cast<size_t>(owner);
  TUTTI_ASSIGN(UniqueFd fd, peers_.Fetch(rank, offer.inbox));
  TUTTI_TRY(inbox.Map(std::move(fd), /*with_slots=*/offer.slots == 0));
  if (offer.slots == 0) return Status::Ok();
  TUTTI_ASSIGN(const UniqueFd slots, peers_.Fetch(rank, offer.slots));
  TUTTI_ASSIGN(slots_[owner], cuda::MappedMemory::Import(*peers_.device, slots, offer.slots_bytes));
  return Status::Ok();
}

Status PxnLanes::MapOthers(std::span<const Offer> offers) {
  for (const auto& [owner, inbox] : inboxes_) {
    const auto rank = static_cast<size_t>(owner);
    const Offer& offer = offers[rank];
    // The rank without an inbox reports its own failure.
    if (owner == peers_.bootstrap->rank() || offer.inbox == 0) continue;
    Status mapped = Map(owner, *inbox, offer);
    if (!mapped.ok())
      return std::move(mapped).Annotate(
          fmt::format("mapping what {} sends for others", peers_.NameOf(rank)));
  }
  return Status::Ok();
}

// Returns the end of this rank's lane to `peer`, pinned. Pinning waits until an operation needs the
// lane, because among many ranks most lanes are never used.
Result<std::optional<PxnLanes::End>> PxnLanes::To(int peer, uint32_t channel) {
  const int rank = peers_.bootstrap->rank();
  const int owner = routes_.SenderOf(rank, peer);
  if (owner == rank) return std::optional<End>();
  const auto& inbox = inboxes_.at(owner);
  const std::optional<size_t> lane = inbox->Find({rank, peer, channel});
  if (!lane) return InternalError("rank {} has no lane to rank {}", rank, peer);
  auto pinned = pinned_.find({owner, *lane});
  if (pinned == pinned_.end()) {
    const std::span<std::byte> fifo = inbox->fifo(*lane);
    TUTTI_ASSIGN(cuda::PinnedRange made, cuda::PinnedRange::Pin(*peers_.device, fifo));
    pinned = pinned_.emplace(std::pair(owner, *lane), std::move(made)).first;
    pinned_bytes_ += fifo.size();
  }
  const auto slots = slots_.find(owner);
  return std::optional<End>(
      {inbox, *lane, pinned->second.data(),
       slots == slots_.end() ? nullptr : slots->second.data() + *lane * LaneBytes()});
}

void PxnLanes::Leave() const {
  for (const auto& [owner, inbox] : inboxes_)
    if (owner != peers_.bootstrap->rank()) inbox->Leave(peers_.bootstrap->rank());
}

std::shared_ptr<const PxnInbox> PxnLanes::own() const {
  const auto found = inboxes_.find(peers_.bootstrap->rank());
  return found == inboxes_.end() ? nullptr : found->second;
}

NetRegion PxnLanes::OwnSlots(size_t lane) const {
  return own_slots_ ? own_slots_->Part(lane * LaneBytes(), LaneBytes()) : NetRegion{};
}

}  // namespace tutti
