#include "window/symmetric_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "nccl_device/impl/window_check.h"

namespace tutti {
namespace {

constexpr uint64_t kPage = NCCL_WIN_REQUIRED_ALIGNMENT;
// Offsets in a slice are counted in units of 4 KiB by 32 bits (ncclWindow_vidmem).
constexpr uint64_t kLongestStride = kPage << 32;

}  // namespace

SymmetricMemory::SymmetricMemory(Parts parts)
    : bootstrap_(*parts.bootstrap),
      peers_(parts.peers),
      team_(parts.team),
      space_(std::move(parts.space)),
      why_no_space_(std::move(parts.why_no_space)),
      records_(std::move(parts.records)),
      directory_(*parts.directory),
      table_(*records_) {}

SymmetricMemory::~SymmetricMemory() {
  const MutexLock lock(mutex_);
  for (const auto& window : windows_) Drop(*window);
}

// ---------------------------------------------------------------------------------------------------------------------
// Registration

Result<SymmetricMemory::Outcome> SymmetricMemory::Register(const Request& request,
                                                           const JointRanks& ranks) {
  Part part;
  JointStep<Offer> step(ranks);
  const Status could = Prepare(request, part, step.mine());
  {
    const MutexLock lock(mutex_);
    ShowGivenUp(step.mine());
  }
  const Result<Agreement> prepared = step.Exchange(could);
  Result<Outcome> outcome = prepared.ok() ? Conclude(request, ranks, *prepared, step.offers(), part)
                                          : Result<Outcome>(prepared.status());
  EndExports(part.exported);
  if (!outcome.ok() || outcome->window == nullptr) DropPart(part);
  return outcome;
}

// Finds or makes the memory of this rank's part, and describes the memory.
Status SymmetricMemory::Prepare(const Request& request, Part& part, Offer& offer) {
  TUTTI_TRY(Status(request.wrong));
  offer.flags = request.flags;
  offer.alike = request.alike;
  request.said.copy(offer.said.data(), offer.said.size());
  offer.bytes = request.bytes;
  offer.allocates = request.buffer == nullptr ? 1 : 0;
  Result<FlatSpace::Allocation> allocation = AllocationOf(request);
  if (!allocation.ok()) {
    const bool is_mistake = allocation.status().code() == Code::kInvalidArgument;
    if (request.buffer == nullptr || is_mistake) return allocation.status();
    offer.unmappable = StatusWire::Of(allocation.status());
    return Status::Ok();
  }
  part.allocation = *allocation;
  part.is_ours = request.buffer == nullptr;
  offer.needed_stride = space_->NeededStride();
  offer.longest_stride = space_->LongestStride();
  if (!part.is_ours) {
    offer.offset = static_cast<uint64_t>(request.buffer - part.allocation.base);
    if (offer.offset % kPage != 0)
      return InvalidArgument(
          "the buffer begins {} bytes into its memory, which is no multiple of {}", offer.offset,
          kPage);
    const MutexLock lock(mutex_);
    for (auto& [number, memory] : memories_)
      if (IsPartOf(part.allocation, memory)) part.number = number;
    if (part.number != 0) ++memories_.at(part.number).num_users;
    offer.memory = part.number;
  }
  offer.allocation_bytes = part.allocation.bytes;
  offer.num_pieces = part.allocation.pieces.size();
  TUTTI_ASSIGN(offer.allocation, space_->Export(part.allocation, 0));
  part.exported.push_back(offer.allocation);
  return Status::Ok();
}

// Returns whether all pieces of an allocation are mapped as pieces of `memory`, from the first on.
bool SymmetricMemory::IsPartOf(const FlatSpace::Allocation& allocation, const Memory& memory) {
  const std::vector<uint64_t>&pieces = allocation.pieces, &known = memory.own.pieces;
  return memory.own.id == allocation.id && pieces.size() <= known.size() &&
         std::equal(pieces.begin(), pieces.end(), known.begin());
}

void SymmetricMemory::EndExports(std::span<const RemoteHandle> exported) {
  for (const RemoteHandle& handle : exported) space_->EndExport(handle);
}

Result<FlatSpace::Allocation> SymmetricMemory::AllocationOf(const Request& request) const {
  if (space_ == nullptr) return why_no_space_;
  if (request.buffer == nullptr) return space_->Allocate(request.bytes);
  return space_->Find({request.buffer, request.bytes});
}

void SymmetricMemory::ShowGivenUp(Offer& offer) const {
  const size_t count = std::min(given_up_.size(), kGivenUpShown);
  std::copy_n(given_up_.begin(), count, offer.given_up.begin());
}

// Gives back the offsets at which no rank has anything mapped any more.
void SymmetricMemory::TakeBack(std::span<const Offer> offers) {
  for (const int64_t number : offers[0].given_up) {
    const bool by_all = std::all_of(offers.begin(), offers.end(), [&](const Offer& offer) {
      return std::find(offer.given_up.begin(), offer.given_up.end(), number) !=
             offer.given_up.end();
    });
    if (number == 0 || !by_all || given_up_.erase(number) == 0) continue;
    const auto extent = extents_.find(static_cast<int>(number));
    offsets_->GiveBack(extent->second.at, extent->second.bytes);
    extents_.erase(extent);
  }
}

// Returns the first difference of two texts, whose parts are separated by commas.
std::string SymmetricMemory::Difference(std::string_view one, std::string_view other) {
  const auto take = [](std::string_view* rest) {
    const std::string_view part = rest->substr(0, rest->find(','));
    rest->remove_prefix(std::min(rest->size(), part.size() + 1));
    return part;
  };
  while (!one.empty() || !other.empty()) {
    const std::string_view part = take(&one), others = take(&other);
    if (part != others) return fmt::format("{} instead of {}", part, others);
  }
  return "in a list of the requirements";
}

// Returns why the offers make no window; the same on all ranks.
Status SymmetricMemory::CheckOffers(std::span<const Offer> offers) const {
  const Status unmappable = FirstUnmappable(offers);
  for (size_t r = 0; r < offers.size(); ++r) {
    const std::string name = RankName(static_cast<int>(r), peers_[r]);
    if (Status wrong = CheckOffer(offers[r]); !wrong.ok()) return std::move(wrong).Annotate(name);
    if (offers[r].flags != offers[0].flags)
      return InvalidArgument(
          "the ranks register different windows: rank 0 with flags {:#x}, and {} with flags {:#x}",
          offers[0].flags, name, offers[r].flags);
    if (offers[r].alike != offers[0].alike)
      return InvalidArgument("{} asks for something else than rank 0: {}", name,
                             Difference(offers[r].SaidText(), offers[0].SaidText()));
    // The rank would not get the memory that it asked for, and could not tell.
    if (!unmappable.ok() && offers[r].allocates != 0) return unmappable;
    if (unmappable.ok() && offers[r].offset != offers[0].offset)
      return InvalidArgument(
          "the ranks register windows at different places of their memory: rank 0 {} bytes from "
          "its start, and {} {} bytes",
          offers[0].offset, name, offers[r].offset);
  }
  return Status::Ok();
}

// Checks for offers that break the protocol.
Status SymmetricMemory::CheckOffer(const Offer& offer) const {
  if (offer.bytes == 0 || offer.offset % kPage != 0)
    return RemoteError("it offers {} bytes at {}", offer.bytes, offer.offset);
  if (!offer.unmappable.ok()) return Status::Ok();
  const uint64_t size = offer.allocation_bytes, first = offer.allocation.size;
  const uint64_t pieces = offer.num_pieces;
  const bool several = pieces > 1 && space_ != nullptr && pieces <= size / space_->granularity();
  if (several ? first == 0 || first >= size : pieces != 1 || first != size)
    return RemoteError("it offers {} pieces of memory of {} bytes, of which the first has {}",
                       pieces, size, first);
  if (size > kLongestStride || offer.offset > size || offer.bytes > size - offer.offset)
    return RemoteError("it offers {} bytes at {} of memory of {}", offer.bytes, offer.offset, size);
  for (const uint64_t stride : {offer.needed_stride, offer.longest_stride})
    if (stride == 0 || stride % kStrideUnit != 0)
      return RemoteError("it asks for a stride of {} bytes", stride);
  return Status::Ok();
}

// Returns the reason of the first rank whose memory cannot be mapped by others.
Status SymmetricMemory::FirstUnmappable(std::span<const Offer> offers) const {
  for (size_t r = 0; r < offers.size(); ++r)
    TUTTI_TRY(offers[r].unmappable.From(static_cast<int>(r), peers_[r]));
  return Status::Ok();
}

// Fixes the length of a slice, at the first registration.
void SymmetricMemory::FixStride(std::span<const Offer> offers) {
  if (stride_ != 0) return;
  uint64_t needed = 0, longest = kLongestStride;
  for (const Offer& offer : offers) {
    needed = std::max(needed, offer.needed_stride);
    longest = std::min(longest, offer.longest_stride);
  }
  stride_ = std::min(needed, longest);
  offsets_.emplace(stride_);
}

// Comes to the same conclusions on all ranks. After the last exchange nothing can fail any more.
Result<SymmetricMemory::Outcome> SymmetricMemory::Conclude(const Request& request,
                                                           const JointRanks& ranks,
                                                           const Agreement& prepared,
                                                           std::span<const Offer> offers,
                                                           Part& part) {
  {
    const MutexLock lock(mutex_);
    TakeBack(offers);
  }
  if (!prepared.go_on()) return Outcome{.refusal = prepared.refusal};
  if (Status refusal = CheckOffers(offers); !refusal.ok()) return Outcome{.refusal = refusal};
  if (Status none = FirstUnmappable(offers); !none.ok()) return Outcome{.why_none = none};
  if (Status refusal = TakeMemory(offers, part); !refusal.ok()) return Outcome{.refusal = refusal};
  Status mapped;
  if (part.is_new) {
    mapped = MapFirstPieces(part.number, offers, ranks);
    TUTTI_TRY(MapFurtherPieces(offers, part, ranks, &mapped));
  }
  std::shared_ptr<const Window> window;
  const Status mine = [&]() -> Status {
    TUTTI_TRY(std::move(mapped));
    TUTTI_ASSIGN(window, MakeWindow(request, offers, part));
    return Status::Ok();
  }();
  const Result<Agreement> agreed = ranks.Agree(mine);
  const MutexLock lock(mutex_);
  if (agreed.ok() && agreed->go_on()) {
    directory_.Add(window);
    windows_.push_back(window);
    if (QuickWindow& place = QuickPlace(window->handle); place.handle.load() == nullptr) {
      place.window.store(window.get());
      place.handle.store(window->handle);
    }
    return Outcome{.window = window};
  }
  if (window != nullptr) DropRecord(*window);
  if (!agreed.ok()) return agreed.status();
  return Outcome{.refusal = agreed->refusal};
}

// Decides on the memory of the window. If all ranks bring parts of one mapped memory, the window is
// in that memory. Otherwise the window gets a new memory and takes offsets. Refuses alike on all
// ranks.
Status SymmetricMemory::TakeMemory(std::span<const Offer> offers, Part& part) {
  const MutexLock lock(mutex_);
  FixStride(offers);
  const bool all_have_it = std::all_of(offers.begin(), offers.end(), [&](const Offer& offer) {
    return offer.memory != 0 && offer.memory == offers[0].memory;
  });
  if (all_have_it) return Status::Ok();
  if (const int found = std::exchange(part.number, 0); found != 0) DropUser(found);
  uint64_t largest = 0;
  for (const Offer& offer : offers) largest = std::max(largest, offer.allocation_bytes);
  const uint64_t unit = space_->granularity();
  const uint64_t bytes = (largest + unit - 1) / unit * unit;
  const std::optional<uint64_t> at = offsets_->Take(bytes, unit);
  if (!at)
    return InvalidUsage(
        "{} bytes of windows do not fit beside {} into the {} that each rank has addresses for "
        "(NCCL_WIN_STRIDE)",
        bytes, offsets_->taken(), stride_);
  part.number = ++num_memories_;
  part.is_new = true;
  extents_[part.number] = {*at, bytes};
  memories_[part.number] = {
      .own = part.allocation,
      .is_ours = std::exchange(part.is_ours, false),
      .extent = {*at, bytes},
      .mapped = std::vector<std::vector<uint64_t>>(static_cast<size_t>(team_.size)),
      .num_users = 1};
  return Status::Ok();
}

Result<std::shared_ptr<const Window>> SymmetricMemory::MakeWindow(const Request& request,
                                                                  std::span<const Offer> offers,
                                                                  const Part& part) {
  const MutexLock lock(mutex_);
  auto window = std::make_shared<Window>();
  window->flags = request.flags;
  for (const Offer& offer : offers) window->bytes.push_back(offer.bytes);
  window->team = team_;
  window->own = {request.buffer != nullptr ? request.buffer : part.allocation.base, request.bytes};
  window->memory = part.number;
  window->offset = offers[0].offset;
  window->stride = stride_;
  window->slice_offset = memories_.at(part.number).extent.at + window->offset;
  window->flat_base = space_->base() + window->slice_offset;
  const size_t bytes = WholeRecordOf(*window).size();
  TUTTI_ASSIGN(void* const memory, records_->Allocate(bytes));
  window->handle = static_cast<ncclWindow_t>(memory);
  Status written = table_.Add(
      {reinterpret_cast<uintptr_t>(window->own.data()), window->own.size(), window->handle});
  if (written.ok()) written = records_->Write(memory, WholeRecordOf(*window));
  if (written.ok()) return std::shared_ptr<const Window>(window);
  static_cast<void>(table_.Remove(window->handle).ok());
  records_->Free(memory);
  return written;
}

ncclWindow_vidmem SymmetricMemory::RecordOf(const Window& window) const {
  ncclWindow_vidmem record = {};
  record.winHost = const_cast<Window*>(&window);
  record.lsaFlatBase = reinterpret_cast<char*>(window.flat_base);
  record.lsaRank = team_.place;
  record.worldRank = bootstrap_.rank();
  record.stride4G = static_cast<uint32_t>(window.stride / kStrideUnit);
  record.mcOffset4K = static_cast<uint32_t>(window.slice_offset / kPage);
  record.ginOffset4K = static_cast<uint32_t>(window.offset / kPage);
  // The proxy of GIN finds a window by its record, whatever the connection.
  for (ncclGinWindow_t& name : record.ginWins) name = window.handle;
  record.numSegments = 1;
  return record;
}

Status SymmetricMemory::SetGinName(const Window& window, ncclGinWindow_t name) {
  std::array<ncclGinWindow_t, NCCL_GIN_MAX_CONNECTIONS> names;
  names.fill(name);
  const MutexLock lock(mutex_);
  return records_->Write(
      reinterpret_cast<std::byte*>(window.handle) + offsetof(ncclWindow_vidmem, ginWins),
      std::as_bytes(std::span(names)));
}

// Returns the record and the parts behind it, in the layout of the memory that kernels read.
std::vector<std::byte> SymmetricMemory::WholeRecordOf(const Window& window) const {
  using Behind = device::WindowParts;
  const ncclWindow_vidmem record = RecordOf(window);
  std::vector<std::byte> whole;
  const auto put = [&whole](size_t at, const auto& value) {
    whole.resize(std::max(whole.size(), at + sizeof(value)));
    std::memcpy(&whole[at], &value, sizeof(value));
  };
  put(0, record);
  put(Behind::kFirstMarkAt, uint32_t{Behind::kFirstMark});
  put(Behind::kSecondMarkAt, uint32_t{Behind::kSecondMark});
  put(Behind::kAt, Behind{table_.first()});
  for (size_t place = 0; place < static_cast<size_t>(team_.size); ++place)
    put(Behind::kAt + sizeof(Behind) + place * sizeof(uint64_t),
        window.bytes[static_cast<size_t>(team_.first) + place]);
  put(whole.size(), uint64_t{Behind::kEnd});
  return whole;
}

// ---------------------------------------------------------------------------------------------------------------------
// The end of windows

// Gives back everything that a failed registration has taken.
void SymmetricMemory::DropPart(Part& part) {
  const MutexLock lock(mutex_);
  if (part.is_ours) space_->Free(part.allocation);
  if (part.number != 0) DropUser(part.number);
  part = {};
}

// The memory goes with its last user. The memory's offsets stay taken until all ranks have given
// them up.
void SymmetricMemory::DropUser(int number) {
  const auto found = memories_.find(number);
  Memory& memory = found->second;
  if (--memory.num_users > 0) return;
  for (int place = 0; place < team_.size; ++place) {
    uint64_t at = SliceOf(place) + memory.extent.at;
    for (const uint64_t bytes : memory.mapped[static_cast<size_t>(place)]) {
      space_->Unmap(at, bytes);
      at += bytes;
    }
  }
  if (memory.is_ours) space_->Free(memory.own);
  memories_.erase(found);
  given_up_.insert(number);
}

void SymmetricMemory::DropRecord(const Window& window) {
  // The table cannot be written when the device is gone. No kernel reads the table then.
  static_cast<void>(table_.Remove(window.handle).ok());
  records_->Free(window.handle);
}

void SymmetricMemory::Drop(const Window& window) {
  directory_.Remove(window.handle);
  DropRecord(window);
  DropUser(window.memory);
}

Result<size_t> SymmetricMemory::IndexOf(ncclWindow_t handle) const {
  for (size_t i = 0; i < windows_.size(); ++i)
    if (windows_[i]->handle == handle) return i;
  if (handle == nullptr) return InvalidArgument("the window is null, so there is none");
  return InvalidArgument("the window is none of this communicator, or has been deregistered");
}

Status SymmetricMemory::Deregister(ncclWindow_t handle) {
  const MutexLock lock(mutex_);
  TUTTI_ASSIGN(const size_t index, IndexOf(handle));
  if (QuickWindow& place = QuickPlace(handle); place.handle.load() == handle)
    place.handle.store(nullptr);
  Drop(*windows_[index]);
  windows_.erase(windows_.begin() + static_cast<ptrdiff_t>(index));
  return Status::Ok();
}

Result<std::shared_ptr<const Window>> SymmetricMemory::Find(ncclWindow_t handle) const {
  const MutexLock lock(mutex_);
  TUTTI_ASSIGN(const size_t index, IndexOf(handle));
  return windows_[index];
}

SymmetricMemory::QuickWindow& SymmetricMemory::QuickPlace(ncclWindow_t handle) const {
  return quick_[reinterpret_cast<uintptr_t>(handle) / alignof(std::max_align_t) % kQuickWindows];
}

Result<const Window*> SymmetricMemory::Lookup(ncclWindow_t handle) const {
  const QuickWindow& place = QuickPlace(handle);
  if (handle != nullptr && place.handle.load(std::memory_order_acquire) == handle)
    return place.window.load(std::memory_order_relaxed);
  TUTTI_ASSIGN(const std::shared_ptr<const Window> found, Find(handle));
  return found.get();
}

Result<std::byte*> SymmetricMemory::OwnAt(uint64_t slice_offset, uint64_t bytes) const {
  const MutexLock lock(mutex_);
  const Window* begins_in = nullptr;
  for (const auto& window : windows_) {
    const uint64_t at = slice_offset - window->slice_offset;
    if (slice_offset < window->slice_offset) continue;
    if (window->Holds(bootstrap_.rank(), at, bytes)) return window->At(team_.place, at);
    if (window->Holds(bootstrap_.rank(), at, 1)) begins_in = window.get();
  }
  if (begins_in != nullptr)
    return InvalidArgument("{} bytes at {} do not lie in the window {}, which has {}", bytes,
                           slice_offset - begins_in->slice_offset,
                           static_cast<const void*>(begins_in->handle), begins_in->own.size());
  return InvalidArgument(
      "{} bytes at {:#x} of the addresses of windows lie in no window of this rank, or in one that "
      "has been deregistered here",
      bytes, slice_offset);
}

std::shared_ptr<const Window> SymmetricMemory::FindOwn(std::span<const std::byte> bytes) const {
  const MutexLock lock(mutex_);
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  for (const auto& window : windows_) {
    const auto first = reinterpret_cast<uintptr_t>(window->own.data());
    if (begin >= first && begin - first <= window->own.size() &&
        bytes.size() <= window->own.size() - (begin - first))
      return window;
  }
  return nullptr;
}

ncclDevCommWindowTable* SymmetricMemory::table() const {
  const MutexLock lock(mutex_);
  return table_.first();
}

}  // namespace tutti
