#pragma once

// A network card as kernels of a GPU drive it (direct.h). Where things lie:
//
//   memory of the GPU      windows; signals, counters and the sink; what kernels keep of queue pairs
//   pinned memory          entries, completions and doorbell records
//   registers of the card  doorbells, whose pages are mapped for the GPU
//
// Signals lie where windows do, so that all that a card writes takes one way and nothing of it
// comes behind its signal. For the same reason gets are visible when the card has read the sink
// behind them. Completions take another way than data, and nobody takes them for a sign of it.
//
// The card is given memory of the GPU by a DMA-BUF, and where that fails by its address, for which
// the kernel has a module (nvidia_peermem).
//
// Threads: any, one at a time.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/memory.h"
#include "base/status.h"
#include "gin/card.h"

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

  // Holds what is mapped of a set of queue pairs. It ends before they do.
  class Mapped {
   public:
    // Returns what kernels of the GPU get of a queue pair.
    device::mlx5::QueuePair Export(size_t queue) const;

   private:
    friend class GinGpuCard;
    const CardQueues* queues_ = nullptr;
    cuda::PinnedRange memory_;
    std::vector<std::shared_ptr<cuda::MappedRegisters>> registers_;  // of each queue pair
  };
  Result<Mapped> Map(const CardQueues& queues, size_t count);

 private:
  GinGpuCard(const cuda::Device& device, Card& card) : device_(device), card_(card) {}
  Status Try();

  const cuda::Device& device_;
  Card& card_;
  // CUDA maps a page once, and several queue pairs, of different sets too, may have it.
  std::map<std::byte*, std::weak_ptr<cuda::MappedRegisters>> pages_;
};

}  // namespace tutti
