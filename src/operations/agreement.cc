#include "operations/agreement.h"

#include <fmt/format.h>

#include <cstring>
#include <string_view>
#include <vector>

namespace tutti {

StatusWire StatusWire::Of(const Status& status) {
  StatusWire wire;
  wire.code = static_cast<uint8_t>(status.code());
  status.message().copy(wire.text, sizeof(wire.text) - 1);
  return wire;
}

Status StatusWire::From(int rank, const PeerInfo& peer) const {
  if (code == 0) return Status::Ok();
  const bool known = code <= static_cast<uint8_t>(Code::kTimeout);
  const std::string_view said(text, strnlen(text, sizeof(text)));
  return Status(known ? static_cast<Code>(code) : Code::kRemoteError,
                fmt::format("{}: {}", RankName(rank, peer), said));
}

// Every rank looks through the Statuses in the order of the ranks, and therefore all ranks find the
// same refusal.
Result<Agreement> Agree(Bootstrap& bootstrap, std::span<const PeerInfo> peers, const Status& mine,
                        Deadline deadline, const std::atomic<bool>* abort_flag) {
  std::vector<StatusWire> all(peers.size());
  all[static_cast<size_t>(bootstrap.rank())] = StatusWire::Of(mine);
  TUTTI_TRY(bootstrap.AllGather(all.data(), sizeof(StatusWire), deadline, abort_flag));
  for (size_t r = 0; r < all.size(); ++r)
    if (Status refusal = all[r].From(static_cast<int>(r), peers[r]); !refusal.ok())
      return Agreement{std::move(refusal)};
  return Agreement();
}

}  // namespace tutti
