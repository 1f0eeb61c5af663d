#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <vector>

#include "plan/algorithm_table.h"
#include "plan/plan.h"

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

// The names of algorithms that only NCCL has. A setting made for NCCL may contain these names, and
// they stand for no algorithm of Tutti.
constexpr std::string_view kNcclsOwn[] = {"collnet", "collnetdirect", "collnetchain",
                                          "nvls",    "nvlstree",      "pat"};

// Return the bits of all algorithms, or of all protocols, in the rows of the table.
template <class Rows>
uint32_t AlgorithmsIn(const Rows& rows) {
  uint32_t bits = 0;
  for (const AlgorithmRow& row : rows) bits |= Bit(row.algorithm);
  return bits;
}
template <class Rows>
uint32_t ProtocolsIn(const Rows& rows) {
  uint32_t bits = 0;
  for (const AlgorithmRow& row : rows) bits |= row.protocols;
  return bits;
}

// Returns the bit of the algorithm with this name in lower case, 0 for a name that only NCCL has,
// or nothing for an unknown name.
std::optional<uint32_t> AlgorithmBit(const std::string& name) {
  for (int a = 0; a < kNumAlgorithms; ++a)
    if (name == Lower(Name(static_cast<Algorithm>(a)))) return Bit(static_cast<Algorithm>(a));
  for (const std::string_view other : kNcclsOwn)
    if (name == other) return 0;
  return std::nullopt;
}

std::optional<uint32_t> ProtocolBit(const std::string& name) {
  for (int p = 0; p < kNumProtocols; ++p)
    if (name == Lower(Name(static_cast<Protocol>(p)))) return Bit(static_cast<Protocol>(p));
  return std::nullopt;
}

// Returns the names of the set bits, as "a, b and c". REQUIRES: at least two bits are set.
template <class Value>
std::string NamesOf(uint32_t bits) {
  std::vector<std::string_view> names;
  for (uint32_t v = 0; bits >> v != 0; ++v)
    if ((bits >> v & 1) != 0) names.push_back(Name(static_cast<Value>(v)));
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

// Describes NCCL_ALGO or NCCL_PROTO. The values of both settings are sets of bits, a bit for each
// name.
struct ListSetting {
  const char* name;
  const char* what;
  const char* ranks;
  std::optional<uint32_t> (*bit)(const std::string& name);
  std::string (*names)(uint32_t bits);
  uint32_t all;  // The bits of all names that these ranks have.
};

constexpr const char* NameOf(RankKind kind) {
  return kind == RankKind::kHost   ? "hosts"
         : kind == RankKind::kMesh ? "GPUs"
                                   : "GPUs of several hosts";
}

ListSetting AlgorithmSetting(RankKind kind) {
  return {"NCCL_ALGO",  "algorithm",        NameOf(kind),
          AlgorithmBit, NamesOf<Algorithm>, AlgorithmsIn(RowsOf(kind))};
}

// The rows of channels have a single protocol, and NCCL_PROTO has no effect on them.
ListSetting ProtocolSetting(RankKind kind) {
  return {"NCCL_PROTO", "protocol",        NameOf(kind),
          ProtocolBit,  NamesOf<Protocol>, ProtocolsIn(RowsOf(kind))};
}

// Reads "ring,tree", or "^ring" for all names except "ring". Returns the bits of the allowed names.
Result<uint32_t> ReadNames(const ListSetting& setting, std::string_view names) {
  const bool exclude = names.starts_with('^');
  if (exclude) names.remove_prefix(1);
  if (names.empty()) return InvalidUsage("{}: an entry names no {}", setting.name, setting.what);
  uint32_t bits = 0;
  for (const std::string_view name : Split(names, ',')) {
    if (name.empty()) continue;
    const std::optional<uint32_t> bit = setting.bit(Lower(name));
    if (!bit)
      return InvalidUsage("{}: \"{}\" is no {}; {} have {}", setting.name, name, setting.what,
                          setting.ranks, setting.names(setting.all));
    bits |= *bit;
  }
  return setting.all & (exclude ? ~bits : bits);
}

std::optional<size_t> CollectiveIndex(const std::string& name) {
  for (size_t i = 0; i < kNumCollectives; ++i)
    if (name == Lower(Name(static_cast<Collective>(i)))) return i;
  return std::nullopt;
}

// Applies lists as NCCL 2.30 reads them: "LIST;collective:LIST;…". The first entry may be a list
// for all collectives. A collective without an entry is left alone. NCCL 2.31 allows such a
// collective nothing; for both versions a user may write "ring,tree;allreduce:tree".
Status ApplyList(const ListSetting& setting, std::string_view text,
                 std::array<uint32_t, kNumCollectives>& allowed) {
  bool first = true;
  for (const std::string_view entry : Split(text, ';')) {
    if (entry.empty()) continue;
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      if (!first)
        return InvalidUsage("{}: \"{}\" is for all collectives, and must be the first entry",
                            setting.name, entry);
      TUTTI_ASSIGN(const uint32_t bits, ReadNames(setting, entry));
      allowed.fill(bits);
      first = false;
      continue;
    }
    first = false;
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
  return ApplyList(AlgorithmSetting(context.kind), algo, context.allowed_algorithms);
}

Status ApplyProtocolList(std::string_view proto, PlanContext& context) {
  return ApplyList(ProtocolSetting(context.kind), proto, context.allowed_protocols);
}

Result<uint32_t> ReadAlgorithmNames(std::string_view names) {
  ListSetting setting = AlgorithmSetting(RankKind::kHost);
  setting.name = "algSelection";
  setting.ranks = "hosts and GPUs";
  for (const RankKind kind : {RankKind::kMesh, RankKind::kChannels})
    setting.all |= AlgorithmsIn(RowsOf(kind));
  return ReadNames(setting, names);
}

}  // namespace tutti
