#include "coordinator/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/checks.h"

namespace tutti::coordinator {
namespace {

bool Cacheable(OpKind kind) { return kind != OpKind::kAddSet && kind != OpKind::kRemoveSet; }

}  // namespace

Controller::Controller(Exchange& exchange, std::vector<int> members, size_t cache_capacity)
    : exchange_(exchange), members_(std::move(members)), cache_(cache_capacity) {}

std::string Controller::Mismatch(const std::string& name, const Claim& claim) const {
  // Nearly always there is one variant and nobody has joined, and nothing to name.
  if (claim.variants.size() == 1 && joined_.empty()) return "";
  Claim global = claim;
  for (Variant& variant : global.variants) variant.ranks = variant.ranks.Global(members_);
  return FindMismatch(name, global, joined_.Global(members_));
}

Result<RoundResult> Controller::Round(RoundInput& input) {
  RoundResult result;
  TakeNews(input);
  MakeStates(input);
  TUTTI_TRY(exchange_.Min(states_));
  result.negotiated = ReadStates(result);
  Names names(complete_.begin(), complete_.end());
  if (result.negotiated) TUTTI_TRY(Negotiate(input, result, names));
  result.sequence = ChooseSlots(ready_, names);
  RespondFromCache(result);
  FinishInline(result);
  for (const std::string& name : names) RespondFromTable(name, result);
  RespondToFailures(result);
  EndJoin(result);
  if (result.tuning) Adopt(*result.tuning);
  return result;
}

// Once all ranks have joined, none of them counts as joined any more.
void Controller::EndJoin(RoundResult& result) {
  if (joined_.size() == exchange_.num_ranks()) {
    joined_ = RankSet();
    self_joined_ = false;
  } else {
    result.last_joined.reset();
  }
}

// Says everything that this rank has to tell in a round with requests. Tensors count as sent from
// now on.
RoundMessage Controller::MakeMessage(RoundInput& input, bool stall_check) {
  RoundMessage message;
  for (Tensor* const p : unsent_) {
    p->sent = true;
    Claim& claim = message.claims[p->name];
    claim.order = p->order;
    claim.variants.push_back({p->request, RankSet::Of(exchange_.rank())});
  }
  unsent_.clear();
  if (input.joining) message.joining = RankSet::Of(exchange_.rank());
  if (input.leaving) message.leaving[exchange_.rank()] = *input.leaving;
  message.tuning = input.tuning;
  message.pending_failures = input.pending_failures;
  if (stall_check) AddWaiting(input, message);
  return message;
}

// Adds the part of a stall check: all pending tensors, whatever their way of announcement.
void Controller::AddWaiting(const RoundInput& input, RoundMessage& message) const {
  ForEachPending([&](const Tensor& p) {
    Waiting& entry = message.waiting[p.name];
    entry.have.Add(exchange_.rank());
    if (p.since_ns < input.late_before_ns) entry.late.Add(exchange_.rank());
  });
  if (input.activity) message.activities[exchange_.rank()] = input.activity();
  if (input.collect_waits) message.set_waits = input.collect_waits();
}

Status Controller::Negotiate(RoundInput& input, RoundResult& result, Names& completed) {
  RoundMessage message = MakeMessage(input, result.stall_checked);
  if (input.joining) self_joined_ = true;
  TUTTI_TRY(MergeFromAll(
      exchange_, [&] { return message.Encode(); },
      [&](std::span<const std::byte> bytes) -> Status {
        TUTTI_ASSIGN(const RoundMessage theirs, RoundMessage::Decode(bytes, exchange_.num_ranks()));
        message.Merge(theirs);
        return Status::Ok();
      }));
  if (SpeaksForMe(message)) {
    return RemoteError("a rank sent a request in the name of rank {}, which did not make it",
                       members_[static_cast<size_t>(exchange_.rank())]);
  }
  result.leaving = message.leaving;
  result.tuning = message.tuning;
  if (!message.joining.empty()) {
    joined_.Union(message.joining);
    result.last_joined = message.joining.ToVector().back();
  }
  completed = Complete(message);
  for (const auto& [name, claim] : message.claims) {
    result.newly_ready.emplace_back(name, claim.ranks());
  }
  if (result.stall_checked) ReportStalls(message, result);
  return Status::Ok();
}

// Returns whether a claim names this rank among its askers although this rank did not make the
// request. After this check every tensor that runs was checked by this rank itself, whatever others
// send.
bool Controller::SpeaksForMe(const RoundMessage& message) const {
  for (const auto& [name, claim] : message.claims) {
    for (const Variant& variant : claim.variants) {
      if (!variant.ranks.Contains(exchange_.rank())) continue;
      const auto mine = pending_.find(name);
      if (mine == pending_.end() || !mine->second->sent || mine->second->request != variant.request)
        return true;
    }
  }
  return message.joining.Contains(exchange_.rank()) && !self_joined_;
}

// Enters the new claims into the table. Returns the names of tensors requested by every rank,
// including tensors that wait for their groups, in the order of the lowest rank that asked.
Controller::Names Controller::Complete(const RoundMessage& message) {
  for (const auto& [name, claim] : message.claims) {
    const auto [entry, added] = table_.try_emplace(name, TableEntry{claim, false});
    if (!added) entry->second.claim.Merge(claim);
  }
  ApplyPendingFailures(message);
  const auto look_at = [&](const std::string& name, TableEntry& entry) {
    RankSet have = entry.claim.ranks();
    have.Union(joined_);
    entry.complete = have.size() == exchange_.num_ranks();
    if (entry.complete) complete_.insert(name);
  };
  // A rank that joins may complete any claim.
  if (!message.joining.empty()) {
    for (auto& [name, entry] : table_) look_at(name, entry);
  } else {
    for (const auto& [name, claim] : message.claims) {
      if (const auto entry = table_.find(name); entry != table_.end()) look_at(name, entry->second);
    }
  }
  Names names(complete_.begin(), complete_.end());
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return table_.at(a).claim.order < table_.at(b).claim.order;
  });
  return names;
}

std::unique_ptr<Tensor> Controller::TakePending(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) return nullptr;
  std::unique_ptr<Tensor> taken = std::move(found->second);
  pending_.erase(found);
  std::erase(unsent_, taken.get());
  return taken;
}

// The lowest rank's request stands for all; only the rows of an allgather differ by rank.
Agreement Controller::Agree(const std::string& name, const Claim& claim) const {
  Agreement agreement;
  agreement.name = name;
  agreement.request = claim.variants.front().request;
  if (agreement.request.kind != OpKind::kAllgather) return agreement;
  agreement.first_dims.assign(static_cast<size_t>(exchange_.num_ranks()), 0);
  for (const Variant& variant : claim.variants) {
    for (const int rank : variant.ranks.ToVector()) {
      agreement.first_dims[static_cast<size_t>(rank)] = variant.request.first_dim();
    }
  }
  return agreement;
}

// Responds to a tensor that all ranks have asked for: a sentence where the ranks disagree, else an
// agreement that enters the cache.
void Controller::RespondFromTable(const std::string& name, RoundResult& result) {
  const auto found = table_.find(name);
  if (found == table_.end()) return;  // failed with its group
  const Claim claim = std::move(found->second.claim);
  table_.erase(found);
  complete_.erase(name);
  Response response;
  response.agreed = std::make_shared<Agreement>(Agree(name, claim));
  response.error = Mismatch(name, claim);
  response.pending = TakePending(name);
  if (!response.error.empty()) {
    const std::string error = response.error;
    std::set<std::string> groups;
    for (const Variant& variant : claim.variants) groups.insert(variant.request.group);
    result.responses.push_back(std::move(response));
    for (const std::string& group : groups) {
      if (!group.empty()) FailGroup(group, error, result);
    }
    return;
  }
  if (cache_enabled_ && Cacheable(response.agreement().request.kind)) {
    // A rank that has joined remembers the agreed request of an allreduce as its own, because the
    // rank may ask for the same later; other operations depend on the rank's own rows.
    std::optional<Request> mine;
    if (response.pending) mine = response.pending->request;
    if (response.agreement().request.kind == OpKind::kAllreduce)
      mine = response.agreement().request;
    const bool same = response.pending && mine && *mine == response.pending->request;
    const int slot = Remember(response.agreed, std::move(mine));
    if (same && slot >= 0) {
      response.pending->slot = slot;
      response.pending->known = response.agreed;
    }
  }
  result.responses.push_back(std::move(response));
}

// The order of asking is restored, because the tensors come from two containers.
std::vector<std::unique_ptr<Tensor>> Controller::TakeAll() {
  std::vector<std::unique_ptr<Tensor>> all;
  for (auto& [name, tensor] : pending_) all.push_back(std::move(tensor));
  for (auto& tensor : here_) {
    if (tensor) all.push_back(std::move(tensor));
  }
  num_here_ = 0;
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a->order < b->order; });
  pending_.clear();
  unsent_.clear();
  return all;
}

int64_t Controller::OldestPendingNs() const {
  int64_t oldest_ns = 0;
  ForEachPending([&](const Tensor& p) {
    if (oldest_ns == 0 || p.since_ns < oldest_ns) oldest_ns = p.since_ns;
  });
  return oldest_ns;
}

void Controller::ForEachPending(const std::function<void(const Tensor&)>& visit) const {
  for (const auto& [name, tensor] : pending_) visit(*tensor);
  if (num_here_ == 0) return;
  for (const auto& tensor : here_) {
    if (tensor) visit(*tensor);
  }
}

}  // namespace tutti::coordinator
