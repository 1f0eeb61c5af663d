#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/rounding.h"
#include "sys/host.h"
#include "sys/huge_pages.h"
#include "sys/reserved_range.h"
#include "window/flat_space.h"

namespace tutti {
namespace {

// The most addresses of one communicator's flat spaces in a process: a 32nd of a process's
// addresses on x86-64, so that many communicators have room.
constexpr uint64_t kMostAddresses = uint64_t{4} << 40;

uint64_t RoundDown(uint64_t value, uint64_t unit) { return value / unit * unit; }

class HostFlatSpace final : public FlatSpace {
 public:
  HostFlatSpace(HostMemory& memory, FdServer& fd_server, uint64_t needed, uint64_t longest)
      : memory_(memory), fd_server_(fd_server), needed_(needed), longest_(longest) {}

  uint64_t NeededStride() const override { return needed_; }
  uint64_t LongestStride() const override { return longest_; }
  Status Reserve(uint64_t bytes) override {
    TUTTI_ASSIGN(range_, ReservedRange::Create(bytes));
    return Status::Ok();
  }
  std::byte* base() const override { return range_.data(); }
  // Huge pages lie alike in all mappings with this granularity.
  uint64_t granularity() const override { return kHugePageBytes; }

  Result<Allocation> Find(std::span<const std::byte> buffer) override {
    const auto found = memory_.Find(buffer.data(), buffer.size());
    if (!found && memory_.Find(buffer.data(), 1))
      return InvalidArgument("{} bytes at {} reach beyond their memory from ncclMemAlloc",
                             buffer.size(), fmt::ptr(buffer.data()));
    if (!found)
      return InvalidUsage(
          "the buffer at {} is not from ncclMemAlloc, and cannot be mapped elsewhere",
          fmt::ptr(buffer.data()));
    return Allocation{found->id, found->base, found->size, {found->size}};
  }
  Result<Allocation> Allocate(uint64_t bytes) override {
    TUTTI_ASSIGN(void* const memory, memory_.Allocate(bytes));
    return Find({static_cast<const std::byte*>(memory), bytes});
  }
  void Free(const Allocation& allocation) override {
    // Free fails only where the user has freed the memory of a window, and then nothing is left to
    // free.
    static_cast<void>(memory_.Free(allocation.base).ok());
  }
  Result<RemoteHandle> Export(const Allocation& allocation, size_t /*piece*/) override {
    return memory_.Export(allocation.id, fd_server_);
  }
  void EndExport(const RemoteHandle& /*handle*/) override {}  // An export ends with its allocation.

  Status Map(uint64_t at, const RemoteHandle& piece, const WaitLimits& limits) override {
    const char* const name = piece.server_name.data();
    TUTTI_ASSIGN(const UniqueFd fd, FetchFd(std::string_view(name, strnlen(name, kMaxFdServerName)),
                                            piece.offer_id, piece.key, limits));
    return range_.MapShared(at, fd, piece.size);
  }
  void Unmap(uint64_t at, uint64_t bytes) override { range_.Clear(at, bytes); }

 private:
  HostMemory& memory_;
  FdServer& fd_server_;
  const uint64_t needed_;
  const uint64_t longest_;
  ReservedRange range_;
};

}  // namespace

std::unique_ptr<FlatSpace> MakeHostFlatSpace(HostMemory& memory, FdServer& fd_server, int team_size,
                                             int ranks_here, uint64_t stride) {
  const uint64_t slices = static_cast<uint64_t>(team_size) * static_cast<uint64_t>(ranks_here);
  const uint64_t longest = std::max(kStrideUnit, RoundDown(kMostAddresses / slices, kStrideUnit));
  const uint64_t needed =
      std::max(kStrideUnit, RoundUp(stride > 0 ? stride : HostMemoryBytes(), kStrideUnit));
  return std::make_unique<HostFlatSpace>(memory, fd_server, needed, stride > 0 ? needed : longest);
}

}  // namespace tutti
