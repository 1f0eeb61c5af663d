#include "transport/net/verbs/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/text.h"

namespace tutti {
namespace {

// The bytes before an IPv4 address in a GID (::ffff:0:0/96).
constexpr std::array<uint8_t, 12> kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr int kIpv4PrefixBits = 96;

}  // namespace

bool Gid::IsIpv4() const {
  return std::equal(kIpv4Prefix.begin(), kIpv4Prefix.end(), bytes.begin());
}

bool Gid::IsLinkLocal() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }

std::string Gid::ToString() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (IsIpv4()) {
    inet_ntop(AF_INET, &bytes[kIpv4Prefix.size()], text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, bytes.data(), text, sizeof(text));
  }
  return text;
}

// IPv4 addresses are compared in their form as GIDs, so that a range of IPv4 has 96 bits more.
Result<AddressRange> AddressRange::Parse(const std::string& text) {
  const auto refusal = [&] {
    return InvalidUsage(
        "NCCL_IB_ADDR_RANGE is \"{}\", but must be an address and a number of bits, such as "
        "10.1.0.0/16 or fd00::/8",
        text);
  };
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return refusal();
  const std::string address = text.substr(0, slash);
  AddressRange range;
  int most = 128;
  if (inet_pton(AF_INET, address.c_str(), &range.bytes[kIpv4Prefix.size()]) == 1) {
    std::copy(kIpv4Prefix.begin(), kIpv4Prefix.end(), range.bytes.begin());
    most = 32;
  } else if (inet_pton(AF_INET6, address.c_str(), range.bytes.data()) != 1) {
    return refusal();
  }
  range.bits = WholeNumber<int>(std::string_view(text).substr(slash + 1)).value_or(-1);
  if (range.bits < 0 || range.bits > most) return refusal();
  if (most == 32) range.bits += kIpv4PrefixBits;
  return range;
}

bool AddressRange::Holds(const Gid& gid) const {
  const auto whole = static_cast<size_t>(bits / 8);
  if (!std::equal(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(whole),
                  gid.bytes.begin())) {
    return false;
  }
  const int left = bits % 8;
  return left == 0 || ((bytes[whole] ^ gid.bytes[whole]) >> (8 - left)) == 0;
}

Result<GidWish> GidWish::From(const Settings& settings) {
  GidWish wish;
  wish.index = settings.ib_gid_index;
  wish.roce = settings.ib_roce_version == 1 ? GidType::kRoceV1 : GidType::kRoceV2;
  wish.ipv4 = settings.ib_addr_family != "AF_INET6";
  if (!settings.ib_addr_range.empty()) {
    TUTTI_ASSIGN(wish.range, AddressRange::Parse(settings.ib_addr_range));
  }
  return wish;
}

Result<Gid> ChooseGid(std::span<const Gid> table, bool ethernet, const GidWish& wish) {
  if (table.empty()) return InvalidUsage("it has no GID: its interface may have no address yet");
  if (wish.index >= 0) {
    const auto found = std::find_if(table.begin(), table.end(), [&](const Gid& gid) {
      return gid.index == static_cast<uint64_t>(wish.index);
    });
    if (found != table.end()) return *found;
    return InvalidUsage("NCCL_IB_GID_INDEX is {}, and it has no such GID", wish.index);
  }
  if (!ethernet) return table.front();
  const auto rank = [&](const Gid& gid) {
    return std::tuple(gid.type != wish.roce, gid.IsIpv4() != wish.ipv4, gid.IsLinkLocal(),
                      gid.index);
  };
  const Gid* best = nullptr;
  for (const Gid& gid : table) {
    if (wish.range && !wish.range->Holds(gid)) continue;
    if (!best || rank(gid) < rank(*best)) best = &gid;
  }
  if (!best) return InvalidUsage("none of its GIDs lies in NCCL_IB_ADDR_RANGE");
  return *best;
}

}  // namespace tutti
