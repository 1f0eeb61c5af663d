#include "window/offset_space.h"

#include <iterator>

namespace tutti {

OffsetSpace::OffsetSpace(uint64_t size) : size_(size) {
  if (size > 0) free_.emplace(0, size);
}

std::optional<uint64_t> OffsetSpace::Take(uint64_t count, uint64_t alignment) {
  for (auto run = free_.begin(); run != free_.end(); ++run) {
    const auto [begin, end] = *run;
    const uint64_t beyond = begin % alignment;
    const uint64_t gap = beyond == 0 ? 0 : alignment - beyond;
    if (end - begin < gap || end - begin - gap < count) continue;
    const uint64_t at = begin + gap;
    if (at + count < end) free_.emplace_hint(std::next(run), at + count, end);
    if (gap == 0)
      free_.erase(run);
    else
      run->second = at;
    taken_ += count;
    return at;
  }
  return std::nullopt;
}

void OffsetSpace::GiveBack(uint64_t begin, uint64_t count) {
  uint64_t end = begin + count;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    next = free_.erase(next);
  }
  const auto before = next == free_.begin() ? free_.end() : std::prev(next);
  if (before != free_.end() && before->second == begin)
    before->second = end;
  else
    free_.emplace_hint(next, begin, end);
  taken_ -= count;
}

}  // namespace tutti
