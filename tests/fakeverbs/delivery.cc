// When the bytes of a write reach memory, as SetDelivery says.

#include <algorithm>
#include <atomic>
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

void Deliver(Qp& pair, const Region& region, std::byte* to, const std::byte* bytes, size_t count) {
  const bool late_on_gpu = region.mapping != nullptr && TheState().late_on_gpu;
  if (late_on_gpu || TheState().delivery.order != Order::kAtOnce)
    pair.arrived.push_back({to, {bytes, bytes + count}, late_on_gpu});
  else if ((region.access & IBV_ACCESS_RELAXED_ORDERING) != 0)
    PlaceRelaxed(to, bytes, count);
  else
    PlaceInOrder(to, bytes, count);
}

void DeliverAll(Qp& pair) {
  while (!pair.arrived.empty()) DeliverOne(pair, 0);
}

void DeliverToHost(Qp& pair) {
  for (size_t i = 0; i < pair.arrived.size();) {
    if (pair.arrived[i].on_gpu)
      ++i;
    else
      DeliverOne(pair, i);
  }
}

void DeliverAllOf(const Device& device) {
  for (const auto& [number, pair] : TheState().pairs)
    if (pair->context->device == &device) DeliverAll(*pair);
}

bool Waits() {
  const auto& pairs = TheState().pairs;
  return std::any_of(pairs.begin(), pairs.end(),
                     [](const auto& entry) { return !entry.second->arrived.empty(); });
}

void DeliverAllOfEveryPair() {
  LandAtomics();
  for (const auto& [number, pair] : TheState().pairs) DeliverAll(*pair);
}

bool LandAtomic(Device& device) {
  if (!device.atomic) return false;
  std::atomic_ref<uint64_t>(*device.atomic->word)
      .store(device.atomic->value, std::memory_order_release);
  device.atomic.reset();
  return true;
}

bool LandAtomics() {
  bool any = false;
  for (const auto& device : TheState().devices) any |= LandAtomic(*device);
  return any;
}

bool DeliverSome() {
  State& s = TheState();
  bool waits = false;
  for (const auto& [number, pair] : s.pairs) {
    const size_t count = pair->arrived.size();
    if (count == 0) continue;
    switch (s.delivery.order) {
      case Order::kAtOnce:
        DeliverOne(*pair, s.random() % count);
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
