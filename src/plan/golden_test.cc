// Compares what the planner chooses with testdata/golden.txt: every collective × sizes × worlds. A
// change of a line is a change of how users' operations run, and its commit has to say which
// measurement asks for it. WRITE_DOCS=1 writes the file anew.
//
// A line of the file has a world, a collective and its plans by size: "<=BYTES algorithm protocol
// …", each for all sizes up to BYTES, and then the numbers of the plan.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/channel_plan.h"
#include "plan/choose.h"
#include "plan/mesh.h"
#include "plan/task.h"

namespace tutti {
namespace {

constexpr size_t kSmallest = 64;
constexpr size_t kLargest = size_t{1} << 30;

// A communicator. `plan` returns in words how it runs a collective of `count` elements.
struct World {
  std::string name;
  DataType type = DataType::kFloat32;
  std::vector<Collective> collectives;
  std::function<std::string(Collective collective, size_t count)> plan;
};

bool IsReduction(Collective collective) {
  Task task;
  task.collective = collective;
  return task.is_reduction();
}

ReductionOrder OrderOfSums(bool deterministic, Collective collective, DataType type) {
  return deterministic && IsReduction(collective) ? OrderOf(type, ReduceKind::kSum)
                                                  : ReductionOrder::kAny;
}

// What a variant of a world changes.
struct Variant {
  std::string name = "plain";
  DataType type = DataType::kFloat32;
  bool deterministic = false;
  std::string algo = {}, proto = {};
};

const std::vector<Variant> kOrders = {
    {},
    {.name = "float32 in rank order", .deterministic = true},
    {.name = "bfloat16 in rank order", .type = DataType::kBfloat16, .deterministic = true}};

std::vector<Variant> WithLists(std::initializer_list<const char*> algos,
                               std::initializer_list<const char*> protos) {
  std::vector<Variant> all = kOrders;
  for (const char* const algo : algos)
    all.push_back({.name = fmt::format("NCCL_ALGO={}", algo), .algo = algo});
  for (const char* const proto : protos)
    all.push_back({.name = fmt::format("NCCL_PROTO={}", proto), .proto = proto});
  return all;
}

// ---- Hosts

const std::vector<Collective> kHostCollectives = {
    Collective::kAllReduce,      Collective::kReduce,        Collective::kBroadcast,
    Collective::kAllGather,      Collective::kReduceScatter, Collective::kAlltoAll,
    Collective::kGather,         Collective::kScatter,       Collective::kAllGatherV,
    Collective::kReduceScatterV, Collective::kBarrier};

World HostWorld(PlanContext context, const Variant& variant, Reading reading = Reading::kNone) {
  context.deterministic = variant.deterministic;
  EXPECT_TRUE(ApplyAlgorithmList(variant.algo, context).ok()) << variant.algo;
  EXPECT_TRUE(ApplyProtocolList(variant.proto, context).ok()) << variant.proto;
  const DataType type = variant.type;
  return {fmt::format("hosts: {} ranks on {}, {}", context.num_ranks, context.hosts.count,
                      variant.name),
          type, kHostCollectives, [=](Collective collective, size_t count) {
            const Choice choice =
                Choose(context, collective, count, SizeOf(type),
                       OrderOfSums(context.deterministic, collective, type), reading);
            return fmt::format("{} {} {}/{}{}", Name(choice.algorithm), Name(choice.protocol),
                               choice.chunk_elems, choice.slice_elems,
                               choice.owners > 1 ? fmt::format(" {} owners", choice.owners) : "");
          }};
}

PlanContext HostContext(int num_ranks, int num_hosts) {
  PlanContext context;
  context.num_ranks = num_ranks;
  context.one_host = num_hosts == 1;
  context.stage_bytes = num_hosts == 1 ? 128 << 10 : 0;
  context.slot_bytes = num_hosts == 1 ? 64 << 10 : 512 << 10;
  std::vector<int> leaders;
  for (int r = 0; r < num_ranks; ++r) {
    const int host = r * num_hosts / num_ranks;
    leaders.push_back((host * num_ranks + num_hosts - 1) / num_hosts);
  }
  context.hosts = HostLayoutOf(leaders);
  return context;
}

void AddHosts(int num_ranks, int num_hosts, std::vector<World>& worlds) {
  const PlanContext plain = HostContext(num_ranks, num_hosts);
  const auto lists =
      num_hosts == 1
          ? WithLists({"ring", "tree", "twoshot", "^oneshot,pull"}, {"LL", "Simple"})
          : WithLists({"ring", "tree", "oneshot,twoshot", "^twolevel"}, {"LL", "Simple"});
  for (const Variant& variant : lists) worlds.push_back(HostWorld(plain, variant));
  PlanContext busy = plain;
  busy.oversubscribed = true;
  worlds.push_back(HostWorld(busy, {.name = "sharing cores"}));
  if (num_hosts == 1) {
    worlds.push_back(HostWorld(plain, {.name = "mapped buffers"}, Reading::kMapped));
    worlds.push_back(HostWorld(plain, {.name = "perhaps mapped"}, Reading::kPerhapsMapped));
    worlds.push_back(HostWorld(plain, {.name = "copied by the kernel"}, Reading::kCopied));
    worlds.push_back(
        HostWorld(plain, {.name = "mapped, NCCL_ALGO=pull", .algo = "pull"}, Reading::kMapped));
    return;
  }
  PlanContext known = plain;
  known.network_gbps = 12.5;
  known.ranks_per_nic = plain.hosts.most;
  worlds.push_back(HostWorld(known, {.name = "12.5 GB/s"}));
  PlanContext far = plain;
  far.network_us = 1024;
  worlds.push_back(HostWorld(far, {.name = "far"}));
}

// ---- GPUs that reach one another's memory

const std::vector<Collective> kMeshCollectives = {
    Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
    Collective::kAllGather, Collective::kReduceScatter, Collective::kAlltoAll,
    Collective::kGather,    Collective::kScatter};

World MeshWorld(MeshContext context, const std::string& reach, const Variant& variant,
                Buffers buffers = Buffers::kOwn) {
  context.deterministic = variant.deterministic;
  EXPECT_TRUE(ApplyMeshAlgorithms(variant.algo, context).ok()) << variant.algo;
  EXPECT_TRUE(ApplyMeshProtocols(variant.proto, context).ok()) << variant.proto;
  const DataType type = variant.type;
  return {fmt::format("GPUs: {} by {}, {}", context.num_ranks, reach, variant.name), type,
          kMeshCollectives, [=](Collective collective, size_t count) {
            const size_t elem = IsReduction(collective) ? SizeOf(type) : 1;
            const MeshChoice choice =
                ChooseMesh(context, collective, count * SizeOf(type) / elem, elem, buffers,
                           OrderOfSums(context.deterministic, collective, type));
            const bool messages = choice.algorithm == MeshAlgorithm::kMessages;
            return messages ? std::string("messages")
                            : fmt::format("{} {} {}x{}{}/{}/{}", Name(choice.algorithm),
                                          Name(choice.protocol), choice.blocks, choice.threads,
                                          choice.early ? " early " : " ", choice.block_elems,
                                          choice.chunk_elems);
          }};
}

void AddMeshes(int num_ranks, std::vector<World>& worlds) {
  const MeshContext nvlink = MeshContextFor(num_ranks, 132, GpuReach::kNvlink);
  const auto add = [&](const MeshContext& context, const Variant& variant,
                       Buffers buffers = Buffers::kOwn) {
    worlds.push_back(MeshWorld(context, "NVLink", variant, buffers));
  };
  for (const Variant& variant :
       WithLists({"ring", "oneshot", "twoshot", "exchange", "symmetric", "^ring,oneshot"},
                 {"LL", "LL128", "Simple", "^LL128"}))
    add(nvlink, variant);
  add(nvlink, {.name = "registered buffers"}, Buffers::kShared);
  add(nvlink, {.name = "registered, float32 in rank order", .deterministic = true},
      Buffers::kShared);
  add(nvlink, {.name = "registered, NCCL_ALGO=symmetric", .algo = "symmetric"}, Buffers::kShared);
  MeshContext few = nvlink;
  few.max_blocks = 4;
  add(few, {.name = "4 blocks"});
  MeshContext many = nvlink;
  many.min_blocks = 32;
  add(many, {.name = "32 blocks at least"});
  MeshContext slow = nvlink;
  slow.link_bytes_per_us = 100e3;
  add(slow, {.name = "links of 100 GB/s"});
  worlds.push_back(
      MeshWorld(MeshContextFor(num_ranks, 132, GpuReach::kHostMemory), "host memory", {}));
  worlds.push_back(
      MeshWorld(MeshContextFor(num_ranks, 8, GpuReach::kNvlink), "NVLink, 8 multiprocessors", {}));
}

// ---- GPUs that channels join

const std::vector<Collective> kChannelCollectives = {Collective::kAllReduce, Collective::kReduce,
                                                     Collective::kBroadcast, Collective::kAllGather,
                                                     Collective::kReduceScatter};

World ChannelWorld(ChannelContext context, const Variant& variant) {
  EXPECT_TRUE(ApplyChannelAlgorithms(variant.algo, context).ok()) << variant.algo;
  const DataType type = variant.type;
  const bool deterministic = variant.deterministic;
  return {fmt::format("channels: {} GPUs on {}, {}", context.num_ranks, context.num_hosts,
                      variant.name),
          type, kChannelCollectives, [=](Collective collective, size_t count) {
            const DataType moved = IsReduction(collective) ? type : DataType::kUint8;
            const ChannelPlan plan =
                PlanChannels(context, collective, count * SizeOf(type) / SizeOf(moved), moved,
                             OrderOfSums(deterministic, collective, type));
            return plan.algorithm == Algorithm::kExchange
                       ? std::string("messages")
                       : fmt::format("{}{} {}/{}/{}/{}", Name(plan.algorithm),
                                     plan.in_rank_order ? " in rank order" : "", plan.channels,
                                     plan.channel_elems, plan.chunk_elems, plan.slice_elems);
          }};
}

void AddChannels(int num_ranks, int num_hosts, std::vector<World>& worlds) {
  ChannelContext plain;
  plain.num_ranks = num_ranks;
  plain.num_hosts = num_hosts;
  plain.channels = 8;
  plain.slot_bytes = 512 << 10;
  plain.pair_slot_bytes = 128 << 10;
  plain.most_local_ranks = (num_ranks + num_hosts - 1) / num_hosts;
  plain.local_ranks = num_ranks % num_hosts == 0 ? num_ranks / num_hosts : 0;
  plain.trees = num_hosts > 1 ? 4 : 0;
  plain.tree_slot_bytes = 64 << 10;
  for (const Variant& variant :
       WithLists({"ring", "tree", "twolevel", "oneshot", "exchange", "ring,tree"}, {}))
    worlds.push_back(ChannelWorld(plain, variant));
  ChannelContext narrow = plain;
  narrow.channels = 1;
  narrow.trees = 0;
  narrow.pair_slot_bytes = 0;
  worlds.push_back(ChannelWorld(narrow, {.name = "one channel, no pairs"}));
  ChannelContext known = plain;
  known.network_bytes_per_us = 12.5e3;
  worlds.push_back(ChannelWorld(known, {.name = "12.5 GB/s"}));
}

std::vector<World> Worlds() {
  std::vector<World> worlds;
  for (const int num_ranks : {2, 3, 4, 8, 16, 32, 64})
    for (const int num_hosts : {1, 2, 4, 8}) {
      if (num_hosts > num_ranks) continue;
      AddHosts(num_ranks, num_hosts, worlds);
      AddChannels(num_ranks, num_hosts, worlds);
    }
  for (const int num_ranks : {2, 3, 4, 8, 16}) AddMeshes(num_ranks, worlds);
  return worlds;
}

// Returns a collective's plans from the smallest size to the largest one.
std::string PlansOf(const World& world, Collective collective) {
  std::string line, last;
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    const std::string plan = world.plan(collective, bytes / SizeOf(world.type));
    if (!last.empty() && plan != last) line += fmt::format(" <={} {};", bytes / 2, last);
    last = plan;
    if (collective == Collective::kBarrier) break;
  }
  return line + " " + last;
}

// Returns the lines of the file. A world that plans as an earlier one does names that world.
std::vector<std::string> Lines() {
  std::vector<std::string> lines;
  std::map<std::pair<Collective, std::string>, std::string> seen;
  for (const World& world : Worlds())
    for (const Collective collective : world.collectives) {
      const std::string plans = PlansOf(world, collective);
      const auto [first, is_new] = seen.emplace(std::pair(collective, plans), world.name);
      lines.push_back(fmt::format("{}, {}:{}", world.name, Name(collective),
                                  is_new ? plans : " as " + first->second));
    }
  return lines;
}

TEST(GoldenPlanTest, PlansAreThoseOfTheFile) {
  const std::string path = std::string(TUTTI_SOURCE_DIR) + "/src/plan/testdata/golden.txt";
  const std::vector<std::string> fresh = Lines();
  if (std::getenv("WRITE_DOCS") != nullptr) {
    std::ofstream file(path);
    for (const std::string& line : fresh) file << line << '\n';
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::vector<std::string> kept;
  for (std::string line; std::getline(file, line);) kept.push_back(line);
  int differences = 0;
  for (size_t i = 0; i < std::min(fresh.size(), kept.size()) && differences < 10; ++i) {
    if (fresh[i] == kept[i]) continue;
    ++differences;
    ADD_FAILURE() << "line " << i + 1 << " of the file: " << kept[i]
                  << "\n  chosen now: " << fresh[i];
  }
  EXPECT_EQ(fresh.size(), kept.size());
}

}  // namespace
}  // namespace tutti
