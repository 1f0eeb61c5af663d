#include "sys/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <fstream>
#include <string>
#include <string_view>

namespace tutti {
namespace {

// More nodes than any kernel is built for.
constexpr int kMostNodes = 1024;
constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

// Returns the number of entries in a list: 3 for "0-1,4".
int CountList(std::string_view text) {
  int count = 0;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    int first = 0;
    const char* const end = item.data() + item.size();
    const auto [dash, error] = std::from_chars(item.data(), end, first);
    if (error != std::errc()) break;
    int last = first;
    if (dash != end && *dash == '-') std::from_chars(dash + 1, end, last);
    count += std::max(0, last - first) + 1;
  }
  return std::max(1, count);
}

}  // namespace

int NumaNodeCount() {
  static const int count = [] {
    std::string line;
    std::getline(std::ifstream("/sys/devices/system/node/online"), line);
    return CountList(line);
  }();
  return count;
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
