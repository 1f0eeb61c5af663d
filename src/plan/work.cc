#include "plan/work.h"

namespace tutti {

std::string_view Name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "AllReduce";
    case Collective::kReduce:
      return "Reduce";
    case Collective::kBroadcast:
      return "Broadcast";
    case Collective::kAllGather:
      return "AllGather";
    case Collective::kReduceScatter:
      return "ReduceScatter";
    case Collective::kAlltoAll:
      return "AlltoAll";
    case Collective::kGather:
      return "Gather";
    case Collective::kScatter:
      return "Scatter";
    case Collective::kSendRecv:
      return "SendRecv";
    case Collective::kAllGatherV:
      return "AllGatherV";
    case Collective::kReduceScatterV:
      return "ReduceScatterV";
    case Collective::kAlltoAllV:
      return "AlltoAllV";
    case Collective::kBarrier:
      return "Barrier";
    case Collective::kGatherV:
      return "GatherV";
    case Collective::kScatterV:
      return "ScatterV";
  }
  return "";
}

std::string_view Name(Algorithm algorithm) {
  static constexpr std::string_view kNames[] = {
#define ALGORITHM(id, name) name,
#include "plan/algorithms.def"
  };
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
