#pragma once

// GIDs: the addresses of a port. A port of an Ethernet device (RoCE) has several, one for each
// address of its interface and each version of the protocol; which one a connection uses decides
// whether the other end is reached at all.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "config/settings.h"

namespace tutti {

enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

// Is one entry of a port's table.
struct Gid {
  std::array<uint8_t, 16> bytes = {};  // They are in the order in which they are sent.
  uint32_t index = 0;
  GidType type = GidType::kInfiniBand;

  // An IPv4 address stands in a GID as ::ffff:a.b.c.d.
  bool IsIpv4() const;
  bool IsLinkLocal() const;  // fe80::/10
  // Returns a text such as "10.0.0.1" or "fe80::1".
  std::string ToString() const;
};

// An address and how many of its leading bits count: "10.1.0.0/16", "fd00::/8".
struct AddressRange {
  std::array<uint8_t, 16> bytes = {};
  int bits = 0;  // IPv4: 96 more than written

  // Returns InvalidUsage when the text is not an address, a slash and a number of bits.
  static Result<AddressRange> Parse(const std::string& text);
  bool Holds(const Gid& gid) const;
};

// Holds what the user says about the choice of a GID.
struct GidWish {
  int64_t index = -1;  // NCCL_IB_GID_INDEX; -1: not set
  GidType roce = GidType::kRoceV2;
  bool ipv4 = true;
  std::optional<AddressRange> range;

  static Result<GidWish> From(const Settings& settings);
};

// Chooses the GID of a port from its table, which has valid entries only. With an index the entry
// of that index, else among those that the range holds the best by, in this order: the version of
// RoCE, the family, no link-local address, the lowest index. A port of an InfiniBand fabric takes
// its first. InvalidUsage says why none is left.
Result<Gid> ChooseGid(std::span<const Gid> table, bool ethernet, const GidWish& wish);

}  // namespace tutti
