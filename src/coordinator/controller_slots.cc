// The slots of the response cache in a round: how a state announces a tensor that comes again,
// which slots run, and the data that travels inline with the states.

#include <algorithm>
#include <utility>

#include "coordinator/controller.h"
#include "coordinator/inline_data.h"

namespace tutti::coordinator {
namespace {

// The first states of a round; the states of the slots follow.
enum StateIndex : size_t { kNobodyLeaves, kNoRequests, kNoNews, kNoStallCheck, kFirstSlot };
enum SlotState : uint8_t { kInvalid = 0, kAbsent = 1, kHere = 2 };

}  // namespace

// Announces each new tensor by the state of its slot where the cache has the same request, else by
// a request. A request that differs from the cache's invalidates the slot.
void Controller::TakeNews(RoundInput& input) {
  for (std::unique_ptr<Tensor>& tensor : input.news) {
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
  // A rank that asked again must not complete a tensor that is to fail, and announces nothing of
  // the tensor.
  std::erase_if(input.pending_failures,
                [&](const auto& entry) { return IsApplied(entry.first, entry.second); });
  for (const auto& [name, failure] : input.pending_failures) {
    if (const int slot = cache_.Find(name); slot >= 0) invalid_.insert(slot);
  }
  has_news_ = !input.news.empty();
  input.news.clear();
}

void Controller::Announce(int slot, std::unique_ptr<Tensor> tensor) {
  here_[static_cast<size_t>(slot)] = std::move(tensor);
  ++num_here_;
}

// A joined rank stands in for any allreduce with neutral elements. All further operations were
// agreed on with rows from the joined rank, which brings none any more, and are negotiated anew.
bool Controller::SlotRunsWithoutJoined(int slot) const {
  return cache_.at(slot).agreement().request.kind == OpKind::kAllreduce;
}

// A rank that has joined says "here" for all slots that run without its data.
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

// Writes the first pending tensor that fits. A round carries one block a rank: further small
// tensors take the usual way.
void Controller::WriteMyInlineBlock() {
  states_.resize(states_.size() + static_cast<size_t>(exchange_.num_ranks()) * kInlineBlockBytes,
                 0xff);
  if (num_here_ == 0) return;
  for (int slot = 0; slot < cache_.extent(); ++slot) {
    if (fits_inline_[static_cast<size_t>(slot)] == 0) continue;
    const Tensor* const tensor = here_[static_cast<size_t>(slot)].get();
    if (tensor == nullptr || tensor->input == nullptr) continue;
    if (states_[kFirstSlot + static_cast<size_t>(slot)] != kHere) continue;
    return WriteInlineBlock(cache_.at(slot).agreement().request, slot, tensor->input,
                            InlineBlocks(), exchange_.rank());
  }
}

// Returns an empty span in a round without blocks.
std::span<uint8_t> Controller::InlineBlocks() {
  return std::span(states_).subspan(kFirstSlot + static_cast<size_t>(inline_blocks_after_));
}

// Reduces the inline data where all ranks wrote the same tensor into their blocks.
void Controller::FinishInline(RoundResult& result) {
  const int slot = SlotOfAllBlocks(InlineBlocks());
  if (slot < 0) return;
  // The blocks alone do not make the tensor ready: a rank may have joined, or given the slot up.
  const auto found = std::find(ready_.begin(), ready_.end(), slot);
  if (found == ready_.end()) return;
  Response& response = result.responses[static_cast<size_t>(found - ready_.begin())];
  ReduceInlineBlocks(response.agreement().request, InlineBlocks(), response.reduced.data());
  response.moved_inline = true;
  result.sequence = 0;
}

// Takes the slot from its tensor. The request of a tensor that is pending here must then be sent.
void Controller::Unannounce(int slot) {
  std::unique_ptr<Tensor> tensor = TakeHere(slot);
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

// Stores the slots that are ready on all ranks, and invalidates the slots that a rank gave up.
// Returns whether requests follow.
bool Controller::ReadStates(RoundResult& result) {
  result.news = states_[kNoNews] == 0;
  result.stall_checked = states_[kNoStallCheck] == 0;
  bool requests = states_[kNoRequests] == 0 || states_[kNobodyLeaves] == 0 || result.stall_checked;
  ready_.clear();
  for (int slot = 0; slot < cache_.extent(); ++slot) {
    const uint8_t state = states_[kFirstSlot + static_cast<size_t>(slot)];
    if (state == kInvalid) {
      requests = true;
      Invalidate(slot);
    } else if (state == kHere) {
      ready_.push_back(slot);
    }
  }
  return requests;
}

// Keeps only the slots and names that run now. Returns the number for RoundResult::sequence.
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

std::unique_ptr<Tensor> Controller::TakeHere(int slot) {
  std::unique_ptr<Tensor> taken = std::move(here_[static_cast<size_t>(slot)]);
  if (taken) --num_here_;
  return taken;
}

// Responds to the slots that run.
void Controller::RespondFromCache(RoundResult& result) {
  result.responses.reserve(ready_.size());
  for (size_t i = 0; i < ready_.size(); ++i) {
    // The agreements lie anywhere in memory, and are read soon.
    if (i + 8 < ready_.size()) __builtin_prefetch(cache_.at(ready_[i + 8]).agreed.get());
    cache_.Touch(ready_[i]);
    Response& response = result.responses.emplace_back();
    response.agreed = cache_.at(ready_[i]).agreed;
    response.cached = true;
    response.pending = TakeHere(ready_[i]);
  }
}

// Returns the slot, or -1.
int Controller::Remember(const std::shared_ptr<const Agreement>& agreed,
                         std::optional<Request> mine) {
  const auto inserted = cache_.Insert(agreed, std::move(mine));
  if (inserted.slot < 0) return -1;
  here_.resize(static_cast<size_t>(cache_.extent()));
  fits_inline_.resize(here_.size());
  // The evicted tensor may be pending here, and is then announced by its request again.
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

// Empties the cache when its use is switched on or off.
void Controller::Adopt(const Tuning& tuning) {
  if (tuning.cache == cache_enabled_) return;
  cache_enabled_ = tuning.cache;
  for (int slot = 0; slot < cache_.extent(); ++slot) {
    if (cache_.InUse(slot)) Invalidate(slot);
  }
}

}  // namespace tutti::coordinator
