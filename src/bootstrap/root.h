#pragma once

// The root: where the ranks of a job leave their addresses and learn the addresses of their
// neighbours.
//
// A root serves on an EventLoop and belongs to the loop. The root ends by itself when every rank in
// its charge, and every rank of other roots that must look up a rank in its charge, has closed its
// connection after the answer; a root that nobody asks ends after an hour. When the job cannot
// start (a rank is missing at the deadline, two ranks take the same number, ranks disagree on their
// number, a rank goes away while others are still missing), the root tells the reason to every
// connected rank, and for a while to ranks that come late: where ranks disagree, to as many as the
// largest job that any of them believes in.
//
//   unasked ──first rank──→ collecting ──all registered──→ answering ──all answered──→ gone
//      │                        │
//      └──an hour──→ gone       └──deadline, duplicate, disagreement, loss──→ failed
//                                        failed ──every rank told, or kLateArrivalsNs──→ gone
//
// The connection of a rank stays open until its answer. The root needs no second listening socket
// to call back, which firewalls would have to admit, and notices at once when a waiting rank dies.
// A rank whose connection is reset connects again, and its registration waits for it meanwhile.

#include "base/status.h"
#include "bootstrap/unique_id.h"
#include "config/settings.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti {

class Root {
 public:
  // Returns the id for ncclGetUniqueId. Starts a root on `loop`, except with NCCL_COMM_ID, where
  // the id has only the address and rank 0 starts the root itself (Bootstrap::Create does). A job
  // with NCCL_COMM_ID and without a secret meets at a local socket where the address is loopback;
  // else the job is refused, or warned of under TUTTI_INSECURE. Until
  // a rank asks the root, the root counts in `unasked` (null: no limit), a counter of the loop's
  // thread that must outlive the loop. At the limit the root that has waited longest ends, so a
  // program that makes ids in vain keeps descriptors for itself. Where `meeting` is valid, the
  // ranks meet at this address of some host, and the root listens at the interface that leads
  // there.
  static Result<UniqueId> Create(EventLoop& loop, const Settings& settings,
                                 AcceptLimit* unasked = nullptr, const SocketAddress& meeting = {});

  // Returns the key that both ends of the job's connections prove: the key of `id`, together with
  // the secret of `settings` (comm_key) where there is one. A process that knows only the
  // id cannot take part in a job with a secret.
  static Key KeyOf(const UniqueId& id, const Settings& settings);

  // Starts the root of `id` (made with NCCL_COMM_ID) at its address, with the id's key as it is
  // and the source of the secret in `settings`, which the root names in its sentences.
  // Waits, within `limits`, while an earlier job's root still has the port.
  static Status StartAt(EventLoop& loop, const UniqueId& id, const Settings& settings,
                        const WaitLimits& limits);
};

}  // namespace tutti
