#pragma once

// Queue pairs of an mlx5 card, made by its own commands. All of one set lie in one umem:
//
//   for each queue pair, in whole pages   entries of the completion queue │ entries to send
//   behind them, a line of 64 bytes each  records: of the completion queue │ of the queue pair
//
// Each queue pair has a doorbell register of its own: two queue pairs would wait for one another
// at one, when threads ring both.

#include <cstdlib>
#include <memory>
#include <vector>

#include "gin/mlx5/card.h"

namespace tutti {

class Mlx5Queues final : public CardQueues {
 public:
  // `card` outlives the queues. They are made, and in the state in which they can be joined.
  static Result<std::unique_ptr<Mlx5Queues>> Create(const Mlx5Card& card, size_t count,
                                                    uint32_t depth);
  ~Mlx5Queues() override;
  Mlx5Queues(const Mlx5Queues&) = delete;
  Mlx5Queues& operator=(const Mlx5Queues&) = delete;

  uint32_t NumberOf(size_t queue) const override { return queues_[queue].number; }
  Status Join(size_t queue, const CardEnd& end, uint32_t number) override;
  device::mlx5::QueuePair Export(size_t queue) const override;
  Result<bool> HasStopped(size_t queue) const override;
  std::span<std::byte> memory() const override;
  std::span<std::byte> RegisterPage(size_t queue) const override;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Queue {
    mlx5dv_devx_uar* uar = nullptr;
    mlx5dv_devx_obj* completions = nullptr;
    mlx5dv_devx_obj* pair = nullptr;
    uint32_t completions_number = 0;
    uint32_t number = 0;
  };

  Mlx5Queues(const Mlx5Card& card, size_t count, uint32_t depth);
  size_t MemoryBytes() const;
  Status Allocate();
  Status MakeUar(Queue& queue) const;
  Status MakePair(size_t i);
  Result<mlx5dv_devx_obj*> MakeObject(const Mlx5LongCommand& command, const char* what,
                                      uint32_t* number) const;
  Status Modify(const Queue& queue, const Mlx5LongCommand& command, const char* what) const;

  // Where the parts of a queue pair begin in the memory.
  size_t CompletionsAt(size_t i) const { return i * 2 * ring_bytes_; }
  size_t EntriesAt(size_t i) const { return CompletionsAt(i) + ring_bytes_; }
  size_t CompletionsRecordAt(size_t i) const { return CompletionsAt(queues_.size()) + i * 2 * 64; }
  size_t RecordAt(size_t i) const { return CompletionsRecordAt(i) + 64; }

  const Mlx5Card& card_;
  const uint32_t depth_;
  const size_t ring_bytes_;  // of the entries of one queue, in whole pages
  std::unique_ptr<std::byte, Free> memory_;
  mlx5dv_devx_umem* umem_ = nullptr;
  std::vector<Queue> queues_;
};

}  // namespace tutti
