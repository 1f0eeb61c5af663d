#include "plan/work.h"

#include <array>

namespace tutti {

std::string_view Name(Collective collective) {
  static constexpr std::array<std::string_view, 13> kNames = {
      "AllReduce",      "Reduce",    "Broadcast", "AllGather", "ReduceScatter",
      "AlltoAll",       "Gather",    "Scatter",   "SendRecv",  "AllGatherV",
      "ReduceScatterV", "AlltoAllV", "Barrier"};
  return kNames[static_cast<size_t>(collective)];
}

std::string_view Name(Algorithm algorithm) {
  static constexpr std::array<std::string_view, kNumAlgorithms> kNames = {
      "Ring", "Tree", "RecursiveDoubling", "OneShot", "TwoShot", "Pull", "Exchange"};
  return kNames[static_cast<size_t>(algorithm)];
}

std::string_view Name(Protocol protocol) {
  switch (protocol) {
    case Protocol::kSimple:
      return "Simple";
    case Protocol::kLL:
      return "LL";
    case Protocol::kLL128:
      return "LL128";
  }
  return "";
}

}  // namespace tutti
