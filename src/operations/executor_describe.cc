// Here the executor explains what it would do: the plan of one collective, in words.

#include <fmt/format.h>

#include "kernels/counting.h"
#include "operations/executor.h"
#include "operations/executor_parts.h"

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
  if (num_ranks_ == 1 || task.bytes() == 0) return 0;
  return Choose(plan_, task.collective, task.bytes() / task.elem_bytes(), task.elem_bytes(),
                OrderFor(task), CertainReading(task), adviser_)
      .time_us;
}

std::string Executor::Describe(const Task& task) const {
  const size_t elem = task.elem_bytes();
  if (num_ranks_ == 1) return "one rank: a copy in memory\n";
  const Choice choice =
      Choose(plan_, task.collective, task.count, elem, OrderFor(task), Reading::kNone, adviser_);
  std::string text = fmt::format("{} of {} elements of {}: {} {}, predicted {:.1f} us\n",
                                 Name(task.collective), task.count, tutti::Name(task.type),
                                 Name(choice.algorithm), Name(choice.protocol), choice.time_us);
  const auto pulls = [&](Reading reading) {
    return Choose(plan_, task.collective, task.count, elem, OrderFor(task), reading, adviser_)
               .algorithm == Algorithm::kPull;
  };
  if (pulls(CertainReading(task)))
    text += "  buffers are read where they lie instead: mapped, or copied by the kernel\n";
  else if (pulls(ReadingOf(task)))
    text += "  buffers from ncclMemAlloc are read where they lie instead\n";
  text += fmt::format("channel 0: chunks of {}, slices of {}\n",
                      Size(static_cast<double>(choice.chunk_elems * elem)),
                      Size(static_cast<double>(choice.slice_elems * elem)));
  if (choice.algorithm == Algorithm::kRing || choice.algorithm == Algorithm::kTree)
    text += fmt::format("  {} {}\n", choice.algorithm == Algorithm::kRing ? "ring" : "trees over",
                        fmt::join(ring_, " "));
  if (stages_ != nullptr &&
      (choice.algorithm == Algorithm::kOneShot || choice.algorithm == Algorithm::kTwoShot)) {
    const auto size = [&](uint64_t elems) { return Size(static_cast<double>(elems * elem)); };
    kernels::StageCounting count(rank_, num_ranks_);
    WalkStaged(count, task, choice.algorithm, {task.count, choice.chunk_elems, task.root});
    text += fmt::format("  stages: {} laid out, {} of the other ranks read, {} reduced, in {}\n",
                        size(count.staged()), size(count.read()), size(count.reduced()),
                        Times("round", count.rounds()));
  }
  for (const ConnectionTraffic& one : TrafficOf(task, choice)) {
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
