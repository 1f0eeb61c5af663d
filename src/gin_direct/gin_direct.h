#pragma once

// GIN direct (GDAKI): kernels drive a network card themselves (nccl_device/impl/gin_gdaki.h). The
// host makes what they need and then stands aside: for each device communicator, on every rank,
//
//   tables      words of signals and counters and a sink, which the card reaches by keys
//   main        queue pairs, one toward each rank, this one too, and a spare one that answers the
//               one toward this rank
//   companions  where there are counters: two for each main one, joined to each other
//
// Ranks make theirs in three steps, of which the communicator sees that all ranks take them
// together (comm/direct_gin.h):
//
//   Create  memory, keys, queue pairs; nothing is joined yet
//   Offer ─▶ all ranks tell one another their card's end, keys and queue pairs' numbers ─▶ Join
//   handle  the device communicator is made
//
// All contexts of a rank share its tables; words of one context follow those of the one before.
// Peers are numbered by their ranks, also where only those of a rail are joined: the others have
// queue pairs that are zero, to which nothing may be posted.
//
// A card stops a queue pair whose entry has failed, and all later ones fail with it. A kernel on a
// host whose wait ends for that calls NoteFailed; besides, a timer asks the card from time to time,
// which for kernels of GPUs is the only way. Either way the communicator stops with a sentence that
// names the rank and what was wrong.
//
// On a GPU the tables, and all that kernels read and write besides the queues, lie in its memory
// (gpu_card.h says where these do). Block is then what that memory is filled from once. How far
// kernels have come, and what the card has completed, the host reads by copies there.
//
// Threads: Create, Offer and Join by one thread; what GinHostCalls says by any.

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
    Card* card = nullptr;       // It outlives the object, and so does the next.
    GinGpuCard* gpu = nullptr;  // the card as a GPU's kernels have it; null: kernels are the host's
    int64_t query_ns = 0;       // how often the card is asked for errors; 0: never
  };
  static Result<std::unique_ptr<GinDirect>> Create(Parts parts);
  ~GinDirect() override;
  GinDirect(const GinDirect&) = delete;
  GinDirect& operator=(const GinDirect&) = delete;

  // Returns how many bytes each of so many ranks offers to the others.
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
  // An offer: this, and then the number of the main queue pair of each context toward each rank; 0
  // where there is none.
  struct OfferHead {
    CardEnd end;
    uint32_t signal_key = 0;
  };
  // Where the queue pairs of a context toward a rank are among all of them; kNone for none.
  static constexpr size_t kNone = SIZE_MAX;
  struct Toward {
    size_t main = kNone;
    size_t answers = kNone;  // joined to `main` where the rank is this one
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
  std::unique_ptr<cuda::OwnStream> stream_;  // with the next
  cuda::MappedMemory gpu_memory_;            // with Layout; these tables are there then
  uint64_t *signals_ = nullptr, *counters_ = nullptr;
  std::unique_ptr<CardMemory> signal_memory_, counter_memory_, sink_memory_;
  std::vector<Toward> toward_;
  size_t num_queues_ = 0;
  std::unique_ptr<Block> block_;
  std::unique_ptr<CardQueues> queues_;  // ends before the above, which the card reaches
  Mutex mutex_;
  EventLoop::TimerId timer_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool retired_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
