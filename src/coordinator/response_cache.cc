#include "coordinator/response_cache.h"

#include <algorithm>
#include <utility>

namespace tutti::coordinator {

int ResponseCache::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? -1 : found->second;
}

// The slot depends on the calls before alone, and is therefore the same on all ranks.
ResponseCache::Inserted ResponseCache::Insert(std::shared_ptr<const Agreement> agreed,
                                              std::optional<Request> mine) {
  Inserted inserted;
  if (capacity_ == 0) return inserted;
  if (by_name_.size() == capacity_) {
    // All slots are in use.
    inserted.slot = static_cast<int>(std::min_element(used_.begin(), used_.end()) - used_.begin());
    inserted.evicted = true;
    Erase(inserted.slot);
  } else if (by_name_.size() == slots_.size()) {
    inserted.slot = extent();
    slots_.emplace_back();
    used_.push_back(0);
  } else {
    inserted.slot = 0;
    while (InUse(inserted.slot)) ++inserted.slot;
  }
  Touch(inserted.slot);
  ++version_;
  by_name_[agreed->name] = inserted.slot;
  slots_[static_cast<size_t>(inserted.slot)] = Entry{std::move(agreed), std::move(mine)};
  return inserted;
}

void ResponseCache::Erase(int slot) {
  Entry& entry = *slots_[static_cast<size_t>(slot)];
  by_name_.erase(entry.agreement().name);
  ++version_;
  slots_[static_cast<size_t>(slot)].reset();
}

}  // namespace tutti::coordinator
