// Gives the memory of GPUs back and takes memory again (ncclCommSuspend, ncclCommResume).
//
// The addresses stay reserved, because captured graphs hold them: their kernels run again when the
// memory is back. A window in memory of a GPU is freed when all ranks have unmapped the window.
// Later the owner maps new memory at the same addresses and offers the memory to the other ranks. A
// window in memory of the host stays mapped; the window is unpinned, and its pages are given back.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/cuda/own_stream.h"
#include "gpu/mesh.h"
#include "gpu/windows.h"

namespace tutti {

// ---------------------------------------------------------------------------------------------------------------------
// Windows

Status GpuWindows::CheckCanGiveBack() const {
  if (place_ != WindowPlace::kPeerMemoryByIpc) return Status::Ok();
  return InvalidUsage(
      "the GPUs share memory by CUDA IPC, which keeps no addresses, so it cannot be given back");
}

void GpuWindows::Unmap() {
  device_memory_.Unmap();
  for (cuda::MappedMemory& mapped : device_mapped_) mapped.Unmap();
  pinned_.clear();
}

Status GpuWindows::GiveBackMemory(const GpuPeers& peers, std::span<const Range> kept) {
  const std::byte* const own = of(peers.bootstrap->rank());
  if (own == nullptr) return Status::Ok();
  const cuda::ManagingScope scope(peers.device->driver(), peers.device->context());
  TUTTI_ASSIGN(const cuda::OwnStream stream, cuda::OwnStream::Create(*peers.device));
  kept_.clear();
  for (const Range& range : kept) {
    Kept& copy = kept_.emplace_back(Kept{range.at, std::vector<std::byte>(range.bytes)});
    TUTTI_TRY(stream.CopyOut(copy.bytes.data(),
                             reinterpret_cast<cuda::DeviceAddress>(own + range.at), range.bytes));
  }
  Unmap();
  return host_memory_ ? host_memory_.DiscardPages() : Status::Ok();
}

// Pins a window again. The address must be the old address, which kernels and the arguments of
// captured graphs know.
Status GpuWindows::PinAgain(const GpuPeers& peers, int rank, std::span<std::byte> memory) {
  TUTTI_ASSIGN(cuda::PinnedRange pinned, cuda::PinnedRange::Pin(*peers.device, memory));
  if (pinned.data() != of(rank))
    return InternalError("pinned memory at {} is at {} for the GPU, where it was at {} before",
                         fmt::ptr(memory.data()), fmt::ptr(pinned.data()), fmt::ptr(of(rank)));
  pinned_.push_back(std::move(pinned));
  return Status::Ok();
}

Status GpuWindows::TakeOwnAgain(const GpuPeers& peers, Offer* offer, UniqueFd* fd) {
  const int me = peers.bootstrap->rank();
  if (of(me) == nullptr) return Status::Ok();
  if (place_ == WindowPlace::kPeerMemory) {
    TUTTI_TRY(device_memory_.MapNew(fd));
    offer->descriptor = peers.fd_server->Offer(fd->get(), peers.key);
  } else {
    TUTTI_TRY(PinAgain(peers, me, host_memory_.bytes()));
  }
  const cuda::ManagingScope scope(peers.device->driver(), peers.device->context());
  TUTTI_ASSIGN(const cuda::OwnStream stream, cuda::OwnStream::Create(*peers.device));
  for (const Kept& kept : kept_)
    TUTTI_TRY(stream.CopyIn(reinterpret_cast<cuda::DeviceAddress>(of(me) + kept.at),
                            kept.bytes.data(), kept.bytes.size()));
  offer->made = 1;
  offer->bytes = bytes();
  return Status::Ok();
}

// Maps the windows of this host again. Mappings are kept in the order of their ranks.
Status GpuWindows::MapAllAgain(const GpuPeers& peers, std::span<const Offer> offers) {
  size_t next = 0;
  return ForOthersHere(peers, offers, [&](int rank, const Offer& offer) -> Status {
    const size_t place = next++;
    if (place_ == WindowPlace::kHostMemory)
      return PinAgain(peers, rank, host_mapped_[place].bytes());
    TUTTI_ASSIGN(const UniqueFd fd, peers.Fetch(static_cast<size_t>(rank), offer.descriptor));
    return device_mapped_[place].MapAgain(fd);
  });
}

Result<Agreement> GpuWindows::TakeBackMemory(const GpuPeers& peers) {
  JointStep<Offer> step(peers);
  UniqueFd fd;
  Result<Agreement> agreed = step.ExchangeAndUse(
      TakeOwnAgain(peers, &step.mine(), &fd),
      [&](std::span<const Offer> offers) { return MapAllAgain(peers, offers); });
  if (step.mine().descriptor != 0) peers.fd_server->Withdraw(step.mine().descriptor);
  if (!agreed.ok() || !agreed->go_on()) {
    Unmap();
    if (host_memory_) TUTTI_TRY(host_memory_.DiscardPages());
  } else {
    kept_.clear();
  }
  return agreed;
}

// ---------------------------------------------------------------------------------------------------------------------
// The parts of operations of GPUs outside of windows

Status DeviceOperations::CheckIdle() const {
  TUTTI_TRY(CheckCanGiveBack());
  const QueueState state = queue_->State();
  if (state == QueueState::kDone) return Status::Ok();
  return InvalidUsage(
      "operations of the communicator are still under way on this rank's GPU{}: wait for their "
      "streams before ncclCommSuspend",
      state == QueueState::kUnknown ? ", as far as can be told" : "");
}

Status DeviceOperations::GiveBackMemory() {
  const MutexLock lock(launch_mutex_);
  pack_.Unmap();
  return GiveBackWindows();
}

// Takes the packing memory again before the windows, and gives the memory back if any rank fails.
// Every rank then stays suspended.
Result<Agreement> DeviceOperations::TakeBackMemory(Deadline deadline,
                                                   const std::atomic<bool>* abort_flag) {
  const MutexLock lock(launch_mutex_);
  GpuPeers peers = peers_;
  peers.deadline = deadline;
  peers.abort_flag = abort_flag;
  const Status packing = pack_.data() == nullptr ? Status::Ok() : pack_.MapNew(nullptr);
  TUTTI_ASSIGN(Agreement agreed, peers.Agree(packing));
  if (agreed.go_on()) {
    TUTTI_ASSIGN(agreed, TakeBackWindows(peers));
  }
  if (!agreed.go_on()) pack_.Unmap();
  return agreed;
}

// ---------------------------------------------------------------------------------------------------------------------
// The mesh

// Returns the parts of a window that have counters. Counters come first in the window and first in
// the part for messages.
std::vector<GpuWindows::Range> GpuMesh::Counters() const {
  return {{0, cuda::WindowLayout::kLLAt}, {messages_.at, messages_.LLAt() - messages_.at}};
}

uint64_t GpuMesh::SuspendableBytes() const {
  return windows_.DeviceBytes() + windows_.PinnedBytes() + PackBytes();
}

Status GpuMesh::GiveBackWindows() { return windows_.GiveBackMemory(peers(), Counters()); }

// Compares counters: once no collective is under way, all ranks have taken part in the same rounds.
// For rings and messages, the sender's window has two counts, the chunks sent, which the sender
// writes, and the chunks received, which the receiver writes.
Status GpuMesh::CheckNothingWaits() {
  const int me = args_.rank, n = args_.num_ranks;
  if (n == 1) return Status::Ok();
  const cuda::ManagingScope scope(device().driver(), device().context());
  TUTTI_ASSIGN(const cuda::OwnStream stream, cuda::OwnStream::Create(device()));
  const auto read = [&](int rank, size_t at, std::vector<uint64_t>& words) {
    return stream.CopyOut(words.data(),
                          reinterpret_cast<cuda::DeviceAddress>(windows_.of(rank) + at),
                          words.size() * sizeof(uint64_t));
  };
  std::vector<uint64_t> own(kMaxBlocks), other(kMaxBlocks);
  for (int rank = 0; rank < n; ++rank) {
    TUTTI_TRY(read(me, 0, own));
    TUTTI_TRY(read(rank, 0, other));
    if (other != own)
      return InvalidUsage(
          "this rank and rank {} have not called the same collectives: call those that are missing "
          "before ncclCommSuspend",
          rank);
  }
  TUTTI_TRY(read(me, cuda::WindowLayout::kSentAt, own));
  TUTTI_TRY(read(me, cuda::WindowLayout::kHeadsAt, other));
  if (other != own)
    return InvalidUsage(
        "this rank has called a collective that rank {} has not called: call it "
        "there before ncclCommSuspend",
        (me + 1) % n);
  using Layout = cuda::MessageLayout;
  std::vector<uint64_t> sent(Layout::kCounters / sizeof(uint64_t)), heads(sent.size());
  TUTTI_TRY(read(me, messages_.CounterAt(Layout::kSent, 0, 0), sent));
  TUTTI_TRY(read(me, messages_.CounterAt(Layout::kHeads, 0, 0), heads));
  const auto differs = std::mismatch(sent.begin(), sent.end(), heads.begin()).first;
  if (differs == sent.end()) return Status::Ok();
  return InvalidUsage(
      "this rank has sent data that rank {} has not received: call what receives them "
      "there before ncclCommSuspend",
      static_cast<size_t>(differs - sent.begin()) / cuda::kMessageChannels);
}

}  // namespace tutti
