#include "topology/known_channels.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "topology/graph_xml.h"
#include "topology/machine_xml.h"
#include "topology/search.h"

namespace tutti::topology {
namespace {

// Returns the file's channels of a ring, or of a tree; nothing when the file has none.
Result<std::optional<Channels>> TakeFromFile(const std::string& path, const Graph& graph,
                                             bool want_ring, bool inter_host) {
  TUTTI_ASSIGN(const std::string text, ReadXmlText(path));
  TUTTI_ASSIGN(std::vector<Channels> found, ParseGraphXml(text, path, graph));
  for (Channels& one : found) {
    if ((one.pattern == Pattern::kRing) != want_ring) continue;
    if (inter_host && !one.inter_host) {
      return InvalidUsage("{}: the {} has no <net>, but the job has other hosts", path,
                          Name(one.pattern));
    }
    if (!inter_host) {
      one.inter_host = false;
      for (Channel& channel : one.channels) channel.net_in = channel.net_out = kNoIndex;
    }
    return std::optional(std::move(one));
  }
  return std::optional<Channels>();
}

}  // namespace

Result<Channels> FindPattern(const Settings& settings, const Graph& graph, const Paths& paths,
                             Pattern pattern, bool inter_host) {
  if (!settings.graph_file.empty()) {
    Result<std::optional<Channels>> file =
        TakeFromFile(settings.graph_file, graph, pattern == Pattern::kRing, inter_host);
    if (!file.ok()) return std::move(file).status().Annotate("NCCL_GRAPH_FILE");
    if (file.value()) {
      const Status good = CheckChannels(graph, paths, graph.Devices(), *file.value());
      if (!good.ok()) TUTTI_WARN("NCCL_GRAPH_FILE asks for much: {}", good.message());
      return *std::move(file).value();
    }
  }
  Demand demand;
  demand.pattern = pattern;
  demand.inter_host = inter_host;
  demand.cross_nic = static_cast<CrossNic>(settings.cross_nic);
  if (settings.max_nchannels > 0)
    demand.max_channels = static_cast<uint32_t>(settings.max_nchannels);
  if (settings.min_nchannels > 0) {
    // As in NCCL, a minimum above the maximum yields the maximum.
    demand.min_channels = static_cast<uint32_t>(settings.min_nchannels);
    if (settings.max_nchannels == 0)
      demand.max_channels = std::max(demand.max_channels, demand.min_channels);
    demand.min_channels = std::min(demand.min_channels, demand.max_channels);
  }
  return Search(graph, paths, demand);
}

Status DumpChannels(const Settings& settings, const Graph& graph, const HostChannels& channels,
                    int rank) {
  if (settings.graph_dump_file.empty() || settings.graph_dump_file_rank != rank) {
    return Status::Ok();
  }
  const Channels both[] = {channels.ring, channels.tree};
  return WriteXmlText(FormatGraphXml(graph, both), settings.graph_dump_file)
      .Annotate("NCCL_GRAPH_DUMP_FILE");
}

}  // namespace tutti::topology
