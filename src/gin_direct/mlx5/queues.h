#pragma once

// Queue pairs of an mlx5 card, made by its own commands. All queue pairs of a set lie in one umem,
// memory of the host or of a GPU:
//
//   for each queue pair, in whole pages   entries of the completion queue │ entries to send
//   behind them, a line of 64 bytes each  records: of the completion queue │ of the queue pair
//
// Each queue pair has its own doorbell register: two queue pairs with one register would wait for
// one another when threads ring both.

#include <cstdlib>
#include <memory>
#include <vector>

#include "gin_direct/mlx5/card.h"

namespace tutti {

// Where the parts of queue pairs begin in their memory.
class Mlx5QueueLayout {
 public:
  Mlx5QueueLayout(size_t count, uint32_t depth);

  size_t bytes() const;  // whole pages
  size_t CompletionsAt(size_t i) const { return i * 2 * ring_bytes_; }
  size_t EntriesAt(size_t i) const { return CompletionsAt(i) + ring_bytes_; }
  size_t CompletionsRecordAt(size_t i) const { return CompletionsAt(count_) + i * 2 * 64; }
  size_t RecordAt(size_t i) const { return CompletionsRecordAt(i) + 64; }
  // Marks all completions as never written, in zeroed memory.
  void Fill(std::byte* memory) const;

 private:
  size_t count_;
  uint32_t depth_;
  size_t ring_bytes_;  // of one queue's entries, in whole pages
};

// The umem of queue pairs.
class Mlx5QueueMemory final : public CardQueueMemory {
 public:
  // Registers by a DMA-BUF in which the memory begins at `offset`, or by the address if `dmabuf` is
  // -1.
  static Result<std::unique_ptr<Mlx5QueueMemory>> Register(const Mlx5Card& card,
                                                           std::span<std::byte> memory, int dmabuf,
                                                           uint64_t offset);
  // Allocates memory of the host that begins as `image` and ends with the object.
  static Result<std::unique_ptr<Mlx5QueueMemory>> Allocate(const Mlx5Card& card,
                                                           const std::vector<std::byte>& image);
  ~Mlx5QueueMemory() override;
  Mlx5QueueMemory(const Mlx5QueueMemory&) = delete;
  Mlx5QueueMemory& operator=(const Mlx5QueueMemory&) = delete;

  std::span<std::byte> memory() const { return memory_; }
  uint32_t umem() const { return umem_->umem_id; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  Mlx5QueueMemory(const Mlx5Card& card, std::span<std::byte> memory, mlx5dv_devx_umem* umem)
      : card_(card), memory_(memory), umem_(umem) {}

  const Mlx5Card& card_;
  const std::span<std::byte> memory_;
  mlx5dv_devx_umem* const umem_;
  std::unique_ptr<std::byte, Free> own_;
};

class Mlx5Queues final : public CardQueues {
 public:
  // `card` outlives the queues. Returns queues that can be joined.
  static Result<std::unique_ptr<Mlx5Queues>> Create(const Mlx5Card& card, size_t count,
                                                    uint32_t depth,
                                                    std::unique_ptr<Mlx5QueueMemory> memory);
  ~Mlx5Queues() override;
  Mlx5Queues(const Mlx5Queues&) = delete;
  Mlx5Queues& operator=(const Mlx5Queues&) = delete;

  uint32_t NumberOf(size_t queue) const override { return queues_[queue].number; }
  Status Join(size_t queue, const CardEnd& end, uint32_t number) override;
  device::mlx5::QueuePair Export(size_t queue) const override;
  Result<bool> HasStopped(size_t queue) const override;
  Result<CardCompletion> Completion(size_t queue, uint64_t index) const override;
  std::span<std::byte> memory() const override { return memory_->memory(); }
  std::span<std::byte> RegisterPage(size_t queue) const override;

 private:
  struct Queue {
    mlx5dv_devx_uar* uar = nullptr;
    mlx5dv_devx_obj* completions = nullptr;
    mlx5dv_devx_obj* pair = nullptr;
    uint32_t completions_number = 0;
    uint32_t number = 0;
  };

  Mlx5Queues(const Mlx5Card& card, size_t count, uint32_t depth,
             std::unique_ptr<Mlx5QueueMemory> memory);
  Status MakeUar(Queue& queue) const;
  Status MakePair(size_t i);
  Result<mlx5dv_devx_obj*> MakeObject(const Mlx5LongCommand& command, const char* what,
                                      uint32_t* number) const;
  Status Modify(const Queue& queue, const Mlx5LongCommand& command, const char* what) const;

  const Mlx5Card& card_;
  const uint32_t depth_;
  const Mlx5QueueLayout layout_;
  const std::unique_ptr<Mlx5QueueMemory> memory_;
  std::vector<Queue> queues_;
};

}  // namespace tutti
