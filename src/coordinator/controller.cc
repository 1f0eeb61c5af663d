#include "coordinator/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/checks.h"
#include "coordinator/inline_data.h"

namespace tutti::coordinator {
namespace {

// The first states of a round; those of the slots follow.
enum StateIndex : size_t { kNobodyLeaves, kNoRequests, kNoNews, kNoStallCheck, kFirstSlot };
enum SlotState : uint8_t { kInvalid = 0, kAbsent = 1, kHere = 2 };

bool Cacheable(OpKind kind) { return kind != OpKind::kAddSet && kind != OpKind::kRemoveSet; }

}  // namespace

Controller::Controller(Exchange& exchange, std::vector<int> members, size_t cache_capacity)
    : exchange_(exchange), members_(std::move(members)), cache_(cache_capacity) {}

RankSet Controller::Global(const RankSet& ranks) const {
  RankSet global;
  for (const int rank : ranks.ToVector()) global.Add(members_[static_cast<size_t>(rank)]);
  return global;
}

std::string Controller::Mismatch(const std::string& name, const Claim& claim) const {
  // Nearly always there is one variant and nobody has joined, and nothing to name.
  if (claim.variants.size() == 1 && joined_.empty()) return "";
  Claim global = claim;
  for (Variant& variant : global.variants) variant.ranks = Global(variant.ranks);
  return FindMismatch(name, global, Global(joined_));
}

Result<RoundResult> Controller::Round(RoundInput& input) {
  RoundResult result;
  TakeNews(input);
  MakeStates(input);
  std::vector<uint8_t>& states = states_;
  TUTTI_TRY(exchange_.Min(states));
  result.news = states[kNoNews] == 0;
  result.stall_checked = states[kNoStallCheck] == 0;
  std::vector<int>& slots = ready_;
  slots.clear();
  bool requests = states[kNoRequests] == 0 || states[kNobodyLeaves] == 0 || result.stall_checked;
  for (int slot = 0; slot < cache_.extent(); ++slot) {
    const uint8_t state = states[kFirstSlot + static_cast<size_t>(slot)];
    if (state == kInvalid) {
      requests = true;
      Invalidate(slot);
    } else if (state == kHere) {
      slots.push_back(slot);
    }
  }
  Names names(complete_.begin(), complete_.end());
  if (requests) {
    result.negotiated = true;
    TUTTI_TRY(Negotiate(input, result.stall_checked, result, names));
  }
  result.sequence = ChooseSlots(slots, names);
  result.responses.reserve(slots.size() + names.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    // What was agreed on lies anywhere, and is read soon.
    if (i + 8 < slots.size()) __builtin_prefetch(cache_.at(slots[i + 8]).agreed.get());
    result.responses.push_back(RespondFromCache(slots[i]));
  }
  FinishInline(result);
  for (const std::string& name : names) RespondFromTable(name, result);
  RespondToFailures(result);
  if (joined_.size() == exchange_.num_ranks()) {
    joined_ = RankSet();
    self_joined_ = false;
  } else {
    result.last_joined.reset();
  }
  if (result.tuning && result.tuning->cache != cache_enabled_) {
    cache_enabled_ = result.tuning->cache;
    for (int slot = 0; slot < cache_.extent(); ++slot) {
      if (cache_.InUse(slot)) Invalidate(slot);
    }
  }
  return result;
}

void Controller::TakeNews(RoundInput& input) {
  for (std::unique_ptr<Pending>& tensor : input.news) {
    // The usual case costs no look-up: the very same request was found in this slot before.
    const int last = tensor->slot;
    if (tensor->known && last >= 0 && last < cache_.extent() && cache_.InUse(last) &&
        cache_.at(last).agreed == tensor->known) {
      Announce(last, std::move(tensor));
      continue;
    }
    tensor->known.reset();
    tensor->slot = -1;
    const int slot = cache_.Find(tensor->name);
    if (slot >= 0 && cache_.at(slot).mine == tensor->request) {
      tensor->slot = slot;
      tensor->known = cache_.at(slot).agreed;
      Announce(slot, std::move(tensor));
      continue;
    }
    if (slot >= 0) invalid_.insert(slot);
    unsent_.push_back(tensor.get());
    pending_[tensor->name] = std::move(tensor);
  }
  // Who asked again may not complete what is to fail: nothing of it is announced.
  std::erase_if(input.pending_failures,
                [&](const auto& entry) { return IsApplied(entry.first, entry.second); });
  for (const auto& [name, failure] : input.pending_failures) {
    if (const int slot = cache_.Find(name); slot >= 0) invalid_.insert(slot);
  }
  has_news_ = !input.news.empty();
  input.news.clear();
}

void Controller::Announce(int slot, std::unique_ptr<Pending> tensor) {
  here_[static_cast<size_t>(slot)] = std::move(tensor);
  ++num_here_;
}

// A joined rank stands in for any allreduce with neutral elements. What other operations need from
// it was agreed on for rows that it no longer brings: those are negotiated anew.
bool Controller::SlotRunsWithoutJoined(int slot) const {
  return cache_.at(slot).agreement().request.kind == OpKind::kAllreduce;
}

void Controller::MakeStates(const RoundInput& input) {
  std::vector<uint8_t>& states = states_;
  inline_blocks_after_ = cache_.extent();
  states.assign(kFirstSlot + static_cast<size_t>(inline_blocks_after_), kAbsent);
  const bool requests = !unsent_.empty() || input.joining || input.tuning || !invalid_.empty() ||
                        !input.pending_failures.empty();
  states[kNobodyLeaves] = input.leaving ? 0 : 1;
  states[kNoRequests] = requests ? 0 : 1;
  states[kNoNews] = requests || input.leaving || has_news_ ? 0 : 1;
  states[kNoStallCheck] = input.stall_check ? 0 : 1;
  for (int slot = 0; slot < cache_.extent(); ++slot) {
    uint8_t& state = states[kFirstSlot + static_cast<size_t>(slot)];
    if (!cache_.InUse(slot)) continue;
    if (here_[static_cast<size_t>(slot)]) {
      state = kHere;
    } else if (self_joined_) {
      state = SlotRunsWithoutJoined(slot) ? kHere : kInvalid;
    }
  }
  for (const int slot : invalid_) states[kFirstSlot + static_cast<size_t>(slot)] = kInvalid;
  if (num_inline_slots_ > 0 && exchange_.num_ranks() <= kMostInlineRanks) WriteMyInlineBlock();
}

void Controller::WriteMyInlineBlock() {
  states_.resize(states_.size() + static_cast<size_t>(exchange_.num_ranks()) * kInlineBlockBytes,
                 0xff);
  if (num_here_ == 0) return;
  for (int slot = 0; slot < cache_.extent(); ++slot) {
    if (fits_inline_[static_cast<size_t>(slot)] == 0) continue;
    const Pending* const tensor = here_[static_cast<size_t>(slot)].get();
    if (tensor == nullptr || tensor->input == nullptr) continue;
    if (states_[kFirstSlot + static_cast<size_t>(slot)] != kHere) continue;
    return WriteInlineBlock(cache_.at(slot).agreement().request, slot, tensor->input,
                            InlineBlocks(), exchange_.rank());
  }
}

// Empty in a round without blocks.
std::span<uint8_t> Controller::InlineBlocks() {
  return std::span(states_).subspan(kFirstSlot + static_cast<size_t>(inline_blocks_after_));
}

// Reduces the inline data where all ranks wrote the same tensor into their blocks.
void Controller::FinishInline(RoundResult& result) {
  const int slot = SlotOfAllBlocks(InlineBlocks());
  if (slot < 0) return;
  const auto found = std::find(ready_.begin(), ready_.end(), slot);
  if (found == ready_.end()) return;
  Response& response = result.responses[static_cast<size_t>(found - ready_.begin())];
  ReduceInlineBlocks(response.agreement().request, InlineBlocks(), response.reduced.data());
  response.moved_inline = true;
  result.sequence = 0;
}

// The tensor of a slot lost it: if it is pending here, its request must be sent.
void Controller::Unannounce(int slot) {
  std::unique_ptr<Pending> tensor = TakeHere(slot);
  if (!tensor) return;
  tensor->slot = -1;
  tensor->known.reset();
  unsent_.push_back(tensor.get());
  pending_[tensor->name] = std::move(tensor);
}

void Controller::Invalidate(int slot) {
  invalid_.erase(slot);
  if (!cache_.InUse(slot)) return;
  ForgetInline(slot);
  cache_.Erase(slot);
  Unannounce(slot);
}

RoundMessage Controller::MakeMessage(RoundInput& input, bool stall_check) {
  RoundMessage message;
  for (Pending* const p : unsent_) {
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

void Controller::AddWaiting(const RoundInput& input, RoundMessage& message) const {
  ForEachPending([&](const Pending& p) {
    Waiting& entry = message.waiting[p.name];
    entry.have.Add(exchange_.rank());
    if (p.since_ns < input.late_before_ns) entry.late.Add(exchange_.rank());
  });
  if (input.activity) message.activities[exchange_.rank()] = input.activity();
  if (input.collect_waits) message.set_waits = input.collect_waits();
}

Status Controller::Negotiate(RoundInput& input, bool stall_check, RoundResult& result,
                             Names& completed) {
  RoundMessage message = MakeMessage(input, stall_check);
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
  if (stall_check) ReportStalls(message, result);
  return Status::Ok();
}

// Returns whether a claim has this rank among those who asked, and it did not ask so. What runs has
// then been checked here, whatever others send.
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

// Enters the new claims into the table; what every rank has asked for, those that wait for their
// groups included, in the order of the lowest rank that asked.
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
  // Who joins may complete anything.
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

// Leaves what runs now. The number is that of RoundResult.
uint64_t Controller::ChooseSlots(std::vector<int>& slots, Names& names) {
  if (slots.size() < 2 || !names.empty()) {
    HoldIncompleteGroups(slots, names);
    return 0;
  }
  if (last_.version == cache_.version() && last_.ready == slots) {
    slots = last_.ran;
    return last_.number;
  }
  last_.version = cache_.version();
  last_.ready = slots;
  HoldIncompleteGroups(slots, names);
  last_.ran = slots;
  last_.number = ++sequences_;
  return last_.number;
}

std::unique_ptr<Pending> Controller::TakePending(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) return nullptr;
  std::unique_ptr<Pending> taken = std::move(found->second);
  pending_.erase(found);
  std::erase(unsent_, taken.get());
  return taken;
}

std::unique_ptr<Pending> Controller::TakeHere(int slot) {
  std::unique_ptr<Pending> taken = std::move(here_[static_cast<size_t>(slot)]);
  if (taken) --num_here_;
  return taken;
}

Response Controller::RespondFromCache(int slot) {
  cache_.Touch(slot);
  Response response;
  response.agreed = cache_.at(slot).agreed;
  response.cached = true;
  response.pending = TakeHere(slot);
  return response;
}

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

// Returns the slot, or -1.
int Controller::Remember(const std::shared_ptr<const Agreement>& agreed,
                         std::optional<Request> mine) {
  const auto inserted = cache_.Insert(agreed, std::move(mine));
  if (inserted.slot < 0) return -1;
  here_.resize(static_cast<size_t>(cache_.extent()));
  fits_inline_.resize(here_.size());
  if (inserted.evicted) {
    ForgetInline(inserted.slot);
    Unannounce(inserted.slot);
  }
  if (FitsInline(agreed->request)) {
    fits_inline_[static_cast<size_t>(inserted.slot)] = 1;
    ++num_inline_slots_;
  }
  return inserted.slot;
}

void Controller::ForgetInline(int slot) {
  num_inline_slots_ -= std::exchange(fits_inline_[static_cast<size_t>(slot)], uint8_t{0});
}

std::vector<std::unique_ptr<Pending>> Controller::TakeAll() {
  std::vector<std::unique_ptr<Pending>> all;
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
  ForEachPending([&](const Pending& p) {
    if (oldest_ns == 0 || p.since_ns < oldest_ns) oldest_ns = p.since_ns;
  });
  return oldest_ns;
}

void Controller::ForEachPending(const std::function<void(const Pending&)>& visit) const {
  for (const auto& [name, tensor] : pending_) visit(*tensor);
  if (num_here_ == 0) return;
  for (const auto& tensor : here_) {
    if (tensor) visit(*tensor);
  }
}

}  // namespace tutti::coordinator
