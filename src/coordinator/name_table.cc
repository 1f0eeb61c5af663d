#include "coordinator/name_table.h"

#include <algorithm>

namespace tutti::coordinator {
namespace {

void PrefetchForWriting(const void* memory, size_t bytes) {
  const auto* const at = static_cast<const char*>(memory);
  for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + line, 1);
}

}  // namespace

TensorHome& NameTable::FindOrAdd(std::string_view name) {
  auto known = homes_.find(name);
  if (known == homes_.end()) {
    known = homes_.try_emplace(std::string(name)).first;
    known->second.name = known->first;
  }
  return known->second;
}

TensorHome& NameTable::Enter(std::string_view name) {
  TensorHome* const before = last_;
  const bool predicted = before != nullptr && before->version == version_ &&
                         before->next != nullptr && before->next->name == name;
  TensorHome& home = predicted ? *before->next : FindOrAdd(name);
  if (!predicted && before != nullptr) {
    before->next = &home;
    before->version = version_;
  }
  last_ = &home;
  if (home.version == version_ && home.next != nullptr) {
    if (home.next->spare) PrefetchForWriting(home.next->spare.get(), sizeof(Tensor));
    __builtin_prefetch(home.next->next, 1);
  }
  return home;
}

TensorHome* NameTable::Find(std::string_view name) {
  const auto found = homes_.find(name);
  return found == homes_.end() ? nullptr : &found->second;
}

void NameTable::Forget(std::string_view name) {
  homes_.erase(homes_.find(name));
  InvalidateOrder();
}

void NameTable::InvalidateOrder() {
  last_ = nullptr;
  ++version_;
}

// Forgets all idle names at once: names that come again are known after their next turn. If names
// were forgotten one at a time, each step would forget just the names that the next step needs.
void NameTable::Trim() {
  if (homes_.size() <= trim_above_) return;
  std::erase_if(homes_, [](const auto& entry) { return entry.second.pending == nullptr; });
  InvalidateOrder();
  // Only pending names are left.
  trim_above_ = std::max(kMostRemembered, 2 * homes_.size());
}

}  // namespace tutti::coordinator
