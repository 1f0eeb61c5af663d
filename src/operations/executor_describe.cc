// Describes in words the plan of a collective, without running the collective.

#include <fmt/format.h>

#include "kernels/counting.h"
#include "operations/executor.h"

namespace tutti {
namespace {

std::string Size(double bytes) {
  if (bytes >= 1 << 20) return fmt::format("{:g} MB", bytes / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:g} KB", bytes / (1 << 10));
  return fmt::format("{:g} B", bytes);
}

std::string Times(const char* verb, uint64_t steps) {
  return fmt::format("{} {}{}", steps, verb, steps == 1 ? "" : "s");
}

}  // namespace

double Executor::PredictUs(const Task& task) const {
  const auto* const collective = std::get_if<CollectiveTask>(&task);
  return planner_.PredictUs(task,
                            collective != nullptr ? CertainBuffers(*collective) : Buffers::kOwn);
}

std::string Executor::Describe(const CollectiveTask& task) const {
  const size_t elem = task.elem_bytes();
  if (num_ranks_ == 1) return "one rank: a copy in memory\n";
  const Plan plan = planner_.Make(task);
  std::string text = fmt::format("{} of {} elements of {}: {} {}, predicted {:.1f} us\n",
                                 Name(task.collective), task.count, tutti::Name(task.type),
                                 Name(plan.algorithm()), Name(plan.protocol), plan.us);
  const auto pulls = [&](Buffers buffers) {
    return planner_.Make(task, buffers).algorithm() == Algorithm::kPull;
  };
  if (pulls(CertainBuffers(task)))
    text += "  buffers are read where they lie instead: mapped, or copied by the kernel\n";
  else if (pulls(BuffersOf(task)))
    text += "  buffers from ncclMemAlloc are read where they lie instead\n";
  text += fmt::format("channel 0: chunks of {}, slices of {}\n",
                      Size(static_cast<double>(plan.chunk_elems * elem)),
                      Size(static_cast<double>(plan.slice_elems * elem)));
  if (plan.algorithm() == Algorithm::kRing || plan.algorithm() == Algorithm::kTree)
    text += fmt::format("  {} {}\n", plan.algorithm() == Algorithm::kRing ? "ring" : "trees over",
                        fmt::join(ring_, " "));
  if (plan.row->where == Where::kStage) {
    const auto size = [&](uint64_t elems) { return Size(static_cast<double>(elems * elem)); };
    const kernels::StageCounting count = CountStages(task, plan);
    text += fmt::format("  stages: {} laid out, {} of the other ranks read, {} reduced, in {}\n",
                        size(count.staged()), size(count.read()), size(count.reduced()),
                        Times("round", count.rounds()));
  }
  for (const ConnectionTraffic& one : TrafficOf(task, plan)) {
    const auto& [steps, chunks, elems] = one.traffic;
    if (steps == 0) continue;
    text += fmt::format("  connection {} rank {}: {} of {} in {}\n", one.is_send ? "to" : "from",
                        one.peer, Times(one.is_send ? "send" : "receive", steps),
                        Size(static_cast<double>(elems * elem) / static_cast<double>(steps)),
                        Times("chunk", chunks));
  }
  return text;
}

}  // namespace tutti
