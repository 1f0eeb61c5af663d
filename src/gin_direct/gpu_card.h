#pragma once

// A network card as kernels of a GPU drive it (gin_direct.h). Where things lie:
//
//   memory of the GPU      windows; signals, counters and the sink; what kernels keep of queue pairs;
//                          entries, completions and doorbell records
//   registers of the card  doorbells, whose pages are mapped for the GPU
//
// Signals lie in the same memory as windows: all writes of a card then take one way, and no data
// comes behind its signal. For the same reason gets are visible when the card has read the sink
// behind them.
//
// The card gets memory of the GPU by a DMA-BUF, and where the DMA-BUF fails by an address, with the
// Linux kernel's module nvidia_peermem. If the card takes data in the GPU but no queues, the queues
// lie in pinned memory of the host, and kernels reach them over the bus. Completions then take a
// different way than data, and no kernel takes a completion for a sign of data.
//
// The host does not touch memory of the GPU, and reads the state of queues by copies.
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
    // The GPU's kernels see the card's writes in order, whatever CUDA says.
    bool trusts_order = false;
  };
  // Tries everything that kernels need once. Fails, with the reason, where a part is not available.
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
  // The memory of queue pairs, and the card's way to know the memory. Each place is tried after the
  // failure of the place before, and a failed place is not tried again.
  enum class Place : uint8_t { kNotTried, kGpuByDmabuf, kGpuByAddress, kHost };

  GinGpuCard(const cuda::Device& device, Card& card) : device_(device), card_(card) {}
  Status Try();
  Result<std::unique_ptr<CardQueueMemory>> RegisterQueues(std::span<std::byte> memory);
  void Settle(Place place, const std::string& why_not);
  Result<std::shared_ptr<cuda::PinnedRange>> MapRegisters(std::span<std::byte> page);

  const cuda::Device& device_;
  Card& card_;
  Place place_ = Place::kNotTried;
  // CUDA maps a page once, and several queue pairs, of different sets too, may share the page.
  std::map<std::byte*, std::weak_ptr<cuda::PinnedRange>> pages_;
};

}  // namespace tutti
