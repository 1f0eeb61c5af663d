#pragma once

// Computes reduction inside switches: which GPUs bring the parts of a vector to the switch, and the
// bandwidth that the machine's links allow. docs/channel_search.md draws the shapes. No search is
// made: loads are counted, and the narrowest link decides the bandwidth.
//
// Pure functions; from any thread. A topology does not tell whether a switch can reduce; the result
// is the shape for a switch that can.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::tools::topo {

enum class Reducer : uint8_t {
  kNvSwitch,       // NVLS: the switch that joins the GPUs of a host
  kNetworkSwitch,  // CollNet: switches of the network; only between hosts
};

// A GPU that takes a part of the vector for all GPUs, and the GPU's port between hosts.
struct Head {
  topology::NodeIndex device = topology::kNoIndex;
  topology::NodeIndex net = topology::kNoIndex;

  friend bool operator==(const Head&, const Head&) = default;
};

struct Stars {
  std::vector<Head> heads;    // a channel each; a GPU may have several
  double bandwidth_gbps = 0;  // GB/s of the vector, for each head
  topology::PathKind kind_intra = topology::PathKind::kLocal;  // the worst kind in use
  topology::PathKind kind_inter = topology::PathKind::kLocal;

  double TotalGbps() const { return static_cast<double>(heads.size()) * bandwidth_gbps; }
};

// Finds the heads among all GPUs of the graph. InvalidUsage says why the machine has no such shape:
// no GPU, one GPU or one host where several are needed, GPUs before Hopper or away from the switch,
// or no port.
[[nodiscard]] Result<Stars> FindStars(const topology::Graph& graph, const topology::Paths& paths,
                                      Reducer reducer, bool inter_host);

}  // namespace tutti::tools::topo
