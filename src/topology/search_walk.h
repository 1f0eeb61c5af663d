#pragma once

// The recursive walk: lays a given number of channels of a given bandwidth over the machine, one
// hop after another, taking bandwidth away as hops use it and giving it back on return, until all
// fit or every possibility was tried or the steps are used up. Internal to the search.

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

// One way that a channel loads; it takes the bandwidth inside a host or the one between hosts, or
// half of that.
struct Leg {
  Hop hop;
  bool inter = false;
  bool half = false;
};
std::vector<Leg> LegsOf(const HopTable& table, Pattern pattern, bool inter_host,
                        const Draft& draft);

// Says what is demanded of the channels. Worse kinds of paths than these are not used.
struct Trial {
  Pattern pattern = Pattern::kRing;
  bool inter_host = false;
  PathKind kind_intra = PathKind::kLocal;
  PathKind kind_inter = PathKind::kLocal;
  int cross_nic = 0;
  uint32_t channels = 1;
  Kbps bandwidth_intra = 0;  // per channel, multiples of kGrain
  Kbps bandwidth_inter = 0;
  bool replay = true;   // look first whether the last channel fits again,
  bool reverse = true;  // and the other way round
};

class Walk {
 public:
  explicit Walk(const HopTable& table);

  // Returns the channels, or nothing. `*steps` is what may be spent, a step being one hop that is
  // looked at; what was spent is taken off. It is 0 when the walk ended for want of steps.
  std::optional<std::vector<Draft>> Find(const Trial& trial, uint64_t* steps);

  // Returns whether the machine could hold the trial at all, going by what enters and leaves each
  // device and each port alone. False is final; true is a hope.
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
    uint64_t order = 0;  // lower is tried first,
    uint64_t tie = 0;    // and of equal ones that with the lower tie
    uint32_t device = 0;
  };

  const HopTable& table_;
  Trial trial_;
  uint64_t steps_left_ = 0;
  std::vector<Kbps> left_;  // per resource
  // Per device: the first links of its ways to other devices, and the last links of ways to it.
  std::vector<std::vector<uint32_t>> exits_;
  std::vector<std::vector<uint32_t>> entries_;
  std::optional<PathKind> exits_kind_;  // the kind that exits_ and entries_ were made for
  std::vector<Kbps> ports_in_;          // per port: what can come in by ways of ports_kind_,
  std::vector<Kbps> ports_out_;         // and go out
  std::optional<PathKind> ports_kind_;
  std::vector<Draft> laid_;
  Draft draft_;  // being laid
  std::vector<uint8_t> visited_;
  std::vector<uint8_t> is_end_;   // rings between hosts: devices that may be this channel's last
  uint32_t ends_left_ = 0;        // So many of them were not visited yet.
  std::vector<uint32_t> starts_;  // per device and
  std::vector<uint32_t> net_starts_;   // per net: channels that start there
  std::vector<Candidate> candidates_;  // a stack of lists, one per hop of the channel being laid
};

}  // namespace tutti::topology
