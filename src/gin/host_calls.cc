#include "gin/host_calls.h"

#include <string>
#include <utility>

#include "grid/grid.h"

namespace tutti {
namespace {

// A wait asks once in 512 rounds whether another rank is left that could end the wait.
constexpr uint32_t kRoundsUntilLook = 512;

}  // namespace

Status NoSuchGinWord(const GinPlan& plan, bool is_signal, uint32_t number) {
  return InvalidArgument("there is no {} {}: the device communicator has {}",
                         is_signal ? "signal" : "counter", number,
                         is_signal ? plan.num_signals : plan.num_counters);
}

Status NameKernelThread(Status failure) {
  const std::string thread = NameOfGridThread();
  return thread.empty() ? failure : std::move(failure).Annotate(thread);
}

void StopIfAlone(Watch& watch, uint32_t round) {
  if (round % kRoundsUntilLook != kRoundsUntilLook - 1) return;
  Status alone = watch.CheckNotAlone();
  if (!alone.ok()) watch.Stop(std::move(alone).Annotate("a kernel's wait"), /*tell=*/true);
}

}  // namespace tutti
