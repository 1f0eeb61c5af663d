#include "plan/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/rounding.h"

namespace tutti {
namespace {

// Sizes of TUTTI_GPU_TUNE by which data are cut are multiples of this many bytes.
constexpr size_t kAlignment = 16;
// The bytes of a slot where no window says how long its slots are.
constexpr size_t kUsualSlotBytes = 16 << 10;
// Numbers of blocks are rounded down to multiples of this number.
constexpr uint32_t kRoundBlocks = 8;
// One of this many multiprocessors is left free.
constexpr uint32_t kSpareOf = 32;

// Set a number of TUTTI_GPU_TUNE. Rates and numbers of pieces are at least 1, and sizes by which
// data are cut are whole lines.
void SetCost(std::string_view unit, double value, double& cost) {
  cost = unit == "B/µs" ? std::max(1.0, value) : value;
}
void SetCost(std::string_view unit, double value, size_t& cost) {
  const auto whole = static_cast<size_t>(std::min(value, 1e15));
  const size_t some = std::max<size_t>(1, whole);
  cost = unit == "B" ? RoundUp(some, kAlignment) : unit == "pieces" ? some : whole;
}

}  // namespace

std::string_view Name(MeshAlgorithm algorithm) { return RowOf(algorithm).description; }

PlanContext MeshContextFor(int num_ranks, int multiprocessors, GpuReach reach) {
  PlanContext context;
  context.kind = RankKind::kMesh;
  context.num_ranks = num_ranks;
  MeshReach& mesh = context.mesh;
  mesh.max_blocks = std::min(BlocksFor(multiprocessors), kMaxBlocks);
  mesh.max_lone_blocks = LoneBlocksFor(multiprocessors);
  mesh.slot_bytes = kUsualSlotBytes;
  mesh.ring_slot_bytes = kUsualSlotBytes * static_cast<size_t>(std::max(1, num_ranks));
  mesh.ll_slot_bytes = kLLLines * kLLData;
  if (reach == GpuReach::kNvlink) mesh.ll128_slot_bytes = LL128SlotData(std::max(1, num_ranks));
  mesh.costs = CostsOf(reach);
  return context;
}

uint32_t BlocksFor(int multiprocessors) {
  const auto room = static_cast<uint32_t>(std::max(1, multiprocessors)) * kBlocksOnMultiprocessor;
  const uint32_t share = std::max(1u, room / kCommunicatorsAtOnce);
  // Lengths are mostly powers of two, and therefore a round number of blocks gets equal shares.
  return share < kRoundBlocks ? share : share / kRoundBlocks * kRoundBlocks;
}

uint32_t LoneBlocksFor(int multiprocessors) {
  const auto all = static_cast<uint32_t>(std::max(1, multiprocessors));
  return std::max(1u, all - std::max(1u, all / kSpareOf));
}

Status ApplyMeshTuning(std::string_view text, MeshReach& mesh) {
  struct Number {
    std::string_view name;
    void (*set)(MeshReach& mesh, double value);
  };
  static constexpr Number kNumbers[] = {
#define GPU_COST(type, field, nvlink, host_memory, unit, meaning) \
  {#field, [](MeshReach& m, double v) { SetCost(unit, v, m.costs.field); }},
#include "plan/gpu_costs.def"
      {"blocks",
       [](MeshReach& m, double v) {
         m.max_blocks = std::clamp(static_cast<uint32_t>(v), 1u, m.max_blocks);
       }},
  };
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::string_view name = item.substr(0, item.find('='));
    double value = -1;
    if (name.size() < item.size())
      std::from_chars(item.data() + name.size() + 1, item.data() + item.size(), value);
    if (value < 0) return InvalidUsage("TUTTI_GPU_TUNE: \"{}\" is no name=number", item);
    const auto* const found =
        std::find_if(std::begin(kNumbers), std::end(kNumbers),
                     [&](const Number& number) { return number.name == name; });
    if (found == std::end(kNumbers)) {
      std::string names;
      for (const Number& number : kNumbers)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", number.name);
      return InvalidUsage("TUTTI_GPU_TUNE knows no \"{}\"; there are {}", name, names);
    }
    found->set(mesh, value);
  }
  return Status::Ok();
}

std::string DescribeMesh(const Plan& plan) {
  const MeshAlgorithm id = plan.row->id;
  if (id == MeshAlgorithm::kMessages) return "a message between each pair";
  if (IsSymmetric(id))
    return fmt::format("{} between registered buffers, {} blocks of {} threads", Name(id),
                       plan.channels, plan.threads);
  return fmt::format("{} {}, {} blocks of {} threads, {} elements a block, chunks of {}", Name(id),
                     IsRing(id) ? "in steps" : fmt::format("by {}", Name(plan.protocol)),
                     plan.channels, plan.threads, plan.channel_elems, plan.chunk_elems);
}

}  // namespace tutti
