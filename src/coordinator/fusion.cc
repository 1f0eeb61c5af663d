#include "coordinator/fusion.h"

#include <algorithm>
#include <map>

namespace tutti::coordinator {
namespace {

bool Fusible(const Request& request) {
  return request.kind == OpKind::kAllgather || request.kind == OpKind::kAllreduce;
}

// Tensors of a batch share one call, and therefore all fields that the call depends on.
bool Alike(const Request& a, const Request& b) {
  return a.kind == b.kind && a.type == b.type && a.op == b.op && a.device == b.device &&
         a.compression == b.compression && a.prescale == b.prescale && a.postscale == b.postscale;
}

// Holds the tensors that run together whatever the threshold: a single tensor, or the alike members
// of a group.
struct Unit {
  size_t first = 0;
  std::vector<size_t> more;  // further members of a group
  int64_t bytes = 0;
  bool grouped = false;
  bool taken = false;
};

// Makes the units of a round, in the order of the responses. Every rank makes the same units.
std::vector<Unit> MakeUnits(const std::vector<Response>& responses, bool fuse_at_all) {
  std::vector<Unit> units;
  units.reserve(responses.size());
  std::map<std::string, std::vector<size_t>> by_group;  // → units of that group
  for (size_t i = 0; i < responses.size(); ++i) {
    if (!responses[i].error.empty() || responses[i].moved_inline) continue;
    const Request& request = responses[i].agreement().request;
    const int64_t bytes = responses[i].agreement().bytes();
    Unit* home = nullptr;
    if (!request.group.empty() && Fusible(request) && fuse_at_all) {
      for (const size_t unit : by_group[request.group]) {
        if (Alike(responses[units[unit].first].agreement().request, request)) home = &units[unit];
      }
    }
    if (home != nullptr) {
      home->more.push_back(i);
      home->bytes += bytes;
      continue;
    }
    units.push_back({i, {}, bytes, !request.group.empty(), false});
    if (units.back().grouped) by_group[request.group].push_back(units.size() - 1);
  }
  return units;
}

void Append(const Unit& unit, std::vector<size_t>& batch) {
  batch.push_back(unit.first);
  batch.insert(batch.end(), unit.more.begin(), unit.more.end());
}

}  // namespace

std::vector<std::vector<size_t>> Fuse(const std::vector<Response>& responses,
                                      const FusionOptions& options) {
  if (responses.size() == 1 && responses[0].error.empty() && !responses[0].moved_inline)
    return {{0}};
  std::vector<Unit> units = MakeUnits(responses, options.threshold_bytes > 0);
  const auto request_of = [&](const Unit& unit) -> const Request& {
    return responses[unit.first].agreement().request;
  };
  const auto may_share = [&](const Unit& unit) {
    return Fusible(request_of(unit)) && (options.fuse_groups || !unit.grouped);
  };
  std::vector<std::vector<size_t>> batches;
  // Each unit starts a batch, and the batch takes alike units behind the first. The search
  // ends when the units passed over have the bytes of a batch.
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].taken) continue;
    std::vector<size_t>& batch = batches.emplace_back();
    Append(units[i], batch);
    if (!may_share(units[i])) continue;
    int64_t bytes = units[i].bytes;
    int64_t passed_over = 0;
    for (size_t j = i + 1; j < units.size() && passed_over < options.threshold_bytes; ++j) {
      if (units[j].taken) continue;
      if (may_share(units[j]) && Alike(request_of(units[i]), request_of(units[j])) &&
          bytes + units[j].bytes <= options.threshold_bytes) {
        units[j].taken = true;
        bytes += units[j].bytes;
        Append(units[j], batch);
      } else {
        passed_over += units[j].bytes;
      }
    }
  }
  return batches;
}

const BatchPlanner::Plan& BatchPlanner::Make(const std::vector<Response>& responses,
                                             uint64_t sequence, const FusionOptions& options) {
  // Equal sequences stand for equal responses, and fuse_groups never changes.
  if (sequence != 0 && sequence == sequence_ && options.threshold_bytes == threshold_) return plan_;
  sequence_ = sequence;
  threshold_ = options.threshold_bytes;
  plan_ = Plan();
  plan_.batches = Fuse(responses, options);
  for (const std::vector<size_t>& indices : plan_.batches) {
    int64_t bytes = 0;
    for (const size_t i : indices) bytes += responses[i].agreement().bytes();
    plan_.bytes.push_back(bytes);
  }
  plan_.all_in_order = plan_.batches.size() == 1 && plan_.batches[0].size() == responses.size() &&
                       std::is_sorted(plan_.batches[0].begin(), plan_.batches[0].end());
  return plan_;
}

}  // namespace tutti::coordinator
