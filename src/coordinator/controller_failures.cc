// Reasons that keep tensors of a round from running: incomplete groups, groups of which a tensor
// fails, failures that were decided elsewhere, and ranks that have not asked.

#include <algorithm>
#include <utility>

#include "coordinator/controller.h"

namespace tutti::coordinator {
namespace {

// The most failures that are remembered as applied. When more come, all are forgotten. A failure
// may then be told twice when a rank brings the failure much later than the others.
constexpr size_t kMostApplied = 65536;

}  // namespace

void Controller::ReportStalls(const RoundMessage& message, RoundResult& result) const {
  for (const auto& [name, waiting] : message.waiting) {
    if (waiting.late.empty()) continue;
    RankSet have = waiting.have;
    have.Union(joined_);
    const RankSet missing = have.Complement(exchange_.num_ranks());
    if (!missing.empty()) result.stalls.push_back({name, waiting.have, missing});
  }
  result.activities = message.activities;
  result.set_waits = message.set_waits;
}

void Controller::HoldIncompleteGroups(std::vector<int>& slots, Names& names) {
  if (slots.size() + names.size() == 0) return;
  std::unordered_map<std::string, uint32_t> present;
  const auto request_of_name = [&](const std::string& name) -> const Request& {
    return table_.at(name).claim.variants.front().request;
  };
  const auto request_of_slot = [&](int slot) -> const Request& {
    return cache_.at(slot).agreement().request;
  };
  for (const int slot : slots) {
    if (request_of_slot(slot).group_size > 0) ++present[request_of_slot(slot).group];
  }
  for (const std::string& name : names) {
    if (request_of_name(name).group_size > 0) ++present[request_of_name(name).group];
  }
  if (present.empty()) return;
  const auto held = [&](const Request& request) {
    return request.group_size > 0 && present[request.group] < request.group_size;
  };
  std::erase_if(slots, [&](int slot) { return held(request_of_slot(slot)); });
  std::erase_if(names, [&](const std::string& name) {
    // Ranks that disagree about a tensor may never bring the rest of its group.
    const Claim& claim = table_.at(name).claim;
    return held(request_of_name(name)) && Mismatch(name, claim).empty();
  });
}

// A group whose ranks disagree about a member cannot run any of its tensors: all members in the
// table or pending in the cache fail alike.
void Controller::FailGroup(const std::string& group, const std::string& error,
                           RoundResult& result) {
  Names members;
  for (const auto& [name, entry] : table_) {
    const auto& variants = entry.claim.variants;
    if (std::any_of(variants.begin(), variants.end(),
                    [&](const Variant& v) { return v.request.group == group; })) {
      members.push_back(name);
    }
  }
  for (int slot = 0; slot < cache_.extent(); ++slot) {
    if (!cache_.InUse(slot) || cache_.at(slot).agreement().request.group != group) continue;
    members.push_back(cache_.at(slot).agreement().name);
    Invalidate(slot);  // FailName then takes the pending tensor by its name.
  }
  for (const std::string& name : members) {
    table_.erase(name);
    complete_.erase(name);
    FailName(name, error, result);
  }
}

// Takes the ranks' part in a tensor out of the table. Returns the groups in which these ranks asked
// for the tensor.
std::set<std::string> Controller::TakeFromTable(const std::string& name, const RankSet& ranks) {
  std::set<std::string> groups;
  const auto found = table_.find(name);
  std::vector<Variant>& variants = found->second.claim.variants;
  for (Variant& variant : variants) {
    RankSet rest;
    for (const int rank : variant.ranks.ToVector()) {
      if (ranks.Contains(rank)) {
        groups.insert(variant.request.group);
      } else {
        rest.Add(rank);
      }
    }
    variant.ranks = rest;
  }
  std::erase_if(variants, [](const Variant& variant) { return variant.ranks.empty(); });
  complete_.erase(name);
  found->second.complete = false;
  if (variants.empty()) table_.erase(found);
  return groups;
}

bool Controller::IsApplied(const std::string& name, const PendingFailure& failure) const {
  const auto found = applied_.find(name);
  return found != applied_.end() && found->second >= failure.check;
}

// Takes the tensors that fail out of the table, on all ranks alike.
void Controller::ApplyPendingFailures(const RoundMessage& message) {
  if (applied_.size() > kMostApplied) applied_.clear();
  for (const auto& [name, failure] : message.pending_failures) {
    if (IsApplied(name, failure)) continue;
    applied_[name] = failure.check;
    if (table_.count(name) == 0) continue;
    failing_.push_back({name, failure, TakeFromTable(name, failure.ranks)});
  }
}

// Responds to the failures that ApplyPendingFailures took. A group fails as a whole.
void Controller::RespondToFailures(RoundResult& result) {
  for (const Failing& failing : std::exchange(failing_, {})) {
    const auto& [check, ranks, sentence] = failing.failure;
    const size_t before = result.responses.size();
    // On ranks that the failure does not name the tensor stays pending.
    if (ranks.Contains(exchange_.rank())) FailName(failing.name, sentence, result);
    for (const std::string& group : failing.groups) {
      if (!group.empty()) FailGroup(group, sentence, result);
    }
    for (size_t i = before; i < result.responses.size(); ++i) result.responses[i].check = check;
    result.sequence = 0;
  }
}

// Fails the tensor that is pending here under a name outside the cache.
void Controller::FailName(const std::string& name, const std::string& error, RoundResult& result) {
  Response response;
  response.error = error;
  response.pending = TakePending(name);
  Agreement agreement;
  agreement.name = name;
  if (response.pending) agreement.request = response.pending->request;
  response.agreed = std::make_shared<Agreement>(std::move(agreement));
  result.responses.push_back(std::move(response));
}

}  // namespace tutti::coordinator
