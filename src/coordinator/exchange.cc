#include "coordinator/exchange.h"

#include <algorithm>
#include <cstring>

namespace tutti::coordinator {
namespace {

Result<Bytes> SwapAtDistance(Exchange& exchange, int64_t distance,
                             std::span<const std::byte> bytes) {
  const int64_t n = exchange.num_ranks();
  const auto above = static_cast<int>((exchange.rank() + distance) % n);
  const auto below = static_cast<int>((exchange.rank() - distance + n) % n);
  return exchange.Swap(above, bytes, below);
}

}  // namespace

Status Exchange::Min(std::span<uint8_t> values) {
  for (int64_t distance = 1; distance < num_ranks(); distance *= 2) {
    TUTTI_ASSIGN(const Bytes theirs, SwapAtDistance(*this, distance, std::as_bytes(values)));
    if (theirs.size() != values.size()) {
      return InternalError("a rank exchanged {} bytes of states where this one has {}",
                           theirs.size(), values.size());
    }
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::min(values[i], std::to_integer<uint8_t>(theirs[i]));
    }
  }
  return Status::Ok();
}

Status MergeFromAll(Exchange& exchange, const std::function<Bytes()>& encode,
                    const std::function<Status(std::span<const std::byte>)>& merge) {
  for (int64_t distance = 1; distance < exchange.num_ranks(); distance *= 2) {
    TUTTI_ASSIGN(const Bytes theirs, SwapAtDistance(exchange, distance, encode()));
    TUTTI_TRY(merge(theirs));
  }
  return Status::Ok();
}

}  // namespace tutti::coordinator
