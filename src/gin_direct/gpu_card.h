#pragma once

// A network card as kernels of a GPU drive it (direct.h). Where things lie:
//
//   memory of the GPU      windows; signals, counters and the sink; what kernels keep of queue pairs;
//                          entries, completions and doorbell records
//   registers of the card  doorbells, whose pages are mapped for the GPU
//
// Signals lie where windows do, so that all that a card writes takes one way and nothing of it
// comes behind its signal. For the same reason gets are visible when the card has read the sink
// behind them.
//
// The card is given memory of the GPU by a DMA-BUF, and where that fails by its address, for which
// the kernel has a module (nvidia_peermem). Where it takes data there but no queues, these lie in
// pinned memory of the host, which kernels reach over the bus. Completions take another way than
// data then, and in any case nobody takes them for a sign of it.
//
// The host does not touch memory of the GPU: what it wants to know of queues it copies.
//
// Threads: any, one at a time.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "backend/cuda/memory.h"
#include "base/status.h"
#include "gin_direct/card.h"

namespace tutti {

class GinGpuCard {
 public:
  struct Options {
    // The GPU's kernels may be taken to see what the card writes in its order, whatever CUDA says.
    bool trusts_order = false;
  };
  // Tries all that kernels need once. Fails, with the reason, where some of it cannot be had.
  static Result<std::unique_ptr<GinGpuCard>> Create(const cuda::Device& device, Card& card,
                                                    const Options& options);

  const cuda::Device& device() const { return device_; }

  // Lets the card reach memory of the GPU, as Card::Register does.
  Result<std::unique_ptr<CardMemory>> Register(std::span<std::byte> memory, uint64_t begin,
                                               CardOrdering ordering);

  // Makes queue pairs as Card::MakeQueues does, for kernels of the GPU. They end before this does.
  Result<std::unique_ptr<CardQueues>> MakeQueues(size_t count, uint32_t depth);

 private:
  class Queues;
  // Where queue pairs lie, and by what the card knows that. Each is tried when the one before has
  // failed, and those are not tried again.
  enum class Place : uint8_t { kNotTried, kGpuByDmabuf, kGpuByAddress, kHost };

  GinGpuCard(const cuda::Device& device, Card& card) : device_(device), card_(card) {}
  Status Try();
  Result<std::unique_ptr<CardQueueMemory>> RegisterQueues(std::span<std::byte> memory);
  void Settle(Place place, const std::string& why_not);
  Result<std::shared_ptr<cuda::MappedRegisters>> MapRegisters(std::span<std::byte> page);

  const cuda::Device& device_;
  Card& card_;
  Place place_ = Place::kNotTried;
  // CUDA maps a page once, and several queue pairs, of different sets too, may have it.
  std::map<std::byte*, std::weak_ptr<cuda::MappedRegisters>> pages_;
};

}  // namespace tutti
