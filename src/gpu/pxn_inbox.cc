#include "gpu/pxn_inbox.h"

#include <algorithm>
#include <utility>

#include "base/rounding.h"
#include "connection/fifo.h"
#include "proxy/fifo_memory.h"

namespace tutti {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

PxnInbox::PxnInbox(std::vector<PxnLane> lanes, uint32_t threads, size_t slot_bytes)
    : lanes_(std::move(lanes)), threads_(threads), slot_bytes_(slot_bytes) {}

size_t PxnInbox::FifoBytes() const {
  return with_slots_ ? RoundUp(FifoView::BytesFor(slot_bytes_, kOpTagGapBytes), kPageBytes)
                     : RoundUp(kFifoDataOffset, kPageBytes);
}
size_t PxnInbox::FifosAt() const {
  return RoundUp(threads_ * sizeof(Doorbell) + lanes_.size() * sizeof(Announced), kPageBytes);
}

Status PxnInbox::Create(bool with_slots) {
  with_slots_ = with_slots;
  TUTTI_ASSIGN(memory_,
               SharedMemory::Create(FifosAt() + lanes_.size() * FifoBytes(), HugePages::kNo));
  return Status::Ok();
}

Status PxnInbox::Map(UniqueFd fd, bool with_slots) {
  with_slots_ = with_slots;
  TUTTI_ASSIGN(memory_, SharedMemory::Map(std::move(fd), FifosAt() + lanes_.size() * FifoBytes()));
  memory_.CloseFd();
  return Status::Ok();
}

std::optional<size_t> PxnInbox::Find(const PxnLane& lane) const {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(), [&](const PxnLane& one) {
    return one.from == lane.from && one.to == lane.to && one.channel == lane.channel;
  });
  if (found == lanes_.end()) return std::nullopt;
  return static_cast<size_t>(found - lanes_.begin());
}

std::span<std::byte> PxnInbox::fifo(size_t lane) const {
  return memory_.bytes().subspan(FifosAt() + lane * FifoBytes(), FifoBytes());
}

Doorbell& PxnInbox::doorbell(uint32_t thread) const {
  return reinterpret_cast<Doorbell*>(memory_.data())[thread];
}

PxnInbox::Announced& PxnInbox::AnnouncedAt(size_t lane) const {
  return reinterpret_cast<Announced*>(memory_.data() + threads_ * sizeof(Doorbell))[lane];
}

// Adds to `chunks` last, with release order. The owner reads `chunks` first, and then sees the
// bytes and the tag of the announcement.
void PxnInbox::Announce(size_t lane, uint64_t chunks, uint64_t bytes, uint32_t op_tag) const {
  Announced& announced = AnnouncedAt(lane);
  announced.op_tag.store(op_tag, std::memory_order_relaxed);
  announced.bytes.fetch_add(bytes, std::memory_order_relaxed);
  announced.chunks.fetch_add(chunks, std::memory_order_release);
  doorbell(ThreadOf(lane)).Ring();
}

void PxnInbox::Leave(int from) const {
  for (size_t lane = 0; lane < lanes_.size(); ++lane)
    if (lanes_[lane].from == from) AnnouncedAt(lane).left.store(1, std::memory_order_release);
  for (uint32_t thread = 0; thread < threads_; ++thread) doorbell(thread).Ring();
}

}  // namespace tutti
