#pragma once

// The root: where the ranks of a job leave their addresses and learn those of their neighbours.
//
// A root serves on an EventLoop and belongs to it. It goes away by itself when every rank in charge
// of it, and every rank of the other roots that must look up one of those, has its answer; one that
// nobody asks goes away after an hour. When the job cannot start (a rank is missing at the
// deadline, one number is taken twice, ranks disagree on their number, a rank goes away while
// others are still missing) it tells the reason to every rank that is connected, and for a while to
// those that come late: where ranks disagree, to as many as the largest job any of them believes
// in.
//
//   unasked ──first rank──→ collecting ──all registered──→ answering ──all answered──→ gone
//      │                        │
//      └──an hour──→ gone       └──deadline, duplicate, disagreement, loss──→ failed
//                                        failed ──every rank told, or kLateArrivalsNs──→ gone
//
// The connection of a rank stays open until its answer: there is no second listening socket for the
// root to call back, which firewalls would have to admit, and a rank that dies while it waits is
// noticed at once.

#include "base/status.h"
#include "bootstrap/unique_id.h"
#include "config/settings.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti {

class Root {
 public:
  // Returns the id for ncclGetUniqueId. Starts a root on `loop`, except with NCCL_COMM_ID, where
  // the id says only the address and rank 0 starts the root itself (Bootstrap::Create does). Warns
  // when such a job has no key. Until a rank asks it, the root counts in `unasked` (null: no
  // limit), which is used on the loop's thread and must outlive the loop. Where that limit is
  // reached the root that has waited longest goes away, so that a program that makes ids in vain
  // keeps descriptors for itself.
  static Result<UniqueId> Create(EventLoop& loop, const Settings& settings,
                                 AcceptLimit* unasked = nullptr);

  // Starts the root of `id` (made with NCCL_COMM_ID) at its address. Waits, within `limits`, while
  // an earlier job's root still has the port.
  static Status StartAt(EventLoop& loop, const UniqueId& id, const WaitLimits& limits);
};

}  // namespace tutti
