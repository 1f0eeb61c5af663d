#pragma once

// GIN direct (GDAKI): kernels drive a network card themselves (nccl_device/impl/gin_gdaki.h). The
// host prepares the following for each device communicator, on every rank, and then stands aside:
//
//   tables      words of signals and counters and a sink, which the card reaches by keys
//   main        a queue pair toward each rank, also toward this rank, and a spare queue pair, to
//               which the queue pair toward this rank is joined
//   companions  with counters: two queue pairs for each main queue pair, joined to each other
//
// The communicator leads all ranks together through three steps (comm/direct_gin.h):
//
//   Create  memory, keys, queue pairs; nothing is joined yet
//   Offer ─▶ all ranks tell one another their card's end, keys and queue pairs' numbers ─▶ Join
//   handle  the device communicator is made
//
// All contexts of a rank share its tables, and the words of a context follow those of the context
// before. Peers are numbered by their ranks even if only the ranks of a rail are joined. Queue
// pairs toward the rest are zero, and kernels must not post to them.
//
// A card stops a queue pair after a failed entry, and fails all later entries. A kernel on a host
// whose wait ends because of a stopped queue pair calls NoteFailed. A timer also asks the card from
// time to time, and is the only way for kernels of GPUs. In both cases the communicator stops with
// a sentence that names the rank and the error.
//
// On a GPU the tables, and all that kernels read and write besides the queues, lie in the memory of
// the GPU (gpu_card.h says where the queues lie). The memory is filled once, from Block. The host
// learns by copies how far kernels have come, and which entries the card has completed.
//
// Threads: one thread calls Create, Offer and Join; any thread the functions of GinHostCalls.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/own_stream.h"
#include "base/mutex.h"
#include "base/status.h"
#include "gin/direct.h"
#include "gin_direct/card.h"
#include "gin_direct/gpu_card.h"
#include "nccl_device/impl/gin_gdaki.h"
#include "sys/event_loop.h"
#include "watch/watch.h"

namespace tutti {

class GinDirect final : public DirectBackend, public GinHostCalls {
 public:
  struct Parts : DirectCard::BackendParts {
    Card* card = nullptr;       // outlives the object, as does `gpu`
    GinGpuCard* gpu = nullptr;  // the card for kernels of a GPU; null: kernels are the host's
    int64_t query_ns = 0;       // how often the card is asked for errors; 0: never
  };
  static Result<std::unique_ptr<GinDirect>> Create(Parts parts);
  ~GinDirect() override;
  GinDirect(const GinDirect&) = delete;
  GinDirect& operator=(const GinDirect&) = delete;

  // Returns the length of a rank's offer, in bytes, among `num_ranks` ranks.
  static size_t OfferBytes(const GinPlan& plan, size_t num_ranks) {
    return sizeof(OfferHead) +
           static_cast<size_t>(plan.num_contexts) * num_ranks * sizeof(uint32_t);
  }
  void Offer(std::span<std::byte> offer) const override;
  Status Join(const std::vector<std::span<const std::byte>>& offers) override;
  void* handle() const override;
  Status Finish(Deadline deadline) override;
  void Retire() override;

  GinProxy* AsProxy() override;
  void Wait(uint32_t context, uint32_t round) override;
  void NoteMissing(bool is_signal, uint32_t number) override;
  void NoteUnreached(int rank) override;
  void NoteFailed() override;

 private:
  // An offer: OfferHead, and then the number of the main queue pair of each context toward each
  // rank, or 0 for none.
  struct OfferHead {
    CardEnd end;
    uint32_t signal_key = 0;
  };
  // Where the queue pairs of a context toward a rank are among all of them; kNone for none.
  static constexpr size_t kNone = SIZE_MAX;
  struct Toward {
    size_t main = kNone;
    size_t answers = kNone;  // joined to `main` if the rank is this rank
    size_t companion = kNone, companion_answers = kNone;
  };
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Block;
  struct Layout;

  explicit GinDirect(Parts parts);
  Status MakeTables();
  Result<std::unique_ptr<CardMemory>> Share(std::byte* at, size_t bytes);
  void NumberQueues();
  Status JoinSelf(size_t context, int peer);
  void FillContext(size_t context);
  Status FillGpu();
  // How many entries of each queue pair the card was told of, in the order of toward_.
  struct Told {
    std::vector<uint64_t> main, companion;
  };
  Result<Told> ReadTold() const;
  Result<bool> IsDone(size_t queue, uint64_t index) const;
  uint8_t SyndromeOf(size_t queue) const;
  bool Joins(int peer) const;
  Toward& At(size_t context, int peer) {
    return toward_[context * static_cast<size_t>(parts_.num_ranks) + static_cast<size_t>(peer)];
  }
  const Toward& At(size_t context, int peer) const {
    return const_cast<GinDirect*>(this)->At(context, peer);
  }
  void Refuse(Status failure);
  Status StateOf(size_t queue, int peer) const;
  Status FindFailure(const Told& told) const;
  void AskLater() TUTTI_EXCLUDES(mutex_);

  const Parts parts_;
  const size_t num_contexts_;
  std::unique_ptr<std::byte, Free> tables_;  // signals, counters and the sink, each in whole pages
  std::unique_ptr<cuda::OwnStream> stream_;  // Present with gpu_memory_.
  cuda::MappedMemory gpu_memory_;            // Layout, if the tables lie on the GPU.
  uint64_t *signals_ = nullptr, *counters_ = nullptr;
  std::unique_ptr<CardMemory> signal_memory_, counter_memory_, sink_memory_;
  std::vector<Toward> toward_;
  size_t num_queues_ = 0;
  std::unique_ptr<Block> block_;
  std::unique_ptr<CardQueues> queues_;  // ends before the memory above, which the card reaches
  Mutex mutex_;
  EventLoop::TimerId timer_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool retired_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
