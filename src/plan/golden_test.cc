// Compares the planner's choices with testdata/golden.txt: every collective × sizes × worlds. A
// changed line means that users' operations run in a new way, and its commit has to name the
// measurement behind the change. WRITE_DOCS=1 writes the file anew.
//
// A line of the file has a world, a collective and the collective's plans by size: "<=BYTES
// algorithm protocol …", each for all sizes up to BYTES, followed by the numbers of the plan.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/mesh.h"
#include "plan/plan.h"

namespace tutti {
namespace {

constexpr size_t kSmallest = 64;
constexpr size_t kLargest = size_t{1} << 30;

// A communicator. `plan` describes the plan for a collective of `count` elements in words.
struct World {
  std::string name;
  DataType type = DataType::kFloat32;
  std::vector<Collective> collectives;
  std::function<std::string(Collective collective, size_t count)> plan;
};

// GPUs count the data of collectives that do not reduce in bytes.
Question QuestionOf(const PlanContext& context, Collective collective, size_t count, DataType type,
                    Buffers buffers = Buffers::kOwn) {
  const bool in_bytes = context.kind != RankKind::kHost && !Reduces(collective);
  return {.collective = collective,
          .count = in_bytes ? count * SizeOf(type) : count,
          .type = in_bytes ? DataType::kUint8 : type,
          .order = context.deterministic && Reduces(collective) ? OrderOf(type, ReduceKind::kSum)
                                                                : ReductionOrder::kAny,
          .buffers = buffers};
}

// The changes of a variant to a world.
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

World HostWorld(PlanContext context, const Variant& variant, Buffers buffers = Buffers::kOwn) {
  context.deterministic = variant.deterministic;
  EXPECT_TRUE(ApplyAlgorithmList(variant.algo, context).ok()) << variant.algo;
  EXPECT_TRUE(ApplyProtocolList(variant.proto, context).ok()) << variant.proto;
  const DataType type = variant.type;
  return {fmt::format("hosts: {} ranks on {}, {}", context.num_ranks, context.hosts.count,
                      variant.name),
          type, kHostCollectives, [=](Collective collective, size_t count) {
            const Plan plan =
                MakePlan(context, QuestionOf(context, collective, count, type, buffers));
            return fmt::format("{} {} {}/{}{}", Name(plan.algorithm()), Name(plan.protocol),
                               plan.chunk_elems, plan.slice_elems,
                               plan.owners > 1 ? fmt::format(" {} owners", plan.owners) : "");
          }};
}

PlanContext HostContext(int num_ranks, int num_hosts) {
  PlanContext context;
  context.num_ranks = num_ranks;
  context.host.one_host = num_hosts == 1;
  context.host.stage_bytes = num_hosts == 1 ? 128 << 10 : 0;
  context.host.slot_bytes = num_hosts == 1 ? 64 << 10 : 512 << 10;
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
  busy.host.oversubscribed = true;
  worlds.push_back(HostWorld(busy, {.name = "sharing cores"}));
  if (num_hosts == 1) {
    worlds.push_back(HostWorld(plain, {.name = "mapped buffers"}, Buffers::kMapped));
    worlds.push_back(HostWorld(plain, {.name = "perhaps mapped"}, Buffers::kPerhapsMapped));
    worlds.push_back(HostWorld(plain, {.name = "copied by the kernel"}, Buffers::kCopied));
    worlds.push_back(
        HostWorld(plain, {.name = "mapped, NCCL_ALGO=pull", .algo = "pull"}, Buffers::kMapped));
    return;
  }
  PlanContext known = plain;
  known.host.network_gbps = 12.5;
  known.host.ranks_per_nic = plain.hosts.most;
  worlds.push_back(HostWorld(known, {.name = "12.5 GB/s"}));
  PlanContext far = plain;
  far.host.network_us = 1024;
  worlds.push_back(HostWorld(far, {.name = "far"}));
}

// ---- GPUs that reach one another's memory

const std::vector<Collective> kMeshCollectives = {
    Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
    Collective::kAllGather, Collective::kReduceScatter, Collective::kAlltoAll,
    Collective::kGather,    Collective::kScatter};

World MeshWorld(PlanContext context, const std::string& reach, const Variant& variant,
                Buffers buffers = Buffers::kOwn) {
  context.deterministic = variant.deterministic;
  EXPECT_TRUE(ApplyAlgorithmList(variant.algo, context).ok()) << variant.algo;
  EXPECT_TRUE(ApplyProtocolList(variant.proto, context).ok()) << variant.proto;
  const DataType type = variant.type;
  return {fmt::format("GPUs: {} by {}, {}", context.num_ranks, reach, variant.name), type,
          kMeshCollectives, [=](Collective collective, size_t count) {
            const Plan plan =
                MakePlan(context, QuestionOf(context, collective, count, type, buffers));
            return plan.row->id == MeshAlgorithm::kMessages
                       ? std::string("messages")
                       : fmt::format("{} {} {}x{}{}/{}/{}", Name(plan.row->id), Name(plan.protocol),
                                     plan.channels, plan.threads, plan.early ? " early " : " ",
                                     plan.channel_elems, plan.chunk_elems);
          }};
}

void AddMeshes(int num_ranks, std::vector<World>& worlds) {
  const PlanContext nvlink = MeshContextFor(num_ranks, 132, GpuReach::kNvlink);
  const auto add = [&](const PlanContext& context, const Variant& variant,
                       Buffers buffers = Buffers::kOwn) {
    worlds.push_back(MeshWorld(context, "NVLink", variant, buffers));
  };
  for (const Variant& variant :
       WithLists({"ring", "oneshot", "twoshot", "exchange", "symmetric", "^ring,oneshot"},
                 {"LL", "LL128", "Simple", "^LL128"}))
    add(nvlink, variant);
  add(nvlink, {.name = "registered buffers"}, Buffers::kRegistered);
  add(nvlink, {.name = "registered, float32 in rank order", .deterministic = true},
      Buffers::kRegistered);
  add(nvlink, {.name = "registered, NCCL_ALGO=symmetric", .algo = "symmetric"},
      Buffers::kRegistered);
  PlanContext few = nvlink;
  few.mesh.max_blocks = 4;
  add(few, {.name = "4 blocks"});
  PlanContext many = nvlink;
  many.mesh.min_blocks = 32;
  add(many, {.name = "32 blocks at least"});
  PlanContext slow = nvlink;
  slow.mesh.link_bytes_per_us = 100e3;
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

World ChannelWorld(PlanContext context, const Variant& variant) {
  context.deterministic = variant.deterministic;
  EXPECT_TRUE(ApplyAlgorithmList(variant.algo, context).ok()) << variant.algo;
  const DataType type = variant.type;
  return {fmt::format("channels: {} GPUs on {}, {}", context.num_ranks, context.hosts.count,
                      variant.name),
          type, kChannelCollectives, [=](Collective collective, size_t count) {
            const Plan plan = MakePlan(context, QuestionOf(context, collective, count, type));
            const bool in_rank_order = plan.row->where == Where::kChannelRing &&
                                       plan.row->order == AddingOrder::kRankOrder;
            return plan.algorithm() == Algorithm::kExchange
                       ? std::string("messages")
                       : fmt::format("{}{} {}/{}/{}/{}", Name(plan.algorithm()),
                                     in_rank_order ? " in rank order" : "", plan.channels,
                                     plan.channel_elems, plan.chunk_elems, plan.slice_elems);
          }};
}

void AddChannels(int num_ranks, int num_hosts, std::vector<World>& worlds) {
  PlanContext plain;
  plain.kind = RankKind::kChannels;
  plain.num_ranks = num_ranks;
  plain.hosts.count = num_hosts;
  plain.hosts.most = (num_ranks + num_hosts - 1) / num_hosts;
  plain.channel = {.channels = 8,
                   .slot_bytes = 512 << 10,
                   .pair_slot_bytes = 128 << 10,
                   .local_ranks = num_ranks % num_hosts == 0 ? num_ranks / num_hosts : 0,
                   .trees = num_hosts > 1 ? 4u : 0u,
                   .tree_slot_bytes = 64 << 10};
  for (const Variant& variant :
       WithLists({"ring", "tree", "twolevel", "oneshot", "exchange", "ring,tree"}, {}))
    worlds.push_back(ChannelWorld(plain, variant));
  PlanContext narrow = plain;
  narrow.channel.channels = 1;
  narrow.channel.trees = 0;
  narrow.channel.pair_slot_bytes = 0;
  worlds.push_back(ChannelWorld(narrow, {.name = "one channel, no pairs"}));
  PlanContext known = plain;
  known.channel.network_bytes_per_us = 12.5e3;
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

// Returns a collective's plans from the smallest size to the largest.
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

// Returns the lines of the file. A world with the plans of an earlier world names the earlier
// world.
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
