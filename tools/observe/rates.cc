#include "observe/rates.h"

#include <algorithm>

#include "watch/slow_rank_judge.h"

namespace tutti::tools {

using observe::CommunicatorSnapshot;
using observe::CommunicatorView;
using observe::RankView;

namespace {

// Returns the time that collectives of a rank have waited. The record has the waits of a collective
// once the collective has ended.
int64_t WaitedNs(const CommunicatorSnapshot& one) {
  const OpSignature* const present = one.in_collective ? one.Find(one.begun) : nullptr;
  const bool counts = present != nullptr && AllWaitForAll(present->collective) && one.wait;
  return one.waited_ns +
         (counts ? std::max<int64_t>(0, one.wait->seen_ns - one.wait->since_ns) : 0);
}

}  // namespace

Rates RatesOf(const RankView* before, const RankView& now, double seconds) {
  Rates rates;
  if (before == nullptr || !before->snapshot || !now.snapshot || seconds <= 0) return rates;
  const CommunicatorSnapshot &a = *before->snapshot, &b = *now.snapshot;
  if (a.place_use != b.place_use || b.done() < a.done()) return rates;
  rates.collectives_per_s = static_cast<double>(b.done() - a.done()) / seconds;
  rates.messages_per_s =
      static_cast<double>(b.messages_done() - std::min(a.messages_done(), b.messages_done())) /
      seconds;
  rates.waiting_share =
      std::clamp(static_cast<double>(WaitedNs(b) - WaitedNs(a)) / 1e9 / seconds, 0.0, 1.0);
  double bytes = 0, count = 0;
  for (const OpSignature& one : b.recent) {
    if (one.sequence <= a.done() || one.sequence > b.done()) continue;
    bytes += static_cast<double>(one.count) * static_cast<double>(SizeOf(one.type));
    ++count;
  }
  if (count > 0) rates.collective_bytes_per_s = bytes / count * rates.collectives_per_s;
  return rates;
}

Rates RatesOf(const CommunicatorView& before, const CommunicatorView& now) {
  const double seconds = static_cast<double>(now.at_ns - before.at_ns) / 1e9;
  Rates mean;
  for (const RankView& one : now.ranks) {
    const Rates rates = RatesOf(before.Find(one.rank), one, seconds);
    const auto count = static_cast<double>(now.ranks.size());
    mean.collectives_per_s += rates.collectives_per_s / count;
    mean.messages_per_s += rates.messages_per_s / count;
    mean.collective_bytes_per_s += rates.collective_bytes_per_s / count;
    mean.waiting_share += rates.waiting_share / count;
  }
  return mean;
}

}  // namespace tutti::tools
