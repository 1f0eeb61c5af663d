#pragma once

// GpuWindows are the windows of a communicator of GPUs: memory of each rank in which all ranks of
// its host write, at the addresses seen by this rank's GPU.
//
//   peer memory          memory of the GPUs (over NVLink, or PCIe where they reach one another)
//   peer memory by IPC   the same, shared in CUDA's older way (backend/cuda/ipc_memory.h), where
//                        the newer way fails
//   host memory          shared between the processes and pinned, for GPUs that do not reach one
//                        another
//
// Kernels treat all places alike. Kernels may work in host memory across PCIe for three reasons:
// - Kernels use no atomic operations there, because PCIe may not carry them. Each word has one
//   writer, and a flag is a plain 8-byte store at system scope.
// - A writer's fence (acq_rel at system scope) waits until the earlier stores have reached the
//   host's memory, in any order of PCIe; only then is the flag stored. The reader's acquire at
//   system scope makes the reader's GPU forget cached host memory.
// - A flagged line's word of 8 bytes, aligned, is not torn: no bridge cuts within 8 bytes.
// NCCL's own transport through shared memory rests on the same three reasons.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/cuda/ipc_memory.h"
#include "backend/cuda/memory.h"
#include "base/erased.h"
#include "base/status.h"
#include "operations/agreement.h"
#include "operations/operations.h"
#include "operations/peer_info.h"
#include "sys/fd_server.h"
#include "sys/shared_memory.h"

namespace tutti {

enum class WindowPlace : uint8_t { kPeerMemory, kPeerMemoryByIpc, kHostMemory };
std::string_view Name(WindowPlace place);  // "GPU memory", "GPU memory by CUDA IPC", "host memory"
constexpr bool IsOnGpu(WindowPlace place) { return place != WindowPlace::kHostMemory; }

// Holds the object made over windows in one place, or null and the reason why the place does not
// serve: windows could not be mapped, or data written through windows did not arrive. All ranks
// have the same result.
template <class T>
struct TriedWindows {
  std::unique_ptr<T> made;
  Status refusal;
};

// The ranks of a communicator of GPUs, and what a rank needs to share memory with the others.
struct GpuPeers : JointRanks {
  const cuda::Device* device = nullptr;
  FdServer* fd_server = nullptr;
  Erased<FdKey> key = {};
  MachineMap machines;

  // Fetches a descriptor that `rank` offers.
  Result<UniqueFd> Fetch(size_t rank, uint64_t descriptor) const {
    const auto follow = FollowWait("the shared memory of", rank);
    return FetchFd(FdServerOf(peers[rank]), descriptor, key, limits(follow));
  }
  int OthersHere() const { return static_cast<int>(machines.here.size()) - 1; }
};

class GpuWindows {
 public:
  // Makes the windows and maps the windows of this rank's host. All ranks call Share alike, with
  // the same size. Where some rank could not map a window of its host, the windows are empty and
  // another place may be tried. Fails when the ranks cannot talk.
  struct Shared;
  static Result<Shared> Share(const GpuPeers& peers, WindowPlace place, size_t bytes);

  // Returns a rank's window, or null without windows and for ranks of other hosts.
  std::byte* of(int rank) const {
    return windows_.empty() ? nullptr : windows_[static_cast<size_t>(rank)];
  }
  WindowPlace place() const { return place_; }
  // Returns whether all windows are GPU memory that all ranks reach by NVLink; the same on all
  // ranks.
  bool by_nvlink() const { return by_nvlink_; }
  // Give the memory of the windows back and take memory again, at the same addresses
  // (gpu/memory_phases.cc). All ranks of the communicator call each function alike, when nothing
  // works in the windows. The ranges `kept` of this rank's own window come back unchanged, and the
  // rest as zeroes. Where a rank cannot have memory again, all ranks learn the failure and stay
  // suspended.
  struct Range {
    size_t at = 0;
    size_t bytes = 0;
  };
  Status CheckCanGiveBack() const;
  Status GiveBackMemory(const GpuPeers& peers, std::span<const Range> kept);
  Result<Agreement> TakeBackMemory(const GpuPeers& peers);

  uint64_t DeviceBytes() const { return device_memory_.size() + ipc_memory_.size(); }
  uint64_t PinnedBytes() const { return host_memory_.size(); }

 private:
  // Describes a rank's window to the other ranks.
  struct Offer {
    uint64_t made = 0;        // 1: the rank has made its window.
    uint64_t descriptor = 0;  // The window's number at the descriptor server, if any.
    uint64_t bytes = 0;
    uint64_t by_nvlink = 0;  // 1: the rank reaches all others by NVLink.
    uint64_t address = 0;    // The window's address and name for CUDA IPC.
    cuda::IpcHandle handle;
  };
  size_t bytes() const { return device_memory_.size() + ipc_memory_.size() + host_memory_.size(); }
  // Makes this rank's window. The caller keeps `*fd` until all ranks have the offered memory.
  Status MakeOwn(const GpuPeers& peers, size_t bytes, Offer* offer, UniqueFd* fd);
  Status MapAll(const GpuPeers& peers, std::span<const Offer> offers);
  void GiveBack(const GpuPeers& peers, bool ranks_talk);
  // Calls f(rank, offer) for the other ranks of this host that offer memory.
  static Status ForOthersHere(const GpuPeers& peers, std::span<const Offer> offers,
                              const std::function<Status(int, const Offer&)>& f);
  Status TakeOwnAgain(const GpuPeers& peers, Offer* offer, UniqueFd* fd);
  Status MapAllAgain(const GpuPeers& peers, std::span<const Offer> offers);
  Status PinAgain(const GpuPeers& peers, int rank, std::span<std::byte> memory);
  void Unmap();
  Status MapOf(const GpuPeers& peers, int rank, const Offer& offer);

  WindowPlace place_ = WindowPlace::kPeerMemory;
  bool by_nvlink_ = false;
  std::vector<std::byte*> windows_;  // Each rank's window, as this rank reaches it.
  cuda::MappedMemory device_memory_;
  std::vector<cuda::MappedMemory> device_mapped_;
  cuda::IpcMemory ipc_memory_;
  std::vector<cuda::IpcMemory> ipc_mapped_;
  // Declared before pinned_, because pinned_ must be destroyed first.
  SharedMemory host_memory_;
  std::vector<SharedMemory> host_mapped_;
  std::vector<cuda::PinnedRange> pinned_;
  // Holds the saved ranges of this rank's own window while its memory is given back.
  struct Kept {
    size_t at = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<Kept> kept_;
};

struct GpuWindows::Shared {
  GpuWindows windows;
  Status refusal;  // The reason without windows; the same on every rank.
};

}  // namespace tutti
