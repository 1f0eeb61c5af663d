#include "sys/guests.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tutti {

size_t Guests::ShareOf(uint64_t descriptors) {
  constexpr uint64_t kFewest = 8;  // or a few silent connections would keep everybody waiting
  // As many proofs as arrive while one is on its way; at about 2 KiB each.
  constexpr uint64_t kMost = 2048;
  return std::clamp(descriptors / 4, kFewest, kMost);
}

bool Guests::Admits(int64_t grace_ns) const {
  return here_.size() < limit_ || NowNs() - here_.begin()->second.entered_ns >= grace_ns;
}

Guests::Number Guests::Enter(std::function<void()> dismiss) {
  while (here_.size() >= limit_) DismissFirst();
  const Number number = next_++;
  here_.emplace(number, Guest{NowNs(), std::move(dismiss)});
  return number;
}

bool Guests::DismissFirst() {
  if (here_.empty()) return false;
  const Guest guest = std::move(here_.begin()->second);
  here_.erase(here_.begin());
  guest.dismiss();
  return true;
}

}  // namespace tutti
