// How the executor explains what it would do: the plan of one collective, in words.

#include <fmt/format.h>

#include "comm/executor.h"
#include "kernels/counting.h"
#include "kernels/ring.h"

namespace tutti {
namespace {

std::string Size(double bytes) {
  if (bytes >= 1 << 20) return fmt::format("{:g} MB", bytes / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:g} KB", bytes / (1 << 10));
  return fmt::format("{:g} B", bytes);
}

std::string ProxyLine(const char* verb, int peer, const kernels::Traffic& traffic,
                      size_t elem_bytes) {
  const double bytes = static_cast<double>(traffic.elems * elem_bytes);
  return fmt::format("  connection {} rank {}: {} {} of {} in {} chunks\n",
                     verb[0] == 's' ? "to" : "from", peer, traffic.steps,
                     traffic.steps == 1 ? std::string(verb) : fmt::format("{}s", verb),
                     Size(bytes / static_cast<double>(traffic.steps)), traffic.chunks);
}

}  // namespace

double Executor::PredictUs(const Task& task) const {
  if (num_ranks_ == 1 || task.count == 0) return 0;
  return Choose(plan_, task.collective, task.count, task.elem_bytes()).time_us;
}

std::string Executor::Describe(const Task& task) const {
  const size_t elem = task.elem_bytes();
  if (num_ranks_ == 1) return "one rank: a copy in memory\n";
  const Choice choice = Choose(plan_, task.collective, task.count, elem);
  std::string text = fmt::format("{} of {} elements of {}: {} {}, predicted {:.1f} us\n",
                                 Name(task.collective), task.count, tutti::Name(task.type),
                                 Name(choice.algorithm), Name(choice.protocol), choice.time_us);
  text += fmt::format("channel 0: chunks of {}, slices of {}\n",
                      Size(static_cast<double>(choice.chunk_elems * elem)),
                      Size(static_cast<double>(choice.slice_elems * elem)));
  if (choice.algorithm != Algorithm::kRing) return text;

  const RingView ring = {ring_index_, num_ranks_, ring_.data()};
  const WorkShape shape = {task.count, choice.chunk_elems, task.root};
  kernels::CountingPrimitives count(choice.slice_elems);
  const kernels::EqualParts parts{task.count};
  switch (task.collective) {
    case Collective::kAllReduce:
      kernels::RingAllReduce(count, ring, shape);
      break;
    case Collective::kReduce:
      kernels::ChainReduce(count, ring, shape);
      break;
    case Collective::kBroadcast:
      kernels::ChainBroadcast(count, ring, shape, true);
      break;
    case Collective::kAllGather:
      kernels::RingAllGather(count, ring, parts, shape);
      break;
    default:
      kernels::RingReduceScatter(count, ring, parts, shape);
      break;
  }
  std::string order;
  for (const int r : ring_) order += fmt::format("{} ", r);
  text += fmt::format("  ring {}\n", order);
  const int next = ring.At(ring_index_ + 1);
  const int prev = ring.At(ring_index_ - 1);
  if (count.sent().steps > 0) text += ProxyLine("send", next, count.sent(), elem);
  if (count.received().steps > 0) text += ProxyLine("receive", prev, count.received(), elem);
  return text;
}

}  // namespace tutti
