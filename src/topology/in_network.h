#pragma once

// Reduction inside switches: which GPUs bring the parts of a vector to the switch, and what the
// machine's links leave to that. docs/channel_search.md draws it. No search: loads are counted and
// the narrowest link tells the bandwidth.
//
// Pure functions; from any thread. Whether a switch can reduce is not known from a topology: this
// says what the shape would be.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::topology {

enum class Reducer : uint8_t {
  kNvSwitch,       // NVLS: the switch that joins the GPUs of a host
  kNetworkSwitch,  // CollNet: switches of the network; only between hosts
};

// A GPU that stands for all others with a part of the vector, and the port it uses between hosts.
struct Head {
  NodeIndex device = kNoIndex;
  NodeIndex net = kNoIndex;

  friend bool operator==(const Head&, const Head&) = default;
};

struct Stars {
  std::vector<Head> heads;                 // a channel each; a GPU may have several
  double bandwidth_gbps = 0;               // GB/s of the vector, for each head
  PathKind kind_intra = PathKind::kLocal;  // the worst that is used
  PathKind kind_inter = PathKind::kLocal;

  double TotalGbps() const { return static_cast<double>(heads.size()) * bandwidth_gbps; }
};

// `devices`: of the job; empty: all. InvalidUsage says why there is no such shape: GPUs before
// Hopper or away from the switch, one host only for a network's switch, no port.
[[nodiscard]] Result<Stars> FindStars(const Graph& graph, const Paths& paths, Reducer reducer,
                                      bool inter_host, std::span<const NodeIndex> devices = {});

}  // namespace tutti::topology
