#pragma once

// Chooses a GID, the address of a port. A port of an Ethernet device (RoCE) has a GID for each
// address of its interface and each version of the protocol. A connection with the wrong GID does
// not reach the peer.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "config/settings.h"

namespace tutti {

enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

// An entry of a port's table.
struct Gid {
  std::array<uint8_t, 16> bytes = {};  // in network order
  uint32_t index = 0;
  GidType type = GidType::kInfiniBand;

  // An IPv4 address stands in a GID as ::ffff:a.b.c.d.
  bool IsIpv4() const;
  bool IsLinkLocal() const;  // fe80::/10
  // Returns a text such as "10.0.0.1" or "fe80::1".
  std::string ToString() const;
};

// An address and the number of its leading bits that count: "10.1.0.0/16", "fd00::/8".
struct AddressRange {
  std::array<uint8_t, 16> bytes = {};
  int bits = 0;  // For IPv4 the bits are 96 more than in the text.

  // Returns InvalidUsage when the text is not an address, a slash and a number of bits.
  static Result<AddressRange> Parse(const std::string& text);
  bool Holds(const Gid& gid) const;
};

// Holds the user's settings about the choice of a GID.
struct GidWish {
  int64_t index = -1;  // NCCL_IB_GID_INDEX; -1: not set
  GidType roce = GidType::kRoceV2;
  bool ipv4 = true;
  std::optional<AddressRange> range;

  static Result<GidWish> From(const Settings& settings);
};

// Chooses the GID of a port from its table, which has valid entries only. With an index in the wish
// the entry at the index is taken. Without an index the best entry in the range is taken: by the
// version of RoCE, then the family, then addresses that are not link-local, then the lowest index.
// A port of an InfiniBand fabric takes its first entry. InvalidUsage says why no entry fits.
Result<Gid> ChooseGid(std::span<const Gid> table, bool ethernet, const GidWish& wish);

}  // namespace tutti
