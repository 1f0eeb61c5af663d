#pragma once

// By what ways ranks reach one another: what rules a way out on a rank (it is not viable there),
// and to which ranks it leads (its reach). Whether a way that these rules leave really serves is
// tried when it is set up, by all ranks together; one that does not is given up for the next, with
// a line in the log, or with an error where TUTTI_STRICT_TRANSPORT is set.
//
//   way                        not viable with               reaches                  tried by
//   ------------------------   ---------------------------   ----------------------   -----------------
//   hosts, in this order:
//   shared memory              NCCL_SHM_DISABLE              ranks of its host        HostJoin::
//                              (MayShareMemory)                                         ShareMemory
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
// A way is viable for a communicator only where it is on all of its ranks, except shared memory of
// hosts: ranks without it are machines of their own. OpenNet (operations/networks.h) offers each
// rank's networks that are viable to the others, plugins before verbs before sockets, and takes the
// first that all have.
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

// Checks what the ranks say they share: `leaders` has for each the rank whose memory it has mapped,
// itself where it has none. That must be the lowest rank that it may share memory with, or itself,
// which is an error where `strict`.
Status CheckLeaders(std::span<const int> leaders, std::span<const PeerInfo> peers, bool strict);

// Returns ok where rank `mine` can read the memory of rank `other`, which is proven by reading, and
// else why not.
Status CheckMayRead(const PeerInfo& mine, const PeerInfo& other);

// Says whether all ranks try windows in a place.
enum class WindowVerdict : uint8_t {
  kTry,
  kPass,       // Another place has to serve: this one has nothing that it lacks.
  kForbidden,  // A setting of some rank forbids it.
};
// `before` says why there are none in the place before.
WindowVerdict WindowsMayLie(WindowPlace place, std::span<const PeerInfo> peers,
                            const Status& before);
// Returns the error that names what forbids a place.
Status ForbiddenPlace(WindowPlace place);

}  // namespace tutti
