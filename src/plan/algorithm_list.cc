#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

#include "plan/choose.h"

namespace tutti {
namespace {

constexpr uint32_t kAllAlgorithms = (1u << kNumAlgorithms) - 1;

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// 0 for names that mean something elsewhere only.
std::optional<uint32_t> AlgorithmBit(const std::string& name) {
  for (int a = 0; a < kNumAlgorithms; ++a)
    if (name == Lower(Name(static_cast<Algorithm>(a)))) return 1u << a;
  for (const char* other : {"collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"})
    if (name == other) return 0;
  return std::nullopt;
}

Result<uint32_t> ReadNames(std::string_view names) {
  const bool exclude = names.starts_with('^');
  if (exclude) names.remove_prefix(1);
  uint32_t bits = 0;
  for (const std::string_view name : Split(names, ',')) {
    if (name.empty()) continue;
    const std::optional<uint32_t> bit = AlgorithmBit(Lower(name));
    if (!bit) {
      return InvalidUsage(
          "NCCL_ALGO: \"{}\" is no algorithm; there are ring, tree, recursivedoubling, oneshot, "
          "twoshot, pull and exchange",
          name);
    }
    bits |= *bit;
  }
  return exclude ? kAllAlgorithms & ~bits : bits;
}

std::optional<size_t> CollectiveIndex(const std::string& name) {
  for (size_t i = 0; i < std::tuple_size_v<decltype(PlanContext::allowed_algorithms)>; ++i)
    if (name == Lower(Name(static_cast<Collective>(i)))) return i;
  return std::nullopt;
}

}  // namespace

Status ApplyAlgorithmList(std::string_view algo, PlanContext& context) {
  for (const std::string_view entry : Split(algo, ';')) {
    if (entry.empty()) continue;
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      TUTTI_ASSIGN(const uint32_t bits, ReadNames(entry));
      context.allowed_algorithms.fill(bits);
      continue;
    }
    const std::optional<size_t> index = CollectiveIndex(Lower(entry.substr(0, colon)));
    if (!index) return InvalidUsage("NCCL_ALGO: \"{}\" is no collective", entry.substr(0, colon));
    TUTTI_ASSIGN(context.allowed_algorithms[*index], ReadNames(entry.substr(colon + 1)));
  }
  return Status::Ok();
}

Status ApplyProtocolList(std::string_view proto, PlanContext& context) {
  const bool exclude = proto.starts_with('^');
  if (exclude) proto.remove_prefix(1);
  uint32_t bits = 0;
  for (const std::string_view name : Split(proto, ',')) {
    const std::string lower = Lower(name);
    if (lower == "ll")
      bits |= 1u << static_cast<int>(Protocol::kLL);
    else if (lower == "simple")
      bits |= 1u << static_cast<int>(Protocol::kSimple);
    else if (!lower.empty() && lower != "ll128")
      return InvalidUsage("NCCL_PROTO: \"{}\" is no protocol; hosts have LL and Simple", name);
  }
  if (exclude) bits = ~bits & 3u;
  context.allowed_protocols = bits == 0 ? 3 : bits;
  return Status::Ok();
}

}  // namespace tutti
