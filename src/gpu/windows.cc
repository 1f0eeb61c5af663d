#include "gpu/windows.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {
std::string_view Name(WindowPlace place) {
  return place == WindowPlace::kPeerMemory        ? "GPU memory"
         : place == WindowPlace::kPeerMemoryByIpc ? "GPU memory by CUDA IPC"
                                                  : "host memory";
}

Status GpuWindows::MakeOwn(const GpuPeers& peers, size_t bytes, Offer* offer, UniqueFd* fd) {
  std::byte*& own = windows_[static_cast<size_t>(peers.bootstrap->rank())];
  if (place_ == WindowPlace::kPeerMemory) {
    TUTTI_ASSIGN(device_memory_, cuda::MappedMemory::Create(*peers.device, bytes, fd));
    own = device_memory_.data();
    offer->descriptor = peers.fd_server->Offer(fd->get(), peers.key);
  } else if (place_ == WindowPlace::kPeerMemoryByIpc) {
    TUTTI_ASSIGN(ipc_memory_, cuda::IpcMemory::Create(*peers.device, bytes, &offer->handle));
    own = ipc_memory_.data();
    offer->address = ipc_memory_.address();
  } else {
    TUTTI_ASSIGN(host_memory_, SharedMemory::Create(bytes, HugePages::kAdvise));
    TUTTI_ASSIGN(cuda::PinnedRange pinned,
                 cuda::PinnedRange::Pin(*peers.device, host_memory_.bytes()));
    own = pinned.data();
    pinned_.push_back(std::move(pinned));
    offer->descriptor = peers.fd_server->Offer(host_memory_.fd(), peers.key);
  }
  offer->made = 1;
  offer->bytes = this->bytes();
  offer->by_nvlink = IsOnGpu(place_) &&
                     std::all_of(peers.peers.begin(), peers.peers.end(), [&](const PeerInfo& peer) {
                       return &peer == &peers.peers[static_cast<size_t>(peers.bootstrap->rank())] ||
                              peers.device->ReachesByNvlink(peer.device, peer.device_identity);
                     });
  return Status::Ok();
}

Status GpuWindows::MapOf(const GpuPeers& peers, int rank, const Offer& offer) {
  const auto r = static_cast<size_t>(rank);
  const int me = peers.bootstrap->rank();
  if (place_ == WindowPlace::kPeerMemoryByIpc) {
    TUTTI_ASSIGN(cuda::IpcMemory window,
                 SameProcess(peers.peers[r], peers.peers[static_cast<size_t>(me)])
                     ? cuda::IpcMemory::Reach(*peers.device, offer.address, offer.bytes, me)
                     : cuda::IpcMemory::Open(*peers.device, offer.handle, offer.bytes, me));
    windows_[r] = window.data();
    ipc_mapped_.push_back(std::move(window));
    return Status::Ok();
  }
  TUTTI_ASSIGN(UniqueFd fd, peers.Fetch(r, offer.descriptor));
  if (place_ == WindowPlace::kPeerMemory) {
    TUTTI_ASSIGN(cuda::MappedMemory window,
                 cuda::MappedMemory::Import(*peers.device, fd, offer.bytes));
    windows_[r] = window.data();
    device_mapped_.push_back(std::move(window));
    return Status::Ok();
  }
  TUTTI_ASSIGN(SharedMemory window,
               SharedMemory::Map(std::move(fd), offer.bytes, HugePages::kAdvise));
  TUTTI_ASSIGN(cuda::PinnedRange pinned, cuda::PinnedRange::Pin(*peers.device, window.bytes()));
  windows_[r] = pinned.data();
  host_mapped_.push_back(std::move(window));
  host_mapped_.back().CloseFd();
  pinned_.push_back(std::move(pinned));
  return Status::Ok();
}

Status GpuWindows::ForOthersHere(const GpuPeers& peers, std::span<const Offer> offers,
                                 const std::function<Status(int, const Offer&)>& f) {
  const auto me = static_cast<size_t>(peers.bootstrap->rank());
  for (size_t r = 0; r < offers.size(); ++r) {
    if (r == me || peers.peers[r].host_hash != peers.peers[me].host_hash) continue;
    if (offers[r].made == 0) continue;  // The rank reports its own failure.
    const std::string name = peers.NameOf(r);
    if (offers[r].bytes != offers[me].bytes && offers[me].made != 0)
      return RemoteError("{} offers a window of {} bytes, but {} were agreed on", name,
                         offers[r].bytes, offers[me].bytes);
    Status mapped = f(static_cast<int>(r), offers[r]);
    if (!mapped.ok())
      return std::move(mapped).Annotate(
          fmt::format("mapping the window of {} on {}", name, peers.device->name()));
  }
  return Status::Ok();
}

Status GpuWindows::MapAll(const GpuPeers& peers, std::span<const Offer> offers) {
  return ForOthersHere(peers, offers,
                       [&](int rank, const Offer& offer) { return MapOf(peers, rank, offer); });
}

// Gives up mapped windows of CUDA IPC. Every rank that unmaps a window leaves a mark in the window.
// The owner keeps the window until all ranks have unmapped it or, if ranks cannot be asked, while a
// mark is missing.
void GpuWindows::GiveBack(const GpuPeers& peers, bool ranks_talk) {
  if (place_ != WindowPlace::kPeerMemoryByIpc) return;
  ipc_mapped_.clear();
  if (!ranks_talk || !peers.Agree(Status::Ok()).ok()) ipc_memory_.ExpectUsers(peers.OthersHere());
}

// Makes and offers this rank's window, maps the windows of this host, and agrees with all ranks on
// whether all of them succeeded.
Result<GpuWindows::Shared> GpuWindows::Share(const GpuPeers& peers, WindowPlace place,
                                             size_t bytes) {
  GpuWindows windows;
  windows.place_ = place;
  windows.windows_.resize(peers.peers.size());
  JointStep<Offer> step(peers);
  UniqueFd fd;
  Result<Agreement> agreed = step.ExchangeAndUse(
      windows.MakeOwn(peers, bytes, &step.mine(), &fd),
      [&](std::span<const Offer> offers) { return windows.MapAll(peers, offers); });
  if (step.mine().descriptor != 0) peers.fd_server->Withdraw(step.mine().descriptor);
  if (!agreed.ok() || !agreed->go_on()) {
    windows.GiveBack(peers, agreed.ok());
    TUTTI_TRY(agreed.status());
    return Shared{{}, std::move(agreed->refusal)};
  }
  windows.ipc_memory_.ExpectUsers(peers.OthersHere());
  windows.by_nvlink_ = std::all_of(step.offers().begin(), step.offers().end(),
                                   [](const Offer& offer) { return offer.by_nvlink != 0; });
  return Shared{std::move(windows), {}};
}

}  // namespace tutti
