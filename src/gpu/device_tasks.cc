#include "gpu/device_tasks.h"

#include "base/reduce.h"
#include "plan/averages.h"

namespace tutti {

// Deterministic operations always divide an average (plan/averages.h).
cuda::ReduceArgs ReduceArgsOf(const CollectiveTask& task, const PlanContext& context,
                              const Plan& plan) {
  cuda::ReduceArgs args;
  if (!task.is_reduction()) return args;
  args.kind = task.op.kind;
  args.scale = task.op.pre_multiply;
  args.scalar = task.op.scalar;
  args.live_scalar = task.op.live_scalar;
  if (!task.op.average) return args;
  if (!IsDeterministic(context, task) && ScalesAverages(task.type, plan.row->order)) {
    args.scale = true;
    args.scalar = ScalarBits(task.type, 1.0 / context.num_ranks);
  } else {
    args.divisor = static_cast<uint32_t>(context.num_ranks);
  }
  return args;
}

}  // namespace tutti
