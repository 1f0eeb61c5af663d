#include "launch/slurm.h"

#include <charconv>

#include "base/text.h"
#include "launch/environment.h"

namespace tutti::launch {
namespace {

// Reads a number from 1 to kMaxRanks off the front of `text`, and removes it.
std::optional<int> TakeCount(std::string_view& text) {
  int value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || value < 1 || value > kMaxRanks) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
  return value;
}

// Reads "4" or "4(x2)".
std::optional<NodeGroup> ReadGroup(std::string_view text) {
  const std::optional<int> tasks = TakeCount(text);
  if (!tasks) return std::nullopt;
  if (text.empty()) return NodeGroup{*tasks, 1};
  if (!text.starts_with("(x")) return std::nullopt;
  text.remove_prefix(2);
  const std::optional<int> nodes = TakeCount(text);
  if (!nodes || text != ")") return std::nullopt;
  return NodeGroup{*tasks, *nodes};
}

}  // namespace

std::string FirstHost(std::string_view host_list) {
  const size_t end = host_list.find_first_of(",[");
  std::string host(host_list.substr(0, end));
  if (end == std::string_view::npos || host_list[end] == ',') return host;
  // In "[07-12,20]suffix" the first number keeps its leading zeros, and the text after the bracket
  // stays.
  const std::string_view rest = host_list.substr(end + 1);
  host += rest.substr(0, rest.find_first_of(",-]"));
  const size_t close = rest.find(']');
  if (close == std::string_view::npos) return host;
  const std::string_view suffix = rest.substr(close + 1);
  host += suffix.substr(0, suffix.find_first_of(",["));
  return host;
}

std::vector<NodeGroup> ReadTasksPerNode(std::string_view text) {
  std::vector<NodeGroup> groups;
  while (!text.empty()) {
    const std::optional<NodeGroup> group = ReadGroup(NextItem(text, ','));
    if (!group) return {};
    groups.push_back(*group);
  }
  return groups;
}

std::optional<int> TasksOnNode(const std::vector<NodeGroup>& groups, int node) {
  if (node < 0) return std::nullopt;
  for (const NodeGroup& group : groups) {
    if (node < group.nodes) return group.tasks;
    node -= group.nodes;
  }
  return std::nullopt;
}

}  // namespace tutti::launch
