// When the bytes of a write reach memory, as SetDelivery says.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "queue_pairs.h"

namespace fakeverbs {
namespace {

bool Overlap(const Arrived& a, const Arrived& b) {
  return a.to < b.to + b.bytes.size() && b.to < a.to + a.bytes.size();
}

// Delivers one of the writes that wait, or instead the first that it would overwrite.
void DeliverOne(Qp& pair, size_t which) {
  for (size_t earlier = 0; earlier < which; ++earlier)
    if (Overlap(pair.arrived[earlier], pair.arrived[which])) which = earlier;
  const Arrived& write = pair.arrived[which];
  Place(write.to, write.bytes.data(), write.bytes.size());
  pair.arrived.erase(pair.arrived.begin() + static_cast<ptrdiff_t>(which));
}

}  // namespace

void Deliver(Qp& pair, std::byte* to, const std::byte* bytes, size_t count) {
  if (TheState().delivery.order == Order::kAtOnce) return Place(to, bytes, count);
  pair.arrived.push_back({to, {bytes, bytes + count}});
}

void DeliverAll(Qp& pair) {
  while (!pair.arrived.empty()) DeliverOne(pair, 0);
}

void DeliverAllOfEveryPair() {
  for (const auto& [number, pair] : TheState().pairs) DeliverAll(*pair);
}

bool DeliverSome() {
  State& s = TheState();
  bool waits = false;
  for (const auto& [number, pair] : s.pairs) {
    const size_t count = pair->arrived.size();
    if (count == 0) continue;
    switch (s.delivery.order) {
      case Order::kAtOnce:
        DeliverAll(*pair);
        break;
      case Order::kShuffled:
        for (size_t n = s.random() % (count + 1); n > 0; --n)
          DeliverOne(*pair, s.random() % pair->arrived.size());
        break;
      case Order::kReversed:
        DeliverOne(*pair, count - 1);
        break;
      case Order::kForced:
        continue;
    }
    waits |= !pair->arrived.empty();
  }
  return waits;
}

void SetDelivery(const Delivery& delivery) {
  {
    State& s = TheState();
    const Lock lock(s.mutex);
    DeliverAllOfEveryPair();
    s.delivery = delivery;
    s.random.seed(delivery.seed);
  }
  WakeNic();
}

Delivery DefaultDelivery() {
  Delivery delivery;
  if (const char* const seed = getenv("FAKE_VERBS_SHUFFLE")) {
    delivery.order = Order::kShuffled;
    delivery.seed = static_cast<uint32_t>(strtoul(seed, nullptr, 10));
  }
  return delivery;
}

}  // namespace fakeverbs
