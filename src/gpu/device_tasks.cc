#include "gpu/device_tasks.h"

#include <algorithm>
#include <utility>

#include "base/reduce.h"
#include "plan/averages.h"
#include "plan/cost_table.h"

namespace tutti {

cuda::ReduceArgs ReduceArgsOf(const Task& task, int num_ranks, AddingOrder order) {
  cuda::ReduceArgs args;
  if (!task.is_reduction()) return args;
  args.kind = task.op.kind;
  args.scale = task.op.pre_multiply;
  args.scalar = task.op.scalar;
  args.live_scalar = task.op.live_scalar;
  if (!task.op.average) return args;
  if (ScalesAverages(task.type, order)) {
    args.scale = true;
    args.scalar = ScalarBits(task.type, 1.0 / num_ranks);
  } else {
    args.divisor = static_cast<uint32_t>(num_ranks);
  }
  return args;
}

std::vector<Task> ReducesOf(const Task& task, int rank, int num_ranks) {
  const VariableParts& parts = *task.parts;
  std::vector<Task> reduces;
  for (int r = 0; r < num_ranks; ++r) {
    const auto part = static_cast<size_t>(r);
    if (parts.recv_counts[part] == 0) continue;
    Task& reduce = reduces.emplace_back(task);
    reduce.collective = Collective::kReduce;
    reduce.parts = nullptr;
    reduce.root = r;
    reduce.count = parts.recv_counts[part];
    reduce.send =
        static_cast<const std::byte*>(task.send) + parts.recv_offsets[part] * task.elem_bytes();
    reduce.recv = r == rank ? task.recv : nullptr;
  }
  return reduces;
}

std::vector<PackedStretch> PackedStretchesOf(const Task& task, std::byte* pack) {
  const ScatteredBuffers& buffers = *task.scattered;
  const size_t elem = task.elem_bytes(), most = kGpuPackedBytes / elem;
  std::vector<PackedStretch> stretches;
  for (size_t begin = 0; begin < task.count; begin += most) {
    PackedStretch& stretch = stretches.emplace_back();
    stretch.task = task;
    stretch.task.scattered = nullptr;
    stretch.task.count = std::min(most, task.count - begin);
    stretch.task.send = stretch.task.recv = pack;
    buffers.ForEachStretch(
        begin, stretch.task.count, [&](size_t i, size_t at, size_t count, size_t before) {
          std::byte* const packed = pack + before * elem;
          stretch.in.push_back({packed, buffers.inputs[i] + at * elem, count * elem});
          stretch.out.push_back({buffers.outputs[i] + at * elem, packed, count * elem});
        });
    if (stretch.in.size() > 1) continue;
    stretch.task.send = stretch.in[0].from;
    stretch.task.recv = stretch.out[0].to;
    stretch.in.clear();
    stretch.out.clear();
  }
  return stretches;
}

}  // namespace tutti
