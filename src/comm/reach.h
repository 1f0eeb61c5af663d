#pragma once

// The ways by which ranks reach one another. Conditions rule a way out on a rank, where the way is
// then not viable. A way reaches some set of ranks. Setting a way up, by all ranks together, shows
// whether the way really serves. A useless way is given up for the next with a line in the log, or
// with an error where TUTTI_STRICT_TRANSPORT is set.
//
//   way                        not viable with               reaches                  tried by
//   ------------------------   ---------------------------   ----------------------   -----------------
//   hosts, in this order:
//   shared memory              NCCL_SHM_DISABLE,             ranks of its host        HostJoin::
//                              no memfd_create                                          ShareMemory
//                              (MayShareMemory)
//   copies by the kernel,      NCCL_P2P_DISABLE              those it shares          CheckMayRead
//     besides                                                  memory with
//   networks                   Net::IsViable                 all ranks                OpenNet
//
//   GPUs, in this order (WindowsMayLie):
//   windows in GPU memory      NCCL_CUMEM_ENABLE=0,          GPUs of its host         GpuJoin::
//                              NCCL_P2P_DISABLE                                         InFirstPlace
//   the same by CUDA IPC       NCCL_P2P_DISABLE              GPUs of its host         likewise
//   windows in host memory     NCCL_SHM_DISABLE              GPUs of its host         likewise
//   networks                   Net::IsViable                 all ranks                OpenNet
//
// A way is viable for a communicator only where it is viable on all ranks. Shared memory of hosts
// is the exception: a rank without shared memory is a machine of its own. OpenNet
// (operations/networks.h) offers each rank's viable networks to the others, plugins before verbs
// before sockets, and takes the first network of all ranks.
//
// Threads: any; these are functions of their arguments.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "gpu/windows.h"
#include "operations/peer_info.h"

namespace tutti {

// Returns whether two ranks are to share memory as ranks of hosts do.
bool MayShareMemory(const PeerInfo& a, const PeerInfo& b);

// Returns the ranks that may share memory with `rank`, itself among them, ascending.
std::vector<int> MemorySharersOf(int rank, std::span<const PeerInfo> peers);

// Checks the ranks' reports of shared memory. `leaders` has for each rank the rank whose memory it
// has mapped, or itself. A leader must be the lowest rank with which the rank may share memory, or
// the rank itself; the latter is an error where `strict`.
Status CheckLeaders(std::span<const int> leaders, std::span<const PeerInfo> peers, bool strict);

// Returns ok where rank `mine` can read the memory of rank `other`, as a read proves, and else the
// reason.
Status CheckMayRead(const PeerInfo& mine, const PeerInfo& other);

// Returns whether the ranks of `group`, who share memory, may try to copy from one another through
// the kernel: they are of several processes, and no setting forbids copies on any of them.
bool MayCopy(std::span<const int> group, std::span<const PeerInfo> peers);

// Says whether all ranks try windows in a place.
enum class WindowVerdict : uint8_t {
  kTry,
  kPass,       // Another place has to serve, because this place has no advantage over the last.
  kForbidden,  // A setting of some rank forbids the place.
};
// `before` says why the place before has no windows.
WindowVerdict WindowsMayLie(WindowPlace place, std::span<const PeerInfo> peers,
                            const Status& before);
// Returns the error with the setting that forbids a place.
Status ForbiddenPlace(WindowPlace place);

}  // namespace tutti
