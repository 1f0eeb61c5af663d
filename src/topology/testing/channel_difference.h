#pragma once

// Compares two answers of the search. For tests only.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "topology/channels.h"

namespace tutti::topology {

// Returns in words where two answers to the same question first differ; nothing when they agree.
inline std::optional<std::string> FirstDifference(const Channels& ours, const Channels& theirs) {
  const auto differ = [](std::string_view what, const auto& a, const auto& b) {
    return fmt::format("{} is {} here and {} there", what, a, b);
  };
  if (ours.pattern != theirs.pattern) {
    return differ("the pattern", Name(ours.pattern), Name(theirs.pattern));
  }
  if (ours.channels.size() != theirs.channels.size()) {
    return differ("the number of channels", ours.channels.size(), theirs.channels.size());
  }
  if (ours.bandwidth_intra_gbps != theirs.bandwidth_intra_gbps) {
    return differ("the bandwidth inside a host (GB/s)", ours.bandwidth_intra_gbps,
                  theirs.bandwidth_intra_gbps);
  }
  if (ours.bandwidth_inter_gbps != theirs.bandwidth_inter_gbps) {
    return differ("the bandwidth between hosts (GB/s)", ours.bandwidth_inter_gbps,
                  theirs.bandwidth_inter_gbps);
  }
  if (ours.kind_intra != theirs.kind_intra) {
    return differ("the kind of path inside a host", Name(ours.kind_intra), Name(theirs.kind_intra));
  }
  if (ours.kind_inter != theirs.kind_inter) {
    return differ("the kind of path to the NIC", Name(ours.kind_inter), Name(theirs.kind_inter));
  }
  if (ours.cross_nic != theirs.cross_nic) {
    return differ("whether rings leave by another NIC than they came in by", ours.cross_nic,
                  theirs.cross_nic);
  }
  for (size_t c = 0; c < ours.channels.size(); ++c) {
    const Channel& a = ours.channels[c];
    const Channel& b = theirs.channels[c];
    if (a == b) continue;
    const size_t shared = std::min(a.devices.size(), b.devices.size());
    for (size_t i = 0; i < shared; ++i) {
      if (a.devices[i] != b.devices[i]) {
        return differ(fmt::format("place {} of channel {}", i, c), a.devices[i], b.devices[i]);
      }
    }
    if (a.devices.size() != b.devices.size()) {
      return differ(fmt::format("the length of channel {}", c), a.devices.size(), b.devices.size());
    }
    return differ(fmt::format("the port of channel {}", c),
                  fmt::format("{} to {}", a.net_in, a.net_out),
                  fmt::format("{} to {}", b.net_in, b.net_out));
  }
  return std::nullopt;
}

}  // namespace tutti::topology
