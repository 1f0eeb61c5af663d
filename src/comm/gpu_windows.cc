#include "comm/gpu_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

// What a rank tells the others about its window.
struct WindowOffer {
  uint64_t offer = 0;  // of the descriptor; 0: it has failed
  uint64_t bytes = 0;
  uint64_t by_nvlink = 0;  // whether this rank reaches all others so
};

struct Verdict {
  uint8_t code = 0;  // of a Status
  char text[375] = {};
};

}  // namespace

std::string_view Name(WindowPlace place) {
  return place == WindowPlace::kPeerMemory ? "GPU memory" : "host memory";
}

Status GpuPeers::Agree(const Status& mine, Status* verdict) const {
  *verdict = Status::Ok();
  const auto n = static_cast<size_t>(bootstrap->num_ranks());
  std::vector<Verdict> verdicts(n);
  Verdict& own = verdicts[static_cast<size_t>(bootstrap->rank())];
  own.code = static_cast<uint8_t>(mine.code());
  mine.message().copy(own.text, sizeof(own.text) - 1);
  TUTTI_TRY(bootstrap->AllGather(verdicts.data(), sizeof(Verdict), deadline, abort_flag));
  for (size_t r = 0; r < n; ++r) {
    if (verdicts[r].code == 0) continue;
    const bool known = verdicts[r].code <= static_cast<uint8_t>(Code::kTimeout);
    *verdict =
        Status(known ? static_cast<Code>(verdicts[r].code) : Code::kRemoteError,
               fmt::format("{}: {}", RankName(static_cast<int>(r), peers[r]),
                           std::string_view(verdicts[r].text,
                                            strnlen(verdicts[r].text, sizeof(verdicts[r].text)))));
    return Status::Ok();
  }
  return Status::Ok();
}

Status GpuWindows::MakeOwn(const GpuPeers& peers, size_t bytes, UniqueFd* fd) {
  if (place_ == WindowPlace::kPeerMemory) {
    TUTTI_ASSIGN(device_memory_, cuda::MappedMemory::Create(*peers.device, bytes, fd));
    windows_[static_cast<size_t>(peers.bootstrap->rank())] = device_memory_.data();
    return Status::Ok();
  }
  TUTTI_ASSIGN(host_memory_, SharedMemory::Create(bytes, HugePages::kAdvise));
  TUTTI_ASSIGN(cuda::PinnedRange pinned,
               cuda::PinnedRange::Pin(*peers.device, host_memory_.bytes()));
  windows_[static_cast<size_t>(peers.bootstrap->rank())] = pinned.data();
  pinned_.push_back(std::move(pinned));
  return Status::Ok();
}

Status GpuWindows::MapOf(const GpuPeers& peers, int rank, UniqueFd fd, size_t bytes) {
  const auto r = static_cast<size_t>(rank);
  if (place_ == WindowPlace::kPeerMemory) {
    TUTTI_ASSIGN(cuda::MappedMemory window, cuda::MappedMemory::Import(*peers.device, fd, bytes));
    windows_[r] = window.data();
    device_mapped_.push_back(std::move(window));
    return Status::Ok();
  }
  TUTTI_ASSIGN(SharedMemory window, SharedMemory::Map(std::move(fd), bytes, HugePages::kAdvise));
  TUTTI_ASSIGN(cuda::PinnedRange pinned, cuda::PinnedRange::Pin(*peers.device, window.bytes()));
  windows_[r] = pinned.data();
  host_mapped_.push_back(std::move(window));
  host_mapped_.back().CloseFd();
  pinned_.push_back(std::move(pinned));
  return Status::Ok();
}

// Every rank makes its window and offers it; every rank maps all others; and all learn whether all
// could.
Result<GpuWindows> GpuWindows::Share(const GpuPeers& peers, WindowPlace place, size_t bytes,
                                     Status* verdict) {
  Bootstrap& bootstrap = *peers.bootstrap;
  const auto n = static_cast<size_t>(bootstrap.num_ranks());
  const auto me = static_cast<size_t>(bootstrap.rank());
  GpuWindows windows;
  windows.place_ = place;
  windows.windows_.resize(n);
  std::vector<WindowOffer> offers(n);
  UniqueFd fd;
  Status mine = windows.MakeOwn(peers, bytes, &fd);
  if (mine.ok()) {
    const int number = place == WindowPlace::kPeerMemory ? fd.get() : windows.host_memory_.fd();
    const bool by_nvlink =
        place == WindowPlace::kPeerMemory &&
        std::all_of(peers.peers.begin(), peers.peers.end(), [&](const PeerInfo& peer) {
          return peer.device == peers.device->pci_address() ||
                 peers.device->ReachesByNvlink(peer.device);
        });
    offers[me] = {peers.fd_server->Offer(number, peers.key), windows.bytes(), by_nvlink ? 1u : 0u};
  }
  const auto withdraw = [&] {
    if (offers[me].offer != 0) peers.fd_server->Withdraw(offers[me].offer);
  };
  const auto map_all = [&]() -> Status {
    for (size_t r = 0; r < n; ++r) {
      if (r == me || offers[r].offer == 0) continue;  // that rank says itself why it has none
      const std::string name = RankName(static_cast<int>(r), peers.peers[r]);
      if (offers[r].bytes != windows.bytes())
        return RemoteError("{} offers a window of {} bytes, but {} were agreed on", name,
                           offers[r].bytes, windows.bytes());
      TUTTI_ASSIGN(UniqueFd theirs, FetchFd(FdServerOf(peers.peers[r]), offers[r].offer, peers.key,
                                            peers.deadline, peers.abort_flag));
      Status mapped = windows.MapOf(peers, static_cast<int>(r), std::move(theirs), offers[r].bytes);
      if (!mapped.ok())
        return std::move(mapped).Annotate(
            fmt::format("mapping the window of {} on {}", name, peers.device->name()));
    }
    return Status::Ok();
  };
  const Status gathered =
      bootstrap.AllGather(offers.data(), sizeof(WindowOffer), peers.deadline, peers.abort_flag);
  if (gathered.ok() && mine.ok()) mine = map_all();
  const Status agreed = gathered.ok() ? peers.Agree(mine, verdict) : gathered;
  withdraw();
  TUTTI_TRY(agreed);
  if (!verdict->ok()) return GpuWindows();
  windows.by_nvlink_ = std::all_of(offers.begin(), offers.end(),
                                   [](const WindowOffer& offer) { return offer.by_nvlink != 0; });
  return windows;
}

}  // namespace tutti
