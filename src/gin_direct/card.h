#pragma once

// A network card that kernels drive themselves: the interface of all kinds of cards. The only kind,
// mlx5, is in mlx5/.
//
//   Card          the opened device and its port
//     CardMemory  memory that the card reaches, by a key (gin/card_memory.h)
//     CardQueues  queue pairs, whose entries, completions and doorbell records lie in memory that
//                 kernels write and read: the host's, or that of a GPU, CardQueueMemory
//
// A card outlives its memories and queues. One thread at a time makes and connects. Any thread may
// ask queue pairs for failures and completions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "gin/card_memory.h"
#include "nccl_device/impl/mlx5_queue.h"

namespace tutti {

// The place of a card on the network, for other ranks. Plain bytes.
struct CardEnd {
  std::array<uint8_t, 16> gid = {};
  uint16_t lid = 0;
  uint8_t mtu = 0;       // an ibv_mtu
  uint8_t ethernet = 0;  // 1: RoCE, else InfiniBand
};

// Memory of a GPU for queue pairs, as the card reaches it. The card reaches the memory until the
// object ends; the caller owns the memory.
class CardQueueMemory {
 public:
  virtual ~CardQueueMemory() = default;
};

// The card's completion of an entry: the word with the outcome (mlx5_entries.h), and the kind of
// error.
struct CardCompletion {
  uint32_t word = 0;
  uint8_t syndrome = 0;
};

class CardQueues {
 public:
  virtual ~CardQueues() = default;

  // Returns the number by which other ranks join a queue pair.
  virtual uint32_t NumberOf(size_t queue) const = 0;
  // Joins a queue pair, once, to queue pair `number` of a card, which answers it from then on.
  virtual Status Join(size_t queue, const CardEnd& end, uint32_t number) = 0;
  // Returns an unused queue pair as kernels see it.
  virtual device::mlx5::QueuePair Export(size_t queue) const = 0;
  // Returns whether the card has stopped a queue pair because of an error.
  virtual Result<bool> HasStopped(size_t queue) const = 0;
  // Returns the memory in which the completion of entry `index` appears. REQUIRES: the memory is
  // the host's.
  virtual Result<CardCompletion> Completion(size_t queue, uint64_t index) const = 0;
  // Return the whole pages to map for kernels of a GPU: the memory of all queue pairs, and the page
  // with the doorbell register of a queue pair. Several queue pairs may share a page.
  virtual std::span<std::byte> memory() const = 0;
  virtual std::span<std::byte> RegisterPage(size_t queue) const = 0;
};

class Card {
 public:
  virtual ~Card() = default;

  virtual const std::string& name() const = 0;
  virtual const CardEnd& end() const = 0;
  // Lets the card reach memory, whose first byte has the address `begin` in entries. `begin` and
  // the memory lie alike in their pages.
  virtual Result<std::unique_ptr<CardMemory>> Register(std::span<std::byte> memory, uint64_t begin,
                                                       CardOrdering ordering) = 0;
  // Does the same with memory of a GPU: by a DMA-BUF in which the memory begins at `offset`, or,
  // where `dmabuf` is -1, by the address, which takes a module of the Linux kernel.
  virtual Result<std::unique_ptr<CardMemory>> RegisterGpu(std::span<std::byte> memory,
                                                          uint64_t begin, CardOrdering ordering,
                                                          int dmabuf, uint64_t offset) = 0;
  // Returns whether the card takes DMA-BUFs, as far as is known before.
  virtual bool takes_dmabuf() const = 0;
  // Returns the first content of the memory of queue pairs, in whole pages.
  virtual std::vector<std::byte> QueueImage(size_t count, uint32_t depth) const = 0;
  // Lets queue pairs lie in memory of a GPU that holds the image and begins at a page, by a DMA-BUF
  // or an address as for RegisterGpu.
  virtual Result<std::unique_ptr<CardQueueMemory>> RegisterQueues(std::span<std::byte> memory,
                                                                  int dmabuf, uint64_t offset) = 0;
  // Makes queue pairs with `depth` entries each, a power of two up to 32,768, in `memory`
  // registered for `count` queue pairs, or in the host's memory if `memory` is null.
  virtual Result<std::unique_ptr<CardQueues>> MakeQueues(
      size_t count, uint32_t depth, std::unique_ptr<CardQueueMemory> memory) = 0;
};

}  // namespace tutti
