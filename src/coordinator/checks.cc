#include "coordinator/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

namespace tutti::coordinator {
namespace {

using Field = std::function<std::string(const Request&)>;

// Returns a text such as "float32 on rank 0, float64 on ranks 1 and 2", or "" where all ranks say
// the same.
std::string Differing(const Claim& claim, const Field& field) {
  std::vector<std::pair<std::string, RankSet>> sides;
  for (const Variant& variant : claim.variants) {
    const std::string text = field(variant.request);
    size_t i = 0;
    while (i < sides.size() && sides[i].first != text) ++i;
    if (i == sides.size()) sides.emplace_back(text, RankSet());
    sides[i].second.Union(variant.ranks);
  }
  if (sides.size() < 2) return "";
  std::string sentence;
  for (const auto& [text, ranks] : sides) {
    if (!sentence.empty()) sentence += ", ";
    sentence += fmt::format("{} on {}", text, ranks.Describe());
  }
  return sentence;
}

// Ranks may bring different numbers of rows to an allgather or an alltoall.
bool RowsMayDiffer(OpKind kind) { return kind == OpKind::kAllgather || kind == OpKind::kAlltoall; }

std::string TrailingShape(const Request& request) {
  std::vector<int64_t> shape = request.shape;
  if (!shape.empty()) shape.erase(shape.begin());
  return fmt::format("{} dimensions, all but the first {}", request.shape.size(), ShapeText(shape));
}

struct Check {
  const char* what;
  Field field;
};

// Returns the checks in the order in which their failures are told.
std::vector<Check> ChecksFor(OpKind kind) {
  std::vector<Check> checks = {
      {"the data type", [](const Request& r) { return std::string(Name(r.type)); }},
      {"where the tensor lies",
       [](const Request& r) { return r.device < 0 ? std::string("CPU") : std::string("GPU"); }},
      {"the reduction operator", [](const Request& r) { return std::string(Name(r.op)); }},
      {"the scale factors",
       [](const Request& r) {
         return fmt::format("prescale {} and postscale {}", r.prescale, r.postscale);
       }},
      {"the compression",
       [](const Request& r) {
         constexpr const char* kNames[] = {"none", "float16", "bfloat16"};
         return std::string(kNames[static_cast<size_t>(r.compression)]);
       }},
      {kind == OpKind::kRemoveSet ? "the process set" : "the root rank",
       [](const Request& r) { return std::to_string(r.root); }},
      {"the group",
       [](const Request& r) {
         return r.group.empty() ? std::string("no group")
                                : fmt::format("group \"{}\" of {}", r.group, r.group_size);
       }},
  };
  if (kind == OpKind::kAddSet) {
    checks.push_back(
        {"the ranks of the process set", [](const Request& r) { return ShapeText(r.shape); }});
  } else if (RowsMayDiffer(kind)) {
    checks.push_back({"the shape apart from the first dimension", TrailingShape});
  } else {
    checks.push_back({"the shape", [](const Request& r) { return ShapeText(r.shape); }});
  }
  return checks;
}

// Returns the reason why the operation cannot run beside ranks that have joined, or "". A joined
// rank has neutral elements for reductions, no rows for allgathers, and nothing to send.
std::string CheckJoined(const Claim& claim, const RankSet& joined) {
  const Request& request = claim.variants.front().request;
  if (joined.empty()) return "";
  switch (request.kind) {
    case OpKind::kAlltoall:
      return fmt::format("alltoall cannot run while {} joined", joined.size() == 1
                                                                    ? joined.Describe() + " has"
                                                                    : joined.Describe() + " have");
    case OpKind::kBroadcast:
      if (joined.Contains(request.root)) {
        return fmt::format("the root, rank {}, has joined and has nothing to send", request.root);
      }
      return "";
    case OpKind::kAddSet:
    case OpKind::kRemoveSet:
      return fmt::format("process sets cannot change after {} joined", joined.Describe());
    default:
      return "";
  }
}

// The bound of 2^56 elements keeps byte counts far from overflows.
Status CheckShape(const std::string& name, const Request& request) {
  int64_t count = 1;
  for (const int64_t dimension : request.shape) {
    if (dimension < 0 || __builtin_mul_overflow(count, std::max<int64_t>(dimension, 1), &count) ||
        count > (int64_t{1} << 56)) {
      return InvalidArgument("{} \"{}\": the shape {} is no shape of a tensor", Name(request.kind),
                             name, ShapeText(request.shape));
    }
  }
  const bool needs_rows = request.kind == OpKind::kAllgather || request.kind == OpKind::kAlltoall ||
                          request.kind == OpKind::kReducescatter;
  if (needs_rows && request.shape.empty()) {
    return InvalidArgument("{} \"{}\": a tensor without dimensions has no rows to share out",
                           Name(request.kind), name);
  }
  return Status::Ok();
}

}  // namespace

Status CheckRequest(const std::string& name, const Request& request,
                    const std::vector<int>& members) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return InvalidArgument("a tensor's name has {} bytes, but must have 1 to {}", name.size(),
                           kMaxNameBytes);
  }
  if (!MayBeShown(name) || !MayBeShown(request.group)) {
    return InvalidArgument(
        "{} \"{}\": the name of a tensor, or of its group, has a line end or "
        "another control character",
        Name(request.kind), Printable(name));
  }
  if (request.shape.size() > kMaxDimensions) {
    return InvalidArgument("{} \"{}\": {} dimensions are more than {}", Name(request.kind), name,
                           request.shape.size(), kMaxDimensions);
  }
  if (request.kind == OpKind::kAddSet || request.kind == OpKind::kRemoveSet) return Status::Ok();
  TUTTI_TRY(CheckShape(name, request));
  if (!std::isfinite(request.prescale) || !std::isfinite(request.postscale)) {
    return InvalidArgument("{} \"{}\": a scale factor is not finite", Name(request.kind), name);
  }
  if (request.kind == OpKind::kBroadcast &&
      std::find(members.begin(), members.end(), request.root) == members.end()) {
    return InvalidArgument(
        "broadcast \"{}\": the root is rank {}, which is not in the process set of ranks {}", name,
        request.root, fmt::join(members, ", "));
  }
  const bool is_float = Info(request.type).is_float;
  if (request.kind == OpKind::kReducescatter && request.op == ReduceOp::kAdasum) {
    return InvalidArgument("reducescatter \"{}\": adasum is an operator of allreduce only", name);
  }
  if (request.reduces() && request.op == ReduceOp::kAdasum && !is_float) {
    return InvalidArgument("allreduce \"{}\": adasum needs floating-point elements, not {}", name,
                           Name(request.type));
  }
  return Status::Ok();
}

std::string FindMismatch(const std::string& name, const Claim& claim, const RankSet& joined) {
  const OpKind kind = claim.variants.front().request.kind;
  // The operation comes first, because the checks of the remaining fields depend on the operation.
  const std::string kinds =
      Differing(claim, [](const Request& r) { return std::string(Name(r.kind)); });
  if (!kinds.empty()) {
    return fmt::format("Ranks disagree on the operation for tensor \"{}\": {}.", name, kinds);
  }
  for (const Check& check : ChecksFor(kind)) {
    const std::string sides = Differing(claim, check.field);
    if (sides.empty()) continue;
    return fmt::format("Ranks disagree on {} of {} \"{}\": {}.", check.what, Name(kind), name,
                       sides);
  }
  const std::string about_joined = CheckJoined(claim, joined);
  if (about_joined.empty()) return "";
  return fmt::format("{} \"{}\": {}.", Name(kind), name, about_joined);
}

}  // namespace tutti::coordinator
