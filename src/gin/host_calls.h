#pragma once

// What GinProxy and GinDirect have in common, because both serve kernels on hosts: the handle that
// these call with, and what stops the communicator for their mistakes.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "devcomm/gin_plan.h"
#include "gin/backend.h"
#include "nccl_device/impl/gin_descriptor.h"
#include "watch/watch.h"

namespace tutti {

// The memory that a handle points into. It points at the contexts, which kernels read; ahead of
// them is what kernels on hosts need to do without calls, and the word for those that they make
// (GinHostCalls::Of).
template <class Context>
class GinHandle {
 public:
  GinHandle(GinHostCalls* calls, size_t num_contexts) : places_(num_contexts + 1) {
    places_[0].ahead.head.calls = calls;
  }
  // Lets kernels add to the signals of the LSA team, whose words begin at `signals_at` of the
  // resource window.
  void ShowSignals(uint64_t signals_at) {
    places_[0].ahead.head.signals_at = signals_at;
    places_[0].ahead.head.mark = device::GinHead::kMark;
  }
  void* get() { return &places_[1].context; }
  Context& context(size_t number) { return places_[number + 1].context; }

 private:
  struct Ahead {
    std::byte unused[sizeof(Context) - sizeof(device::GinHead)];
    device::GinHead head;
  };
  union Place {
    Ahead ahead = {};
    Context context;
  };
  std::vector<Place> places_;
};

// Returns what is wrong where a kernel has named a signal or counter that is not there.
Status NoSuchGinWord(const GinPlan& plan, bool is_signal, uint32_t number);

// Returns the failure with the name of the kernel's thread that has caused it, where the calling
// thread is one.
Status NameKernelThread(Status failure);

// Stops the communicator where no rank is left that could end a kernel's wait. Looks in some rounds
// of the wait only.
void StopIfAlone(Watch& watch, uint32_t round);

}  // namespace tutti
