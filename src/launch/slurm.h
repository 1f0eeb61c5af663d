#pragma once

// Parses the two compact lists by which Slurm describes a job step. Pure functions.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

// Returns the first host of a host list: "node[07-12,20]x,login" gives "node07x".
std::string FirstHost(std::string_view host_list);

// Runs of nodes that have equally many tasks, in the order of the nodes.
struct NodeGroup {
  int tasks = 0;
  int nodes = 0;
  friend bool operator==(const NodeGroup&, const NodeGroup&) = default;
};

// Reads SLURM_STEP_TASKS_PER_NODE: "4(x2),3" is two nodes with 4 tasks and one node with 3. Empty
// for an empty or malformed text.
std::vector<NodeGroup> ReadTasksPerNode(std::string_view text);

// Returns the number of tasks on node `node`, or nothing where the groups do not reach it.
std::optional<int> TasksOnNode(const std::vector<NodeGroup>& groups, int node);

}  // namespace tutti::launch
