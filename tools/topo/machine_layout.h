#pragma once

// Places each node of a machine in its picture. Internal to machine_picture.h.

#include <map>
#include <vector>

#include "topo/picture.h"
#include "topology/graph.h"

namespace tutti::tools::topo {

struct Layout {
  std::map<topology::NodeIndex, Box>
      boxes;  // without fill; a NIC's box spans the boxes of its ports
  std::vector<std::pair<topology::NodeIndex, topology::NodeIndex>>
      tree;  // parent and child in the PCI tree, as drawn
  double left = 0;
  double width = 0;     // the machine's width
  double leaf_top = 0;  // top of the row of devices and ports
  double leaf_bottom = 0;
};

Layout PlaceMachine(const topology::Graph& graph, double left, double top);

inline Point TopOf(const Box& box) { return {box.corner.x + box.width / 2, box.corner.y}; }
inline Point BottomOf(const Box& box) {
  return {box.corner.x + box.width / 2, box.corner.y + box.height};
}

}  // namespace tutti::tools::topo
