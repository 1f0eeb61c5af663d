#include "operations/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/text.h"

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
                fmt::format("{}: {}", RankName(rank, peer), Printable(said)));
}

// Every rank looks through the Statuses in the order of the ranks, and therefore all ranks find the
// same refusal.
Result<Agreement> JointRanks::Exchange(const Status& could, std::span<std::byte> offers) const {
  const size_t bytes = offers.size() / peers.size(), whole = sizeof(StatusWire) + bytes;
  std::vector<std::byte> wire(peers.size() * whole);
  const StatusWire said = StatusWire::Of(could);
  std::byte* const own = &wire[me() * whole];
  std::memcpy(own, &said, sizeof(said));
  std::copy_n(offers.data() + me() * bytes, bytes, own + sizeof(said));
  const Status met = bootstrap->AllGather(wire.data(), whole, deadline, abort_flag);
  // A failure here may have taken all the time: the ranks then cannot meet because of it.
  if (!met.ok()) return met.code() == Code::kTimeout && !could.ok() ? could : met;
  Agreement agreement;
  for (size_t r = 0; r < peers.size(); ++r) {
    StatusWire theirs;
    std::memcpy(&theirs, &wire[r * whole], sizeof(theirs));
    if (agreement.go_on()) agreement.refusal = theirs.From(static_cast<int>(r), peers[r]);
    std::copy_n(&wire[r * whole] + sizeof(theirs), bytes, offers.data() + r * bytes);
  }
  return agreement;
}

}  // namespace tutti
