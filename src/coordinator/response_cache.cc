#include "coordinator/response_cache.h"

#include <utility>

namespace tutti::coordinator {

int ResponseCache::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? -1 : found->second;
}

void ResponseCache::Touch(int slot) {
  recency_.splice(recency_.begin(), recency_, slots_[static_cast<size_t>(slot)]->recency);
}

ResponseCache::Inserted ResponseCache::Insert(std::shared_ptr<const Agreement> agreed,
                                              std::optional<Request> mine) {
  Inserted inserted;
  if (capacity_ == 0) return inserted;
  if (by_name_.size() == capacity_) {
    inserted.slot = recency_.back();
    inserted.evicted = true;
    Erase(inserted.slot);
  } else if (by_name_.size() == slots_.size()) {
    inserted.slot = extent();
    slots_.emplace_back();
  } else {
    inserted.slot = 0;
    while (InUse(inserted.slot)) ++inserted.slot;
  }
  recency_.push_front(inserted.slot);
  by_name_[agreed->name] = inserted.slot;
  slots_[static_cast<size_t>(inserted.slot)] =
      Entry{std::move(agreed), std::move(mine), recency_.begin()};
  return inserted;
}

void ResponseCache::Erase(int slot) {
  Entry& entry = *slots_[static_cast<size_t>(slot)];
  by_name_.erase(entry.agreement().name);
  recency_.erase(entry.recency);
  slots_[static_cast<size_t>(slot)].reset();
}

void ResponseCache::Clear() {
  slots_.clear();
  by_name_.clear();
  recency_.clear();
}

}  // namespace tutti::coordinator
