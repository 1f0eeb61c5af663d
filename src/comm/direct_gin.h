#pragma once

// The parts that kernels need to drive network cards themselves (gin/direct.h) and that device
// communicators share: the opened card, and the keys by which the cards of all ranks reach windows.
// Made with the first window where NCCL_GIN_TYPE is 3.
//
//   first window     each rank opens its card; where a rank cannot, all know why, and windows go on
//                    without cards
//   each window      each rank registers its part with the card; all tell one another the key
//   each device      queue pairs and tables are made; all tell one another theirs, and join
//   communicator
//
// Each of these is a joint call: all ranks make the call together, with one outcome. Where a rank
// fails, all get the rank's reason and nothing of the call is left.
//
// A rank destroys its device communicator alone, while others may still wait for the answers of its
// card. The rank's queue pairs therefore stay until a later joint call tells that all ranks have
// destroyed theirs, or until the communicator ends.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "gin/direct.h"
#include "operations/agreement.h"
#include "window/record_memory.h"
#include "window/window.h"

namespace tutti {

class Communicator;

class DirectGin {
 public:
  DirectGin(Communicator& comm, const GinOptions& options);
  // REQUIRES: no backend is left.
  ~DirectGin();
  DirectGin(const DirectGin&) = delete;
  DirectGin& operator=(const DirectGin&) = delete;

  // Returns whether the ranks have tried to open cards and cannot. Kernels of GPUs then put by the
  // proxy.
  bool refused() const { return asked_ && card_ == nullptr; }
  const Status& why_refused() const { return why_none_; }

  // Lets the cards of all ranks reach a window. A joint call. Fails when the ranks cannot talk.
  Result<Agreement> Share(const Window& window);
  // Ends the reach of cards to this rank's part. Any thread.
  void Forget(ncclWindow_t window);

  // Makes the backend of a device communicator. A joint call. The communicator lives on where the
  // call fails on some rank, and is stopped where the ranks cannot talk.
  Result<std::unique_ptr<GinBackend>> Make(const GinPlan& plan);

 private:
  class Owned;
  // A window to which kernels of this rank put.
  struct Shared {
    std::unique_ptr<CardMemory> own;
    std::vector<uint32_t> keys;  // The keys of all ranks.
    device::GdakiMemory memory = {};
    void* record = nullptr;  // The form of both for kernels of a GPU.
  };
  // The queue pairs of an ended device communicator. Joint calls number device communicators from 1
  // on.
  struct Retired {
    uint64_t number = 0;
    std::unique_ptr<GinDirect> direct;
  };

  Result<Agreement> Open();
  Status OpenCard();
  Result<std::string> ChoosePort() const;
  Result<std::unique_ptr<CardMemory>> Register(const Window& window);
  Result<const device::GdakiMemory*> RecordFor(Shared& shared) TUTTI_REQUIRES(mutex_);
  Result<std::unique_ptr<GinDirect>> Prepare(const GinPlan& plan);
  Status JoinAll(GinDirect* direct, const Status& could, size_t offer_bytes);
  void Retire(uint64_t number, std::unique_ptr<GinDirect> direct) TUTTI_EXCLUDES(mutex_);
  void FreeRetired(uint64_t oldest_used) TUTTI_EXCLUDES(mutex_);

  Communicator& comm_;
  const GinOptions options_;
  std::unique_ptr<Card> card_;
  std::unique_ptr<GinGpuCard> gpu_;  // Set where the rank is a GPU.
  bool asked_ = false;               // The ranks have tried to open their cards.
  Status why_none_;    // The reason why no card could be opened, the same on all ranks.
  uint64_t made_ = 0;  // Successful calls of Make; the same on all ranks.
  Mutex mutex_;
  std::unique_ptr<RecordMemory> records_ TUTTI_GUARDED_BY(mutex_);  // Set with gpu_.
  std::map<ncclWindow_t, Shared> windows_ TUTTI_GUARDED_BY(mutex_);
  std::set<uint64_t> used_
      TUTTI_GUARDED_BY(mutex_);  // The numbers of the living device communicators.
  std::vector<Retired> retired_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
