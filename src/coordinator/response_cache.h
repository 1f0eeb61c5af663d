#pragma once

// The response cache: the earlier agreements of a process set's ranks, by name, each in a numbered
// slot. A tensor that comes again is announced by its slot's state alone.
//
// Every rank's cache holds the same names in the same slots, because the cache changes only by
// calls that all ranks make in the same order, for responses and for invalidations that all ranks
// saw. The ranks' own requests (`mine`) may differ.
//
// Belongs to its controller's thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/response.h"

namespace tutti::coordinator {

class ResponseCache {
 public:
  // A capacity of 0 keeps nothing.
  explicit ResponseCache(size_t capacity) : capacity_(capacity) {}

  struct Entry {
    std::shared_ptr<const Agreement> agreed;
    std::optional<Request> mine;  // none where this rank had joined
    const Agreement& agreement() const { return *agreed; }
  };

  // Returns the slot of `name`, or -1.
  int Find(const std::string& name) const;
  // REQUIRES: the slot is in use.
  const Entry& at(int slot) const { return *slots_[static_cast<size_t>(slot)]; }
  bool InUse(int slot) const { return slots_[static_cast<size_t>(slot)].has_value(); }
  // Slots are numbered from 0 to extent() - 1.
  int extent() const { return static_cast<int>(slots_.size()); }
  size_t size() const { return by_name_.size(); }

  // Marks the slot as the most recently used.
  void Touch(int slot) { used_[static_cast<size_t>(slot)] = ++clock_; }
  // Changes whenever a slot gets or loses its entry.
  uint64_t version() const { return version_; }
  // Takes the lowest free slot, or, when the cache is full, the least recently used slot, whose
  // entry is dropped. Does nothing with capacity 0 (slot -1).
  struct Inserted {
    int slot = -1;
    bool evicted = false;
  };
  Inserted Insert(std::shared_ptr<const Agreement> agreed, std::optional<Request> mine);
  void Erase(int slot);

 private:
  const size_t capacity_;
  std::vector<std::optional<Entry>> slots_;
  std::unordered_map<std::string, int> by_name_;
  // The time of the last use of each slot, in calls. The times lie apart from the entries because
  // every round touches the times of all used slots.
  std::vector<uint64_t> used_;
  uint64_t clock_ = 0;
  uint64_t version_ = 0;
};

}  // namespace tutti::coordinator
