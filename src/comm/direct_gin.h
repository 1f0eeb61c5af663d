#pragma once

// The parts of GIN direct (gin/direct.h) that the device communicators of a communicator share: the
// opened card, and the keys by which the cards of all ranks reach windows. Made with the first
// window where NCCL_GIN_TYPE is 3.
//
//   first window     each rank opens its card; where a rank cannot, all know why, and windows go on
//                    without cards
//   each window      each rank registers its part with the card; all tell one another the key
//   each device      queue pairs and tables are made; all tell one another theirs, and join
//   communicator
//
// Each step is a joint call with the same result on all ranks. Where a rank fails, all get its
// reason and nothing of the call is left.
//
// A rank destroys its device communicator alone, when others may still wait for its card's answers.
// The rank's queue pairs stay until all ranks have destroyed theirs, which a later joint call
// tells, or until the communicator ends.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "gin/direct.h"
#include "nccl_device/impl/gin_gdaki.h"
#include "operations/agreement.h"
#include "window/record_memory.h"
#include "window/window.h"

namespace tutti {

class Communicator;

class DirectGin {
 public:
  explicit DirectGin(Communicator& comm);
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
  // Ends the cards' access to this rank's part of a window. Any thread.
  void Forget(ncclWindow_t window);

  // Makes the backend of a device communicator. A joint call. After the failure of a rank the
  // communicator lives on; where the ranks cannot talk, the communicator is stopped.
  Result<std::unique_ptr<GinBackend>> Make(const GinPlan& plan);

 private:
  class Owned;
  // A window to which kernels of this rank put.
  struct Shared {
    std::unique_ptr<CardMemory> own;
    std::vector<uint32_t> keys;  // The keys of all ranks.
    device::GdakiMemory memory = {};
    void* record = nullptr;  // for kernels of a GPU, in place of both
  };
  // The backend of a destroyed device communicator. Joint calls number backends from 1 on.
  struct Retired {
    uint64_t number = 0;
    std::unique_ptr<DirectBackend> direct;
  };

  Result<Agreement> Open();
  Status OpenCard();
  Result<std::string> ChoosePort() const;
  Result<const device::GdakiMemory*> RecordFor(Shared& shared) TUTTI_REQUIRES(mutex_);
  Result<std::unique_ptr<DirectBackend>> Prepare(const GinPlan& plan);
  Status JoinAll(DirectBackend* direct, const Status& could, size_t offer_bytes);
  void Retire(uint64_t number, std::unique_ptr<DirectBackend> direct) TUTTI_EXCLUDES(mutex_);
  void FreeRetired(uint64_t oldest_used) TUTTI_EXCLUDES(mutex_);

  Communicator& comm_;
  std::unique_ptr<DirectCard> card_;
  bool asked_ = false;  // The ranks have tried to open their cards.
  Status why_none_;     // the reason for a failed attempt, the same on all ranks
  uint64_t made_ = 0;   // successful joint calls to Make, the same number on all ranks
  Mutex mutex_;
  std::unique_ptr<RecordMemory> records_ TUTTI_GUARDED_BY(mutex_);  // of a GPU, with card_
  std::map<ncclWindow_t, Shared> windows_ TUTTI_GUARDED_BY(mutex_);
  std::set<uint64_t> used_ TUTTI_GUARDED_BY(mutex_);  // the numbers of live backends
  std::vector<Retired> retired_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
