#include "transport/shm/arena.h"

#include <cstring>

#include "base/rounding.h"

namespace tutti {
namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kMagic = 0x31414E4554545554;  // "TUTTENA1"

struct Header {
  uint64_t magic;
  ArenaLayout layout;
};

}  // namespace

size_t ArenaLayout::StageStride() const { return RoundUp(StageView::BytesFor(stage_bytes), kPage); }
size_t ArenaLayout::FifoStride() const {
  return RoundUp(FifoView::BytesFor(fifo_slot_bytes), kPage);
}
size_t ArenaLayout::StageOffset(int rank) const {
  return kPage + static_cast<size_t>(rank) * StageStride();
}
// The FIFOs lie behind all stages, in the order of (from, to).
size_t ArenaLayout::FifoOffset(int from, int to) const {
  const size_t pair = static_cast<size_t>(from) * num_ranks + static_cast<size_t>(to);
  return StageOffset(static_cast<int>(num_ranks)) + pair * FifoStride();
}
size_t ArenaLayout::TotalBytes() const { return FifoOffset(static_cast<int>(num_ranks), 0); }
size_t ArenaLayout::DataBytes() const {
  return num_ranks * (StageDataBytes() + num_ranks * FifoDataBytes());
}

Arena Arena::Format(std::byte* base, const ArenaLayout& layout) {
  const Header header = {kMagic, layout};
  std::memcpy(base, &header, sizeof(header));
  return Arena(base, layout);
}

// The layout follows from settings that all ranks have exchanged, hence a difference means another
// build.
Result<Arena> Arena::Attach(std::byte* base, const ArenaLayout& expected) {
  Header header;
  std::memcpy(&header, base, sizeof(header));
  if (header.magic != kMagic || header.layout.num_ranks != expected.num_ranks ||
      header.layout.stage_bytes != expected.stage_bytes ||
      header.layout.fifo_slot_bytes != expected.fifo_slot_bytes) {
    return InternalError(
        "the shared memory offered by the first rank of this machine is not laid out as this rank "
        "expects ({} ranks, {} byte stages, {} byte slots): do all ranks run the same Tutti with "
        "the same NCCL_BUFFSIZE?",
        expected.num_ranks, expected.stage_bytes, expected.fifo_slot_bytes);
  }
  return Arena(base, expected);
}

}  // namespace tutti
