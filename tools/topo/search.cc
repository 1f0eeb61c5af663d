// `tutti topo search` prints the rings and trees of a machine, and how they are joined over many
// such hosts.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/settings.h"
#include "topo/in_network.h"
#include "topo/study.h"
#include "topology/between_hosts.h"
#include "topology/known_channels.h"

namespace tutti::tools::topo {
namespace {

using Json = nlohmann::ordered_json;
using topology::Channel;
using topology::Channels;
using topology::Graph;
using topology::NodeIndex;

struct Answer {
  topology::HostChannels channels;
  double ring_ms = 0;
  double tree_ms = 0;
};

Result<Channels> Timed(const Settings& settings, const Study& study, topology::Pattern pattern,
                       bool inter_host, double* milliseconds) {
  const auto begin = std::chrono::steady_clock::now();
  auto found = topology::FindPattern(settings, study.graph, study.paths, pattern, inter_host);
  const auto end = std::chrono::steady_clock::now();
  *milliseconds = std::chrono::duration<double, std::milli>(end - begin).count();
  return found;
}

Result<Answer> Find(const Study& study, bool inter_host) {
  TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
  Answer answer;
  topology::HostChannels& channels = answer.channels;
  TUTTI_ASSIGN(channels.ring,
               Timed(settings, study, topology::Pattern::kRing, inter_host, &answer.ring_ms));
  TUTTI_ASSIGN(channels.tree, Timed(settings, study, topology::Pattern::kBalancedTree, inter_host,
                                    &answer.tree_ms));
  TUTTI_TRY(topology::DumpChannels(settings, study.graph, channels,
                                   static_cast<int>(settings.graph_dump_file_rank)));
  return answer;
}

// Names devices by rank, which is unique where several hosts are in one machine.
int NameOf(const Graph& graph, NodeIndex device) {
  const topology::Node& node = graph.node(device);
  return node.rank >= 0 ? node.rank : node.device;
}

Json ToJson(const Graph& graph, const Channels& found, double search_ms) {
  Json orders = Json::array();
  Json nets = Json::array();
  for (const Channel& channel : found.channels) {
    Json order = Json::array();
    for (const NodeIndex device : channel.devices) order.push_back(NameOf(graph, device));
    orders.push_back(std::move(order));
    if (!found.inter_host) continue;
    nets.push_back({graph.node(channel.net_in).name, graph.node(channel.net_out).name});
  }
  Json object = {{"pattern", Name(found.pattern)},
                 {"channels", found.channels.size()},
                 {"bandwidth_intra", found.bandwidth_intra_gbps},
                 {"bandwidth_inter", found.bandwidth_inter_gbps},
                 {"type_intra", Name(found.kind_intra)},
                 {"type_inter", Name(found.kind_inter)},
                 {"same_channels", found.same_channels},
                 {"cross_nic", found.cross_nic},
                 {"orders", std::move(orders)},
                 {"search_ms", search_ms}};
  if (found.inter_host) object["nets"] = std::move(nets);
  return object;
}

// Returns the shapes in which switches would reduce, null where a machine has none.
Json ToJson(const Graph& graph, const Result<Stars>& found, bool inter_host) {
  if (!found.ok()) return nullptr;
  Json heads = Json::array();
  Json nets = Json::array();
  for (const Head& head : found->heads) {
    heads.push_back(NameOf(graph, head.device));
    if (inter_host) nets.push_back(graph.node(head.net).name);
  }
  Json object = {{"channels", found->heads.size()},
                 {"bandwidth", found->bandwidth_gbps},
                 {"type_intra", Name(found->kind_intra)},
                 {"type_inter", Name(found->kind_inter)},
                 {"heads", std::move(heads)}};
  if (inter_host) object["nets"] = std::move(nets);
  return object;
}

void PrintStars(const Graph& graph, const char* where, const Result<Stars>& found,
                bool inter_host) {
  if (!found.ok()) return;
  fmt::print("could the {} reduce: {} heads of {:.4g} GB/s of the vector ({:.4g} in all), {}",
             where, found->heads.size(), found->bandwidth_gbps, found->TotalGbps(),
             Name(found->kind_intra));
  if (inter_host) fmt::print(", {} to the network", Name(found->kind_inter));
  fmt::print(":");
  for (const Head& head : found->heads) {
    fmt::print(" {}{}", NameOf(graph, head.device),
               inter_host ? fmt::format(" ({})", graph.node(head.net).name) : "");
  }
  fmt::print("\n");
}

std::string ChannelText(const Graph& graph, const Channels& found, const Channel& channel) {
  std::string text;
  if (channel.net_in != topology::kNoIndex) text += graph.node(channel.net_in).name + " → ";
  for (size_t i = 0; i < channel.devices.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : " → ", NameOf(graph, channel.devices[i]));
  }
  const bool is_ring = found.pattern == topology::Pattern::kRing;
  if (is_ring && found.inter_host) text += " → " + graph.node(channel.net_out).name;
  if (is_ring && !found.inter_host) text += fmt::format(" → {}", NameOf(graph, channel.devices[0]));
  return text;
}

void PrintChannels(const Graph& graph, const Channels& found) {
  const bool is_ring = found.pattern == topology::Pattern::kRing;
  fmt::print("{} {}{} of {:.4g} GB/s ({:.4g} in all) over paths of kind {}", found.channels.size(),
             Name(found.pattern), found.channels.size() == 1 ? "" : "s",
             found.inter_host ? found.bandwidth_inter_gbps : found.bandwidth_intra_gbps,
             found.TotalGbps(), Name(found.kind_intra));
  if (found.inter_host) {
    fmt::print(", {} to the network", Name(found.kind_inter));
    if (!is_ring) fmt::print("; {:.4g} GB/s inside the host", found.bandwidth_intra_gbps);
    if (found.cross_nic == 2) fmt::print("; out by another NIC than in, in pairs");
    if (found.cross_nic == 1) fmt::print("; out by another NIC than in");
  }
  fmt::print("\n");
  for (size_t i = 0; i < found.channels.size();) {
    size_t same = i + 1;
    while (same < found.channels.size() && found.channels[same] == found.channels[i]) ++same;
    const std::string numbers =
        same == i + 1 ? fmt::format("{}", i) : fmt::format("{}–{}", i, same - 1);
    fmt::print("  {:<6} {}\n", numbers, ChannelText(graph, found, found.channels[i]));
    i = same;
  }
}

Status PrintJoined(const Study& study, const Answer& answer, int hosts) {
  TUTTI_ASSIGN(const topology::HostOffer first,
               topology::MakeOffer(study.graph, answer.channels.ring, answer.channels.tree));
  std::vector<topology::HostOffer> offers(static_cast<size_t>(hosts), first);
  for (size_t host = 0; host < offers.size(); ++host) {
    const int32_t shift = static_cast<int32_t>(host * first.rank_count);
    for (topology::ChannelOffer* one : {&offers[host].ring, &offers[host].tree}) {
      for (int32_t& rank : one->ranks) rank += shift;
    }
  }
  TUTTI_ASSIGN(const topology::JobChannels job, topology::JoinHosts(offers));
  fmt::print("\n{} such hosts, {} ranks: {} rings, {} trees. Joints after the first host:\n", hosts,
             job.rank_count, job.ring_channels, job.tree_channels);
  const auto on_first = [&](int32_t rank) {
    return static_cast<uint32_t>(rank) < first.rank_count;
  };
  for (uint32_t channel = 0; channel < job.ring_channels; ++channel) {
    for (uint32_t rank = 0; rank < first.rank_count; ++rank) {
      const int32_t next = job.RingNext(channel, rank);
      if (on_first(next)) continue;
      const int32_t host = next / static_cast<int32_t>(first.rank_count);
      fmt::print("  ring {:<3} rank {} → rank {} on host {}\n", channel, rank, next, host);
    }
  }
  return Status::Ok();
}

int RunSearch(const Source& source, bool json) {
  const Result<Study> study = LoadPart("search", source);
  if (!study.ok()) return Fail("search", study.status());
  const Result<Answer> answer = Find(*study, source.hosts > 1);
  if (!answer.ok()) return Fail("search", answer.status());
  const bool inter = source.hosts > 1;
  const auto stars = [&](Reducer reducer) {
    return FindStars(study->graph, study->paths, reducer, inter);
  };
  const auto nvls = stars(Reducer::kNvSwitch);
  const auto collnet = stars(Reducer::kNetworkSwitch);
  if (json) {
    const Json object = {{"hosts", source.hosts},
                         {"ring", ToJson(study->graph, answer->channels.ring, answer->ring_ms)},
                         {"tree", ToJson(study->graph, answer->channels.tree, answer->tree_ms)},
                         {"nvls", ToJson(study->graph, nvls, inter)},
                         {"collnet", ToJson(study->graph, collnet, inter)}};
    fmt::print("{}\n", object.dump());
    return 0;
  }
  PrintChannels(study->graph, answer->channels.ring);
  PrintChannels(study->graph, answer->channels.tree);
  fmt::print("found in {:.1f} and {:.1f} ms\n", answer->ring_ms, answer->tree_ms);
  PrintStars(study->graph, "NVSwitch", nvls, inter);
  PrintStars(study->graph, "network's switches", collnet, inter);
  if (source.hosts > 1) {
    const Status status = PrintJoined(*study, *answer, source.hosts);
    if (!status.ok()) return Fail("search", status);
  }
  return 0;
}

}  // namespace

Subcommand AddSearch(CLI::App& topo) {
  auto source = std::make_shared<Source>();
  auto json = std::make_shared<bool>(false);
  CLI::App* const app = topo.add_subcommand(
      "search", "Find the rings and trees that use the most of the machine's bandwidth");
  AddSource(*app, source.get());
  app->add_flag("--json", *json, "print ring and tree as JSON, bandwidths in GB/s per channel");
  return {app, [source, json] { return RunSearch(*source, *json); }};
}

}  // namespace tutti::tools::topo
