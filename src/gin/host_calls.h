#pragma once

// Common parts of GinProxy and GinDirect, which both serve kernels on hosts: the handle that the
// kernels call with, and the errors that stop the communicator for a kernel's mistakes.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/rounding.h"
#include "base/status.h"
#include "devcomm/gin_plan.h"
#include "gin/backend.h"
#include "gin/card_record.h"
#include "nccl_device/impl/gin_descriptor.h"
#include "watch/watch.h"

namespace tutti {

// The memory behind a handle. A handle points at the contexts that kernels read. Ahead of the
// contexts lie facts by which kernels on hosts work without calls, and the address of the object
// that the kernels call (GinHostCalls::Of). Behind the contexts of a proxy lie records of the
// contexts in the form of a card's (device::RecordsOfContexts).
template <class Context>
class GinHandle {
 public:
  GinHandle(GinHostCalls* calls, size_t num_contexts)
      : places_(1 + num_contexts + DivUp(RecordBytes(num_contexts), sizeof(Place))),
        num_contexts_(num_contexts) {
    places_[0].ahead.head.calls = calls;
  }
  // Lets kernels add to the signals of the LSA team, whose words lie in the resource window where
  // the plan says, and to words of windows with `adds_to_windows`.
  void ShowSignals(const GinPlan& plan, bool adds_to_windows) {
    device::GinHead& head = places_[0].ahead.head;
    head.signals_at = plan.signals_at;
    head.network_signals_at = plan.network_signals_at;
    head.adds_to_windows = adds_to_windows ? 1 : 0;
    head.mark = device::GinHead::kMark;
  }
  void* get() { return &places_[1].context; }
  Context& context(size_t number) { return places_[number + 1].context; }
  // Writes the records of the contexts, which are complete.
  void WriteRecords() requires std::same_as<Context, device::GinContext> {
    auto* const records = reinterpret_cast<std::byte*>(&places_[num_contexts_ + 1]);
    for (size_t i = 0; i < num_contexts_; ++i) {
      const ncclGinGdakiGPUContext record = RecordOf(context(i));
      std::memcpy(records + i * sizeof(record), &record, sizeof(record));
    }
  }

 private:
  static constexpr size_t RecordBytes(size_t num_contexts) {
    return std::same_as<Context, device::GinContext> ? num_contexts * sizeof(ncclGinGdakiGPUContext)
                                                     : 0;
  }
  struct Ahead {
    std::byte unused[sizeof(Context) - sizeof(device::GinHead)];
    device::GinHead head;
  };
  union Place {
    Ahead ahead = {};
    Context context;
  };
  std::vector<Place> places_;
  const size_t num_contexts_;
};

// Returns the error for a kernel's unknown signal or counter.
Status NoSuchGinWord(const GinPlan& plan, bool is_signal, uint32_t number);

// Returns the failure with the name of the calling thread, if a kernel runs on the thread.
Status NameKernelThread(Status failure);

// Stops the communicator if no rank is left that could end a kernel's wait. Does nothing in most
// rounds of the wait.
void StopIfAlone(Watch& watch, uint32_t round);

}  // namespace tutti
