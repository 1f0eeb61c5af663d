#pragma once

// Walks recursively: lays a given number of channels of a given bandwidth over the machine, hop
// after hop. The walk takes bandwidth away as hops use it and gives the bandwidth back on return,
// until all channels fit, every possibility was tried, or the steps are used up. Internal to the
// search.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "topology/channels.h"
#include "topology/search_hops.h"

namespace tutti::topology {

// A channel in the numbers of a HopTable.
struct Draft {
  std::vector<uint32_t> devices;
  uint32_t net_in = kNoIndex;
  uint32_t net_out = kNoIndex;
};

// One path that a channel loads, with the bandwidth inside a host or the bandwidth between hosts,
// or half of the latter.
struct Leg {
  Hop hop;
  bool inter = false;
  bool half = false;
};
std::vector<Leg> LegsOf(const HopTable& table, Pattern pattern, bool inter_host,
                        const Draft& draft);

// Holds the demand on the channels. Kinds of paths worse than these are not used.
struct Trial {
  Pattern pattern = Pattern::kRing;
  bool inter_host = false;
  PathKind kind_intra = PathKind::kLocal;
  PathKind kind_inter = PathKind::kLocal;
  int cross_nic = 0;
  uint32_t channels = 1;
  Kbps bandwidth_intra = 0;  // per channel, multiples of kGrain
  Kbps bandwidth_inter = 0;
  bool replay = true;   // try first whether the last channel fits again
  bool reverse = true;  // then try the last channel in reverse
};

class Walk {
 public:
  explicit Walk(const HopTable& table);

  // Returns the channels, or nothing. `*steps` is the number of hops that may be looked at; Find
  // subtracts the hops that were looked at. `*steps` is 0 when the walk ended for want of steps.
  std::optional<std::vector<Draft>> Find(const Trial& trial, uint64_t* steps);

  // Returns whether the machine could hold the trial at all, going by what enters and leaves each
  // device and each port alone. A result of false is final; a result of true is not certain.
  bool MayFit(const Trial& trial);

 private:
  void Begin(const Trial& trial);
  void FindExits();
  void FindPorts();
  bool CountsFit(uint32_t channels) const;
  bool PortsFit() const;
  uint64_t HopsThrough(const std::vector<std::vector<uint32_t>>& ways, uint32_t channels) const;
  bool NextChannel();
  bool Replay(const Draft& draft);
  bool StartInside();
  bool StartFromNet();
  bool StartAt(uint32_t net, uint32_t device);
  bool NextHop();
  bool TryHop(uint32_t device);
  bool Close();
  bool CloseBy(uint32_t net);
  bool Done();

  Kbps TreeShare(size_t depth) const;
  bool MayCross(uint32_t net_in, uint32_t net_out) const;
  void MarkEnds();
  void ListCandidates(uint32_t from);
  std::vector<uint32_t> NetsByUse() const;
  bool Take(const Hop& hop, Kbps bandwidth);
  void Give(const Hop& hop, Kbps bandwidth);
  Kbps Left(const Hop& hop) const;
  bool Fits(const Hop& hop, PathKind worst, Kbps bandwidth) const {
    return hop.kind <= worst && Left(hop) >= bandwidth;
  }
  bool Spend(uint64_t steps);

  struct Candidate {
    uint64_t order = 0;  // The candidate with the lowest order is tried first,
    uint64_t tie = 0;    // and among equal orders the one with the lowest tie.
    uint32_t device = 0;
  };

  const HopTable& table_;
  Trial trial_;
  uint64_t steps_left_ = 0;
  std::vector<Kbps> left_;  // per resource
  // Per device: the first links of its paths to devices, and the last links of paths to the device.
  std::vector<std::vector<uint32_t>> exits_;
  std::vector<std::vector<uint32_t>> entries_;
  std::optional<PathKind> exits_kind_;  // the kind for which exits_ and entries_ were made
  std::vector<Kbps> ports_in_;          // per port: what can enter by paths of ports_kind_
  std::vector<Kbps> ports_out_;         // and what can leave
  std::optional<PathKind> ports_kind_;
  std::vector<Draft> laid_;
  Draft draft_;  // the channel that is being laid
  std::vector<uint8_t> visited_;
  std::vector<uint8_t> is_end_;       // rings between hosts: devices that may be the channel's last
  uint32_t ends_left_ = 0;            // number of ends not yet visited
  std::vector<uint32_t> starts_;      // per device: channels that start at the device
  std::vector<uint32_t> net_starts_;  // per net: channels that start at the net
  std::vector<Candidate> candidates_;  // a stack of lists, one per hop of the current channel
};

}  // namespace tutti::topology
