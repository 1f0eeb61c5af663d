#include "perf/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/datatype.h"

namespace tutti::tools {
namespace {

// More sets of buffers gain nothing, because small messages are in the cache in real programs, too.
constexpr size_t kMaxRotation = 64;
// A longer table is a mistake in the step.
constexpr size_t kMaxSizes = 10000;

std::string Lower(std::string_view text) {
  std::string lower;
  for (const char letter : text)
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return lower;
}

std::vector<std::string> SplitCommas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.push_back(Lower(text.substr(0, comma)));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

struct TypeSpelling {
  std::string_view spelling;
  ncclDataType_t type;
};
constexpr TypeSpelling kTypeSpellings[] = {
    {"i8", ncclInt8},
    {"char", ncclInt8},
    {"u8", ncclUint8},
    {"i32", ncclInt32},
    {"int", ncclInt32},
    {"u32", ncclUint32},
    {"i64", ncclInt64},
    {"u64", ncclUint64},
    {"f16", ncclFloat16},
    {"half", ncclFloat16},
    {"f32", ncclFloat32},
    {"float", ncclFloat32},
    {"f64", ncclFloat64},
    {"double", ncclFloat64},
    {"bf16", ncclBfloat16},
    {"bfloat", ncclBfloat16},
    {"f8e4m3", ncclFloat8e4m3},
    {"fp8e4m3", ncclFloat8e4m3},
    {"fp8_e4m3", ncclFloat8e4m3},
    {"f8e5m2", ncclFloat8e5m2},
    {"fp8e5m2", ncclFloat8e5m2},
    {"fp8_e5m2", ncclFloat8e5m2},
};

Result<ncclDataType_t> ParseType(const std::string& name) {
  std::string known;
  for (int i = 0; i < kNumDataTypes; ++i) {
    const auto type = static_cast<ncclDataType_t>(i);
    if (TypeName(type) == name) return type;
    known += fmt::format("{}{}", i ? ", " : "", TypeName(type));
  }
  for (const TypeSpelling& entry : kTypeSpellings) {
    if (entry.spelling == name) return entry.type;
  }
  return InvalidArgument("'{}' is no type; there are {} and all", name, known);
}

constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProd, Reduction::kMin,
                                     Reduction::kMax, Reduction::kAvg,  Reduction::kMulSum};

Result<Reduction> ParseReduction(const std::string& name) {
  for (const Reduction reduction : kReductions) {
    if (Name(reduction) == name) return reduction;
  }
  if (name == "premulsum") return Reduction::kMulSum;
  return InvalidArgument("'{}' is no operator; there are sum, prod, min, max, avg, mulsum and all",
                         name);
}

}  // namespace

Result<size_t> ParseBytes(std::string_view text) {
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit = Lower(
      std::string_view(parsed.ptr, static_cast<size_t>(text.data() + text.size() - parsed.ptr)));
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  if (unit.ends_with("b")) unit.resize(unit.size() - 1);
  constexpr std::string_view kUnits = "kmgt";
  int power = 0;
  if (unit.size() == 1) power = static_cast<int>(kUnits.find(unit[0])) + 1;
  // npos + 1 is 0: a text without the separator is taken whole.
  const bool unit_known = unit.empty() || (unit.size() == 1 && power > 0);
  const double bytes = std::ldexp(value, 10 * power);
  if (parsed.ec != std::errc() || !unit_known || !(bytes >= 0) || bytes > 0x1p50 ||
      bytes != std::floor(bytes)) {
    return InvalidArgument(
        "'{}' is no size; write a number of bytes, with K, M or G for powers of 1024", text);
  }
  return static_cast<size_t>(bytes);
}

std::string BytesText(size_t bytes) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T"};
  int unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

Result<std::vector<size_t>> SizesBetween(size_t first, size_t last, double factor, size_t step) {
  if (first > last) {
    return InvalidArgument("the first size, {}, is above the last, {}", BytesText(first),
                           BytesText(last));
  }
  if (step == 0 && !(factor > 1) && first != last) {
    return InvalidArgument("a step factor of {} never reaches the last size; it must be above 1",
                           factor);
  }
  std::vector<size_t> sizes;
  for (size_t size = first; size <= last;) {
    sizes.push_back(size);
    if (size == last) break;
    if (sizes.size() > kMaxSizes)
      return InvalidArgument("these steps make more than {} sizes", kMaxSizes);
    // 0 bytes times any factor is 0: the next size is one element of the widest type.
    const size_t next = step ? size + step
                        : size == 0
                            ? 8
                            : static_cast<size_t>(std::llround(static_cast<double>(size) * factor));
    size = std::max(next, size + 1);
  }
  return sizes;
}

Result<std::vector<CollectiveInfo>> ParseCollectives(std::string_view text) {
  std::vector<CollectiveInfo> collectives;
  for (const std::string& name : SplitCommas(text)) {
    TUTTI_ASSIGN(collectives.emplace_back(), ParseCollective(name));
  }
  return collectives;
}

Result<std::vector<ncclDataType_t>> ParseTypes(std::string_view text) {
  std::vector<ncclDataType_t> types;
  for (const std::string& name : SplitCommas(text)) {
    if (name == "all") {
      for (int i = 0; i < kNumDataTypes; ++i) types.push_back(static_cast<ncclDataType_t>(i));
      continue;
    }
    TUTTI_ASSIGN(const ncclDataType_t type, ParseType(name));
    types.push_back(type);
  }
  return types;
}

std::string_view TypeName(ncclDataType_t type) { return tutti::Name(static_cast<DataType>(type)); }

Result<std::vector<Reduction>> ParseReductions(std::string_view text) {
  std::vector<Reduction> reductions;
  for (const std::string& name : SplitCommas(text)) {
    if (name == "all") {
      reductions.insert(reductions.end(), std::begin(kReductions), std::end(kReductions));
      continue;
    }
    TUTTI_ASSIGN(const Reduction reduction, ParseReduction(name));
    reductions.push_back(reduction);
  }
  return reductions;
}

Result<std::vector<int>> ParseRoots(std::string_view text, int num_ranks) {
  std::vector<int> roots;
  if (Lower(text) == "all" || text == "-1") {
    for (int rank = 0; rank < num_ranks; ++rank) roots.push_back(rank);
    return roots;
  }
  int root = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), root);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || root < 0 ||
      root >= num_ranks) {
    return InvalidArgument("'{}' is no root; there are ranks 0 to {}, and all", text,
                           num_ranks - 1);
  }
  return std::vector<int>{root};
}

int ChooseRotation(size_t bytes_per_set, size_t cache_bytes, size_t memory_bytes, int ranks_here) {
  if (bytes_per_set == 0) return 1;
  const size_t ranks = static_cast<size_t>(std::max(ranks_here, 1));
  // Twice the cache, for a set to have left the cache when its turn comes again; a quarter of the
  // memory at the most.
  const size_t wanted = std::min(2 * cache_bytes, memory_bytes / 4) / ranks;
  const size_t sets = (wanted + bytes_per_set - 1) / bytes_per_set;
  return static_cast<int>(std::clamp<size_t>(sets, 1, kMaxRotation));
}

}  // namespace tutti::tools
