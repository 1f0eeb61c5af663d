#pragma once

// The windows of a communicator of GPUs: memory of each rank in which all others of its host write,
// as this rank's GPU sees it.
//
//   peer memory          memory of the GPUs (over NVLink, or PCIe where they reach one another)
//   peer memory by IPC   the same, shared in CUDA's older way (backend/cuda/ipc_memory.h), where
//                        the newer one fails
//   host memory          shared between the processes and pinned, for GPUs that do not reach one
//                        another
//
// Kernels cannot tell these apart. They may work in host memory across PCIe for three reasons:
//   - They never use atomic operations there, which PCIe may not carry: each word has one writer,
//     and a flag is a plain 8-byte store at system scope.
//   - A writer's fence (acq_rel at system scope) waits until its earlier stores have reached the
//     host's memory, in whatever order PCIe carried them; only then is the flag stored. The
//     reader's acquire at system scope makes its GPU forget what it has cached of the host's
//     memory.
//   - A flagged line's word of 8 bytes, aligned, is not torn: no bridge cuts within 8 bytes.
// NCCL's own transport through shared memory rests on the same three.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/cuda/ipc_memory.h"
#include "backend/cuda/memory.h"
#include "base/status.h"
#include "operations/agreement.h"
#include "operations/peer_info.h"
#include "sys/fd_server.h"
#include "sys/shared_memory.h"

namespace tutti {

enum class WindowPlace : uint8_t { kPeerMemory, kPeerMemoryByIpc, kHostMemory };
std::string_view Name(WindowPlace place);  // "GPU memory", "GPU memory by CUDA IPC", "host memory"
constexpr bool IsOnGpu(WindowPlace place) { return place != WindowPlace::kHostMemory; }

// Holds what was made over windows in one place; or null, and why the place does not serve:
// windows could not be mapped, or what was written through them did not arrive. The same on every
// rank.
template <class T>
struct TriedWindows {
  std::unique_ptr<T> made;
  Status refusal;
};

// The ranks of a communicator of GPUs, and what a rank needs to share memory with the others.
struct GpuPeers : JointRanks {
  const cuda::Device* device = nullptr;
  FdServer* fd_server = nullptr;
  FdKey key = {};
};

class GpuWindows {
 public:
  // Makes the windows and maps those of this rank's host. All ranks call it alike, with the same
  // size. Where not all of them could map all these, the windows are empty, and another place may
  // be tried. Fails when the ranks cannot talk.
  struct Shared;
  static Result<Shared> Share(const GpuPeers& peers, WindowPlace place, size_t bytes);

  // Returns a rank's window; null where there is none, or where it is on another host.
  std::byte* of(int rank) const {
    return windows_.empty() ? nullptr : windows_[static_cast<size_t>(rank)];
  }
  WindowPlace place() const { return place_; }
  // Returns whether all windows are GPU memory that all ranks reach by NVLink; the same on all
  // ranks.
  bool by_nvlink() const { return by_nvlink_; }
  // Give the memory of the windows back and take it again, at the same addresses
  // (gpu/memory_phases.cc). All ranks of the communicator call each alike, when nothing works in
  // the windows. Of this rank's own window the ranges in `kept` come back as they were, and the
  // rest as zeroes. Where a rank cannot have the memory again, all are told so and are as before.
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
  // A rank tells the others this about its window.
  struct Offer {
    uint64_t made = 0;        // 1: the rank has made its window.
    uint64_t descriptor = 0;  // The window's number at the descriptor server, if it has one.
    uint64_t bytes = 0;
    uint64_t by_nvlink = 0;  // 1: the rank reaches all others by NVLink.
    uint64_t address = 0;    // The window's address and name for CUDA IPC.
    cuda::IpcHandle handle;
  };
  size_t bytes() const { return device_memory_.size() + ipc_memory_.size() + host_memory_.size(); }
  // Makes this rank's window. `*fd` has to be kept until all ranks have what is offered.
  Status MakeOwn(const GpuPeers& peers, size_t bytes, Offer* offer, UniqueFd* fd);
  Status MapAll(const GpuPeers& peers, std::span<const Offer> offers);
  void GiveBack(const GpuPeers& peers, bool ranks_talk);
  // Calls f(rank, offer) for each other rank of this host that offers memory.
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
  // These are declared before pinned_, which has to go first.
  SharedMemory host_memory_;
  std::vector<SharedMemory> host_mapped_;
  std::vector<cuda::PinnedRange> pinned_;
  // Holds what is kept of this rank's own window while its memory is given back.
  struct Kept {
    size_t at = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<Kept> kept_;
};

struct GpuWindows::Shared {
  GpuWindows windows;
  Status refusal;  // The reason why there are none; the same on every rank.
};

}  // namespace tutti
