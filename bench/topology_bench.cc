// Measures the cost of knowing a machine: search for channels on every machine of a folder, the
// joining of 100,000 ranks, the reading of a large file. One thread. Prints Markdown.
//
//   topology_bench [folder of machine files, default tests/data/topologies/machines] [repetitions,
//   default 21]

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "topology/between_hosts.h"
#include "topology/graph_builder.h"
#include "topology/machine_xml.h"
#include "topology/paths.h"
#include "topology/search.h"

namespace tutti::topology {
namespace {

constexpr uint32_t kHosts = 12'500;
constexpr size_t kLargeFileBytes = 10'000'000;

[[noreturn]] void Fail(const Status& status) {
  fmt::print(stderr, "topology_bench: {}\n", status.message());
  std::exit(1);
}

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) Fail(result.status());
  return std::move(result).value();
}

double TimeMs(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

double MedianMs(int repetitions, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) times.push_back(TimeMs(work));
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[static_cast<size_t>(repetitions) / 2];
}

std::string Cell(const Graph& graph, const Paths& paths, Demand demand, int repetitions) {
  if (demand.inter_host && graph.OfKind(NodeKind::kNet).empty()) return "–";
  const Channels found = Must(Search(graph, paths, demand));
  const double ms = MedianMs(repetitions, [&] { (void)Search(graph, paths, demand); });
  if (demand.inter_host && demand.pattern != Pattern::kRing) {
    return fmt::format("{}×{:.2f}/{:.2f} {}/{}, {:.1f} ms", found.channels.size(),
                       found.bandwidth_intra_gbps, found.bandwidth_inter_gbps,
                       Name(found.kind_intra), Name(found.kind_inter), ms);
  }
  return fmt::format("{}×{:.2f} {}{}{}, {:.1f} ms", found.channels.size(),
                     found.bandwidth_intra_gbps, Name(found.kind_intra),
                     demand.inter_host ? fmt::format("/{}", Name(found.kind_inter)) : "",
                     found.cross_nic == 0 ? "" : fmt::format(" X{}", found.cross_nic), ms);
}

void BenchSearch(const std::string& folder, int repetitions) {
  fmt::print(
      "| machine | paths | ring, one host | tree, one host | ring, more hosts | tree, more hosts "
      "|\n");
  fmt::print("|---|---|---|---|---|---|\n");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".xml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    const Graph graph = Must(BuildGraph(Must(ReadMachineFile(file)))).graph;
    const Paths paths = ComputePaths(graph, {});
    const double paths_ms = MedianMs(repetitions, [&] { (void)ComputePaths(graph, {}); });
    std::string line = fmt::format("| {} | {:.2f} ms |", file.stem().string(), paths_ms);
    for (const bool inter : {false, true}) {
      for (const Pattern pattern : {Pattern::kRing, Pattern::kTree}) {
        Demand demand;
        demand.pattern = pattern;
        demand.inter_host = inter;
        line += " " + Cell(graph, paths, demand, repetitions) + " |";
      }
    }
    fmt::print("{}\n", line);
  }
}

void Shift(ChannelOffer* offer, int32_t by) {
  for (int32_t& rank : offer->ranks) rank += by;
}

// Each host's paths are computed, as its ranks do; channels are searched for once, since on
// the real thing each host searches for its own.
void BenchScale(const std::string& folder) {
  const Graph graph = Must(BuildGraph(Must(ReadMachineFile(folder + "/dgx-h100.xml")))).graph;
  double paths_ms = 0;
  for (uint32_t host = 0; host < kHosts; ++host) {
    paths_ms += TimeMs([&] { (void)ComputePaths(graph, {}); });
  }
  const Paths paths = ComputePaths(graph, {});
  Demand demand;
  demand.inter_host = true;
  const Channels ring = Must(Search(graph, paths, demand));
  demand.pattern = Pattern::kTree;
  const Channels tree = Must(Search(graph, paths, demand));
  const HostOffer first = Must(MakeOffer(graph, ring, tree));
  std::vector<HostOffer> offers(kHosts, first);
  for (uint32_t host = 0; host < kHosts; ++host) {
    Shift(&offers[host].ring, static_cast<int32_t>(host * first.rank_count));
    Shift(&offers[host].tree, static_cast<int32_t>(host * first.rank_count));
  }
  JobChannels job;
  const double join_ms = TimeMs([&] { job = Must(JoinHosts(offers)); });
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print(
      "\n{} ranks, {} hosts: paths of all hosts {:.0f} ms, {} rings and {} trees {:.0f} ms; "
      "{:.0f} MB at most in this process\n",
      job.rank_count, kHosts, paths_ms, job.ring_channels, job.tree_channels, join_ms,
      static_cast<double>(usage.ru_maxrss) / 1024);
}

// A domain of NVLink with a file of 10 MB.
void BenchParse(const std::string& folder, int repetitions) {
  const Machine domain = Must(ReadMachineFile(folder + "/gb200-nvl72.xml"));
  Machine large;
  std::string text;
  while (text.size() < kLargeFileBytes) {
    const size_t copies =
        text.empty()
            ? 1
            : kLargeFileBytes / (text.size() / (large.cpus.size() / domain.cpus.size())) + 1;
    large.cpus.clear();
    for (size_t copy = 0; copy < copies; ++copy) {
      for (CpuFact cpu : domain.cpus) {
        cpu.host_hash = cpu.host_hash.value_or(0) + copy * 1000;
        for (PciFact& pci : cpu.pci) {
          for (GpuFact& gpu : pci.gpus) gpu.rank += static_cast<int>(copy * 72);
        }
        large.cpus.push_back(std::move(cpu));
      }
    }
    text = FormatMachineXml(large);
  }
  const double ms = MedianMs(repetitions, [&] { (void)Must(ParseMachineXml(text, "large")); });
  fmt::print("\nA file of {:.1f} MB with {} processors: read in {:.0f} ms\n",
             static_cast<double>(text.size()) / 1e6, large.cpus.size(), ms);
}

}  // namespace
}  // namespace tutti::topology

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "tests/data/topologies/machines";
  const int repetitions = std::max(1, argc > 2 ? std::atoi(argv[2]) : 21);
  tutti::topology::BenchScale(folder);
  tutti::topology::BenchParse(folder, repetitions);
  fmt::print("\n");
  tutti::topology::BenchSearch(folder, repetitions);
  return 0;
}
