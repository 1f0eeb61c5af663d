#include "sys/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <string>

#include "base/text.h"

namespace tutti {
namespace {

// More nodes than any kernel is built for.
constexpr int kMostNodes = 1024;
constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

int NumaNodeCount() {
  static const int count = [] {
    std::string line;
    std::getline(std::ifstream("/sys/devices/system/node/online"), line);
    const std::vector<bool> nodes = ParseNumberList(line);
    return std::max(1, static_cast<int>(std::count(nodes.begin(), nodes.end(), true)));
  }();
  return count;
}

// Sixteen bits suffice for the nodes and the cores of any host.
std::vector<bool> ParseNumberList(std::string_view list) {
  std::vector<bool> numbers;
  while (!list.empty()) {
    const std::string_view item = NextItem(list, ',');
    const size_t dash = std::min(item.find('-'), item.size());
    const std::optional<uint16_t> first = WholeNumber<uint16_t>(item.substr(0, dash));
    const std::optional<uint16_t> last =
        dash == item.size() ? first : WholeNumber<uint16_t>(item.substr(dash + 1));
    if (!first || !last || *last < *first) return {};
    if (*last >= numbers.size()) numbers.resize(*last + size_t{1});
    std::fill(numbers.begin() + *first, numbers.begin() + *last + 1, true);
  }
  return numbers;
}

Status PreferNumaNode(std::span<std::byte> memory, int node) {
  if (node < 0 || node >= kMostNodes) return InvalidArgument("there is no NUMA node {}", node);
  std::array<unsigned long, kMostNodes / kBitsPerWord> mask{};
  mask[static_cast<size_t>(node / kBitsPerWord)] = 1ul << (node % kBitsPerWord);
  // The kernel reads a bit fewer than the given size.
  if (syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, mask.data(),
              static_cast<unsigned long>(kMostNodes) + 1, 0ul) != 0) {
    return ErrnoError(errno, fmt::format("preferring NUMA node {} for memory failed", node));
  }
  return Status::Ok();
}

}  // namespace tutti
