#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <vector>

#include "plan/choose.h"
#include "plan/mesh.h"

namespace tutti {
namespace {

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
  for (const char* other :
       {"collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat", "symmetric"})
    if (name == other) return 0;
  return std::nullopt;
}

std::optional<uint32_t> ProtocolBit(const std::string& name) {
  if (name == "ll") return Bit(Protocol::kLL);
  if (name == "simple") return Bit(Protocol::kSimple);
  if (name == "ll128") return 0;
  return std::nullopt;
}

std::optional<uint32_t> MeshProtocolBit(const std::string& name) {
  if (name == "ll") return Bit(Protocol::kLL);
  if (name == "ll128") return Bit(Protocol::kLL128);
  if (name == "simple") return Bit(Protocol::kSimple);
  return std::nullopt;
}

std::optional<uint32_t> RouteBit(const std::string& name) {
  if (name == "oneshot") return Bit(MeshRoute::kOneShot);
  if (name == "twoshot") return Bit(MeshRoute::kTwoShot);
  if (name == "ring") return Bit(MeshRoute::kRing);
  if (name == "symmetric") return Bit(MeshRoute::kSymmetric);
  if (AlgorithmBit(name)) return 0;
  return std::nullopt;
}

// One of the settings: its values are bits, one for each name.
struct ListSetting {
  const char* name;
  std::optional<uint32_t> (*bit)(const std::string& name);
  uint32_t all;
  const char* known;  // for the error
};

constexpr ListSetting kAlgorithms = {
    "NCCL_ALGO", AlgorithmBit, (1u << kNumAlgorithms) - 1,
    "no algorithm; there are ring, tree, recursivedoubling, oneshot, twoshot, pull and exchange"};
constexpr ListSetting kProtocols = {"NCCL_PROTO", ProtocolBit,
                                    Bit(Protocol::kLL) | Bit(Protocol::kSimple),
                                    "no protocol; hosts have LL and Simple"};
constexpr ListSetting kRoutes = {"NCCL_ALGO", RouteBit, 15,
                                 "no algorithm; GPUs have oneshot, twoshot, ring and symmetric"};
constexpr ListSetting kMeshProtocols = {"NCCL_PROTO", MeshProtocolBit, 7,
                                        "no protocol; GPUs have LL, LL128 and Simple"};

Result<uint32_t> ReadNames(const ListSetting& setting, std::string_view names) {
  const bool exclude = names.starts_with('^');
  if (exclude) names.remove_prefix(1);
  uint32_t bits = 0;
  for (const std::string_view name : Split(names, ',')) {
    if (name.empty()) continue;
    const std::optional<uint32_t> bit = setting.bit(Lower(name));
    if (!bit) return InvalidUsage("{}: \"{}\" is {}", setting.name, name, setting.known);
    bits |= *bit;
  }
  return exclude ? setting.all & ~bits : bits;
}

std::optional<size_t> CollectiveIndex(const std::string& name) {
  for (size_t i = 0; i < kNumCollectives; ++i)
    if (name == Lower(Name(static_cast<Collective>(i)))) return i;
  return std::nullopt;
}

Status ApplyList(const ListSetting& setting, std::string_view text,
                 std::array<uint32_t, kNumCollectives>& allowed) {
  for (const std::string_view entry : Split(text, ';')) {
    if (entry.empty()) continue;
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      TUTTI_ASSIGN(const uint32_t bits, ReadNames(setting, entry));
      allowed.fill(bits);
      continue;
    }
    const std::optional<size_t> index = CollectiveIndex(Lower(entry.substr(0, colon)));
    if (!index)
      return InvalidUsage("{}: \"{}\" is no collective", setting.name, entry.substr(0, colon));
    TUTTI_ASSIGN(allowed[*index], ReadNames(setting, entry.substr(colon + 1)));
  }
  return Status::Ok();
}

}  // namespace

bool LeavesNothing(std::string_view text, const std::array<uint32_t, kNumCollectives>& allowed) {
  return !text.empty() &&
         std::all_of(allowed.begin(), allowed.end(), [](uint32_t bits) { return bits == 0; });
}

Status ApplyAlgorithmList(std::string_view algo, PlanContext& context) {
  return ApplyList(kAlgorithms, algo, context.allowed_algorithms);
}

Status ApplyProtocolList(std::string_view proto, PlanContext& context) {
  return ApplyList(kProtocols, proto, context.allowed_protocols);
}

Status ApplyMeshRoutes(std::string_view algo, MeshContext& context) {
  return ApplyList(kRoutes, algo, context.allowed_routes);
}

Status ApplyMeshProtocols(std::string_view proto, MeshContext& context) {
  return ApplyList(kMeshProtocols, proto, context.allowed_protocols);
}

}  // namespace tutti
