#pragma once

// The names that a process set knows, each with its memory (TensorHome).
//
// A training step asks for the same names in the same order again and again. Every name therefore
// leads to its successor of the last time: the usual look-up compares one text and hashes nothing,
// and prefetches the home for the next call.
//
// Names that are not pending are kept up to a bound, since they usually come again.
//
// One thread at a time: the process set guards it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "coordinator/tensor.h"

namespace tutti::coordinator {

class NameTable {
 public:
  // Returns the home of `name`, which is entered where the name is new. A home keeps its address
  // until its name is forgotten.
  TensorHome& Enter(std::string_view name);
  // Returns the home of `name`, or null.
  TensorHome* Find(std::string_view name);
  // REQUIRES: `name` is in the table.
  void Forget(std::string_view name);
  // Forgets the names without a pending tensor, where the table has too many names.
  void Trim();

  size_t size() const { return homes_.size(); }
  // Calls `visit` with each tensor that still waits for other ranks, in no order.
  template <class Visit>
  void ForEachWaiting(Visit visit) const {
    for (const auto& [name, home] : homes_) {
      if (home.pending != nullptr && !home.pending->ticket->dispatched) visit(home);
    }
  }

 private:
  struct HashText {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  TensorHome& FindOrAdd(std::string_view name);
  void InvalidateOrder();

  // Some 0.6 KB each; more than models have tensors.
  static constexpr size_t kMostRemembered = 16384;

  std::unordered_map<std::string, TensorHome, HashText, std::equal_to<>> homes_;
  size_t trim_above_ = kMostRemembered;
  // The home of the name that was asked for last. Null when the last name is not known.
  TensorHome* last_ = nullptr;
  // A new number whenever homes are forgotten, because other homes may lead to them.
  uint64_t version_ = 0;
};

}  // namespace tutti::coordinator
