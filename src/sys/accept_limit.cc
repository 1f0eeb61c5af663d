#include "sys/accept_limit.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tutti {

size_t AcceptLimit::ShareOf(uint64_t descriptors) {
  constexpr uint64_t kFewest = 8;  // or a few silent connections would keep everybody waiting
  // As many proofs as arrive while an earlier proof is on its way; at about 2 KiB each.
  constexpr uint64_t kMost = 2048;
  return std::clamp(descriptors / 4, kFewest, kMost);
}

bool AcceptLimit::Admits(int64_t grace_ns) const {
  return here_.size() < limit_ || FirstHad(grace_ns);
}

bool AcceptLimit::FirstHad(int64_t grace_ns) const {
  return !here_.empty() && NowNs() - here_.begin()->second.entered_ns >= grace_ns;
}

AcceptLimit::Number AcceptLimit::Enter(std::function<void()> close) {
  while (here_.size() >= limit_) CloseFirst();
  const Number number = next_++;
  here_.emplace(number, Connection{NowNs(), std::move(close)});
  return number;
}

bool AcceptLimit::CloseFirst() {
  if (here_.empty()) return false;
  const Connection first = std::move(here_.begin()->second);
  here_.erase(here_.begin());
  first.close();
  return true;
}

bool AcceptLimit::ReleaseReserve() {
  const bool had_one = reserve_.valid();
  reserve_.Reset();
  return had_one;
}

bool AcceptLimit::RestoreReserve() {
  if (!reserve_.valid()) reserve_.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return reserve_.valid();
}

}  // namespace tutti
