#pragma once

// A network card that kernels drive themselves: what this module asks of every kind of card. The
// only kind, mlx5, is in mlx5/.
//
//   Card          the opened device and its port
//     CardMemory  memory that the card reaches, by a key (gin/direct.h)
//     CardQueues  queue pairs, whose entries, completions and doorbell records lie in memory that
//                 kernels write and read: the host's, or that of a GPU, CardQueueMemory
//
// A card outlives what was made of it. One thread at a time makes and connects; queue pairs may be
// asked whether they have failed, and for completions, by any thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/settings.h"
#include "gin/direct.h"
#include "gin_direct/options.h"
#include "nccl_device/impl/mlx5_queue.h"

namespace tutti {

// Where a card is on the network, as other ranks are told. Plain bytes.
struct CardEnd {
  std::array<uint8_t, 16> gid = {};
  uint16_t lid = 0;
  uint8_t mtu = 0;       // an ibv_mtu
  uint8_t ethernet = 0;  // 1: RoCE, else InfiniBand
};

// Memory of a GPU in which queue pairs lie, as the card reaches it. That ends with the object, the
// memory is the caller's.
class CardQueueMemory {
 public:
  virtual ~CardQueueMemory() = default;
};

// What the card has written of an entry: the word that says what became of it (mlx5_entries.h),
// and where that is an error, of which kind.
struct CardCompletion {
  uint32_t word = 0;
  uint8_t syndrome = 0;
};

class CardQueues {
 public:
  virtual ~CardQueues() = default;

  // Returns the number by which others join a queue pair.
  virtual uint32_t NumberOf(size_t queue) const = 0;
  // Joins a queue pair to queue pair `number` of a card, which then answers it. Once.
  virtual Status Join(size_t queue, const CardEnd& end, uint32_t number) = 0;
  // Returns what kernels get of a queue pair that nothing was posted to.
  virtual device::mlx5::QueuePair Export(size_t queue) const = 0;
  // Returns whether the card has stopped a queue pair because of an error.
  virtual Result<bool> HasStopped(size_t queue) const = 0;
  // Returns what lies where the completion of entry `index` comes. REQUIRES: that is memory of the
  // host.
  virtual Result<CardCompletion> Completion(size_t queue, uint64_t index) const = 0;
  // Return what must be mapped for kernels of a GPU, in whole pages: the memory of all queue pairs,
  // and the page with the doorbell register of one. Several may share that.
  virtual std::span<std::byte> memory() const = 0;
  virtual std::span<std::byte> RegisterPage(size_t queue) const = 0;
};

class Card {
 public:
  // Returns the ports that a rank could use, at least one. Fails where there is none that kernels
  // could drive.
  static Result<std::vector<CardPort>> Find(const Settings& settings, const GinOptions& options);
  // Opens the card of the port with this name.
  static Result<std::unique_ptr<Card>> Open(const Settings& settings, const GinOptions& options,
                                            const std::string& port);
  virtual ~Card() = default;

  virtual const std::string& name() const = 0;
  virtual const CardEnd& end() const = 0;
  // Lets the card reach memory, whose first byte has the address `begin` in entries. `begin` and
  // the memory lie alike in their pages.
  virtual Result<std::unique_ptr<CardMemory>> Register(std::span<std::byte> memory, uint64_t begin,
                                                       CardOrdering ordering) = 0;
  // Does the same with memory of a GPU: by a DMA-BUF in which it begins at `offset`, or by its
  // address, which takes a module of the kernel, where `dmabuf` is -1.
  virtual Result<std::unique_ptr<CardMemory>> RegisterGpu(std::span<std::byte> memory,
                                                          uint64_t begin, CardOrdering ordering,
                                                          int dmabuf, uint64_t offset) = 0;
  // Returns whether it takes DMA-BUFs, as far as is known before.
  virtual bool takes_dmabuf() const = 0;
  // Returns what memory of queue pairs holds before they are made: whole pages.
  virtual std::vector<std::byte> QueueImage(size_t count, uint32_t depth) const = 0;
  // Lets queue pairs lie in memory of a GPU, which holds that image and begins at a page; by a
  // DMA-BUF or its address, as RegisterGpu does.
  virtual Result<std::unique_ptr<CardQueueMemory>> RegisterQueues(std::span<std::byte> memory,
                                                                  int dmabuf, uint64_t offset) = 0;
  // Makes queue pairs with `depth` entries each, a power of two up to 32,768, in memory that was
  // registered for as many, or where it is null in the host's.
  virtual Result<std::unique_ptr<CardQueues>> MakeQueues(
      size_t count, uint32_t depth, std::unique_ptr<CardQueueMemory> memory) = 0;
};

}  // namespace tutti
