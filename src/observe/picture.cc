#include "observe/picture.h"

#include <fmt/format.h>

namespace tutti::observe {
namespace {

std::string PhaseText(const CommunicatorSnapshot& one, int64_t now_ns) {
  const std::string since = Seconds(now_ns - one.phase_since_ns);
  switch (one.phase) {
    case Phase::kBeingMade:
      return fmt::format("being made for {}", since);
    case Phase::kInOperation:
      return fmt::format("in operation for {}", since);
    case Phase::kStopped:
      return fmt::format("stopped {} ago: {}", since, one.reason);
  }
  return "";
}

bool SameButForNumber(OpSignature a, const OpSignature& b) {
  a.sequence = b.sequence;
  return a == b;
}

}  // namespace

std::vector<std::string> PictureOf(const CommunicatorSnapshot& one, int64_t now_ns) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "{}, {} of {}, {}, {}", TitleOf(one.name, one.id), NameOf(one.rank, one.names), one.num_ranks,
      one.cuda_device < 0 ? "on the host" : fmt::format("on GPU {}", one.cuda_device),
      PhaseText(one, now_ns)));
  std::string doing =
      fmt::format("  {}; {} collectives begun, {} done; {} messages begun, {} done",
                  ActivityOf(one), one.begun, one.done(), one.messages_begun, one.messages_done());
  if (one.wait)
    doing += fmt::format("; waits for {} for {}", NameAll(one.wait->ranks, one.names),
                         Seconds(now_ns - one.wait->since_ns));
  else if (!one.step.empty())
    doing += fmt::format("; this for {}", Seconds(now_ns - one.step_since_ns));
  lines.push_back(std::move(doing));
  if (one.slow) lines.push_back("  " + Describe(*one.slow, one.names));
  for (size_t first = 0; first < one.recent.size();) {
    size_t end = first + 1;
    while (end < one.recent.size() && SameButForNumber(one.recent[first], one.recent[end])) ++end;
    const std::string which = end == first + 1
                                  ? fmt::format("number {}", one.recent[first].sequence)
                                  : fmt::format("numbers {} to {}", one.recent[first].sequence,
                                                one.recent[end - 1].sequence);
    lines.push_back(fmt::format("  {}: {}", which, one.recent[first].Describe()));
    first = end;
  }
  return lines;
}

}  // namespace tutti::observe
