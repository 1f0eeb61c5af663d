#include "devcomm/requirements.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "base/hash.h"
#include "base/rounding.h"
#include "devcomm/gin_plan.h"

namespace tutti {
namespace {

// A handle of a buffer counts such units from the start of the resource window.
constexpr uint64_t kUnitBytes = 128;
// The most bytes that a handle of 32 bits can address.
constexpr uint64_t kMostBytes = kUnitBytes << 32;
constexpr uint64_t kLargestAlignment = uint64_t{1} << 30;
// The most elements of a list. A list that is a circle by mistake is refused.
constexpr size_t kMostElements = 65'536;

// Version codes of the releases that made the structure longer, or changed the meaning of a member.
constexpr unsigned kFirstWithGin = 22807;
constexpr unsigned kFirstWithSize = 22902;
constexpr unsigned kFirstWithSignalKinds = 23007;

// The form of releases 2.28.7 to 2.28.9, without a size and a magic at its beginning.
struct Form228 {
  ncclDevResourceRequirements_t* resource_list;
  ncclTeamRequirements_t* team_list;
  bool lsa_multimem;
  int barrier_count, lsa_barrier_count, rail_gin_barrier_count;
  int lsa_ll_a2a_block_count, lsa_ll_a2a_slot_count;
  bool gin_force_enable;
  int gin_context_count, gin_signal_count, gin_counter_count;
};
static_assert(offsetof(Form228, lsa_barrier_count) == 24);
static_assert(offsetof(Form228, gin_signal_count) == 48);
static_assert(sizeof(Form228) == 56);

// Returns whether a word can be the address of an element of a list: aligned, in the lower half of
// the address space, and in no place where counts are.
bool MayBeAddress(uint64_t word) {
  const uint64_t upper = word >> 32, lower = word & 0xffffffff;
  return word % alignof(void*) == 0 && upper < 0x8000 &&
         (upper >= 0x1000 || (upper == 0 && lower >= 0x10000));
}

// Tells the form of 2.28 from today's without a magic. Both forms begin with two words that are 0
// for empty lists (and then no size or magic). Two addresses follow in today's form, a flag and
// three counts in the form of 2.28. If all of these are 0 as well, the signals of the form of 2.28
// lie at a count of today's form that makes no sense without the count beside it.
bool IsForm228(const ncclDevCommRequirements_t* given) {
  uint64_t words[sizeof(Form228) / sizeof(uint64_t)];
  std::memcpy(words, given, sizeof(words));
  for (const uint64_t list : {words[0], words[1]})
    if (list != 0 && !MayBeAddress(list)) return false;
  if (words[0] != 0 || words[1] != 0) return true;
  if (words[2] != 0 || words[3] != 0)
    return (words[2] != 0 && !MayBeAddress(words[2])) || (words[3] != 0 && !MayBeAddress(words[3]));
  const uint64_t signals = words[6] & 0xffffffff, counters = words[6] >> 32;
  return words[4] == 0 && signals != 0 && counters == 0;
}

// Translates members with another meaning before 2.30: barriers of the network, of memory and of
// both were the same barriers. Until 2.29.4 barriers asked for no network, but signals and counters
// did.
void ReadMannerBefore230(ncclDevCommRequirements_t& read) {
  const bool barriers_need_gin = read.version >= kRelease2294;
  if (!barriers_need_gin)
    read.ginForceEnable |= read.ginSignalCount != 0 || read.ginCounterCount != 0;
  const int barriers = std::exchange(read.barrierCount, 0);
  read.lsaBarrierCount = std::max(read.lsaBarrierCount, barriers);
  read.railGinBarrierCount = std::max(read.railGinBarrierCount, barriers);
}

// Translates requirements of 2.28.7 to 2.28.9 into today's form. Members missing in the form keep
// the values of today's initializer.
ncclDevCommRequirements_t ReadForm228(const ncclDevCommRequirements_t* given) {
  Form228 form;
  std::memcpy(&form, given, sizeof(form));
  ncclDevCommRequirements_t read = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  read.version = kFirstWithGin;
  read.resourceRequirementsList = form.resource_list;
  read.teamRequirementsList = form.team_list;
  read.lsaMultimem = form.lsa_multimem;
  read.barrierCount = form.barrier_count;
  read.lsaBarrierCount = form.lsa_barrier_count;
  read.railGinBarrierCount = form.rail_gin_barrier_count;
  read.lsaLLA2ABlockCount = form.lsa_ll_a2a_block_count;
  read.lsaLLA2ASlotCount = form.lsa_ll_a2a_slot_count;
  read.ginForceEnable = form.gin_force_enable;
  read.ginContextCount = form.gin_context_count;
  read.ginSignalCount = form.gin_signal_count;
  read.ginCounterCount = form.gin_counter_count;
  read.ginTrafficClass = NCCL_CONFIG_UNDEF_INT;
  ReadMannerBefore230(read);
  return read;
}

// Translates requirements of a program written for 2.28 and compiled with today's header. In 2.28
// any member that needs GIN also asked for it.
void ReadMannerOf228(ncclDevCommRequirements_t& read) {
  const bool needs_gin = read.ginForceEnable || read.ginSignalCount != 0 ||
                         read.ginCounterCount != 0 || read.railGinBarrierCount != 0;
  if (needs_gin && read.ginConnectionType == NCCL_GIN_CONNECTION_NONE)
    read.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  read.ginStrongSignalsRequired = read.ginVaSignalsRequired = true;
  read.version = NCCL_VERSION_CODE;
}

// Refuses negative counts, and names the first.
Status CheckCounts(const ncclDevCommRequirements_t& asked) {
  const struct {
    const char* name;
    int count;
  } counts[] = {
      {"barrierCount", asked.barrierCount},
      {"lsaBarrierCount", asked.lsaBarrierCount},
      {"railGinBarrierCount", asked.railGinBarrierCount},
      {"worldGinBarrierCount", asked.worldGinBarrierCount},
      {"ginContextCount", asked.ginContextCount},
      {"ginSignalCount", asked.ginSignalCount},
      {"ginCounterCount", asked.ginCounterCount},
  };
  for (const auto& [name, count] : counts)
    if (count < 0) return InvalidArgument("{} is {}", name, count);
  return Status::Ok();
}

// Lays buffers one behind another in the resource window, and collects the numbers that ranks must
// agree on.
class Packer {
 public:
  // Reserves a buffer and returns its handle. Every buffer begins at a unit, whatever its
  // alignment, because handles count units.
  Result<ncclDevResourceHandle> Add(uint64_t bytes, uint64_t alignment) {
    if (alignment != 0 && (!std::has_single_bit(alignment) || alignment > kLargestAlignment))
      return InvalidArgument("an alignment of {} bytes is no power of two up to {}", alignment,
                             kLargestAlignment);
    const uint64_t at = RoundUp(end_, std::max(alignment, kUnitBytes));
    if (bytes > kMostBytes || at > kMostBytes - bytes)
      return InvalidArgument("the buffers that kernels are to have are longer than {} bytes",
                             kMostBytes);
    end_ = at + bytes;
    extents_.insert(extents_.end(), {at, bytes});
    return static_cast<ncclDevResourceHandle>(at / kUnitBytes);
  }
  // Reserves `words` words of 8 bytes for each context. Returns where they begin, in bytes.
  Result<uint64_t> AddWords(int num_contexts, uint32_t words) {
    const uint64_t bytes = static_cast<uint64_t>(num_contexts) * words * sizeof(uint64_t);
    TUTTI_ASSIGN(const ncclDevResourceHandle handle, Add(bytes, kUnitBytes));
    return uint64_t{handle} * kUnitBytes;
  }
  // Makes the digest depend on a number.
  void Note(uint64_t number) { extents_.push_back(number); }
  uint64_t bytes() const { return std::max(RoundUp(end_, kUnitBytes), kUnitBytes); }
  // Returns the beginning and length of each buffer, and all noted numbers.
  const std::vector<uint64_t>& extents() const { return extents_; }

 private:
  uint64_t end_ = 0;
  std::vector<uint64_t> extents_;
};

// Returns the length of the state of LSA barriers. Its layout is described at ncclLsaBarrierHandle.
uint64_t BarrierBytes(int num_ranks, int num_barriers) {
  return sizeof(uint32_t) * (3 + static_cast<uint64_t>(num_ranks)) *
         static_cast<uint64_t>(num_barriers);
}

Result<ncclLsaBarrierHandle> AddBarriers(Packer& packer, const TeamShape& shape, int count) {
  TUTTI_ASSIGN(const ncclDevResourceHandle handle,
               packer.Add(BarrierBytes(shape.lsa_size, count), kUnitBytes));
  return ncclLsaBarrierHandle{handle, count};
}

// Reserves the buffers of the program's own list.
Status AddCallersPieces(Packer& packer, const ncclDevResourceRequirements_t* list,
                        ResourcePlan& plan) {
  for (; list != nullptr; list = list->next) {
    if (plan.pieces.size() == kMostElements)
      return InvalidArgument("the list of resource requirements has more than {} elements",
                             kMostElements);
    TUTTI_ASSIGN(const ncclDevResourceHandle handle,
                 packer.Add(list->bufferSize, list->bufferAlign));
    plan.pieces.push_back({handle, list->outBufferHandle});
  }
  return Status::Ok();
}

// Refuses teams that need multicast memory. StoreHandles later sets the handles of the remaining
// teams to null.
Status CheckTeams(const ncclTeamRequirements_t* list, ResourcePlan& plan) {
  for (; list != nullptr; list = list->next) {
    if (plan.no_multimem.size() == kMostElements)
      return InvalidArgument("the list of team requirements has more than {} elements",
                             kMostElements);
    if (list->multimem) return InvalidArgument("there is no multicast memory for a team");
    plan.no_multimem.push_back(list->outMultimemHandle);
  }
  return Status::Ok();
}

Status CheckPlaces(const void* handle, const void* element) {
  if (handle != nullptr && element != nullptr) return Status::Ok();
  return InvalidArgument("the place for the {} is null", handle == nullptr ? "handle" : "element");
}

}  // namespace

Result<ncclDevCommRequirements_t> ReadRequirements(const ncclDevCommRequirements_t* given) {
  if (given == nullptr) return InvalidArgument("the requirements are null");
  if (given->magic != NCCL_API_MAGIC && IsForm228(given)) return ReadForm228(given);
  if (given->magic == 0 && given->size == 0) {
    ncclDevCommRequirements_t read = *given;
    ReadMannerOf228(read);
    return read;
  }
  if (given->magic != NCCL_API_MAGIC)
    return InvalidUsage(
        "the requirements do not begin as NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER has it");
  constexpr size_t kShortest = offsetof(ncclDevCommRequirements_t, ginConnectionType);
  if (given->version < kFirstWithSize || given->size < kShortest)
    return InvalidUsage("the requirements have {} bytes, as those of no release (version {})",
                        given->size, given->version);
  if (given->version > NCCL_VERSION_CODE)
    return InvalidUsage(
        "the program was compiled for NCCL {}, and this library knows "
        "device communicators up to {}",
        given->version, NCCL_VERSION_CODE);
  ncclDevCommRequirements_t read = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  std::memcpy(static_cast<void*>(&read), given, std::min(given->size, sizeof(read)));
  // A program never set the members in the padding of an older form.
  if (given->version < kRelease230) {
    read.ginTrafficClass = NCCL_CONFIG_UNDEF_INT;
    ReadMannerBefore230(read);
  }
  if (given->version < kFirstWithSignalKinds)
    read.ginStrongSignalsRequired = read.ginVaSignalsRequired = true;
  return read;
}

Result<ResourcePlan> PlanResources(const ncclDevCommRequirements_t& requirements,
                                   const TeamShape& shape) {
  TUTTI_TRY(CheckCounts(requirements));
  if (requirements.lsaMultimem)
    return InvalidArgument("there is no multicast memory for the LSA team");
  ResourcePlan plan;
  Packer packer;
  TUTTI_ASSIGN(plan.lsa_barrier, AddBarriers(packer, shape, requirements.lsaBarrierCount));
  TUTTI_ASSIGN(plan.hybrid_lsa_barrier, AddBarriers(packer, shape, requirements.barrierCount));
  TUTTI_TRY(AddCallersPieces(packer, requirements.resourceRequirementsList, plan));
  TUTTI_TRY(CheckTeams(requirements.teamRequirementsList, plan));
  TUTTI_ASSIGN(plan.gin, PlanGin(requirements, shape));
  TUTTI_ASSIGN(plan.gin.signals_at, packer.AddWords(plan.gin.num_contexts, plan.gin.num_signals));
  TUTTI_ASSIGN(plan.gin.network_signals_at,
               packer.AddWords(plan.gin.num_contexts, plan.gin.num_signals));
  TUTTI_ASSIGN(plan.gin.counters_at, packer.AddWords(plan.gin.num_contexts, plan.gin.num_counters));
  TUTTI_ASSIGN(plan.gin.shadows_at, packer.AddWords(plan.gin.num_contexts, plan.gin.num_signals));
  TUTTI_ASSIGN(plan.gin.values_at,
               packer.AddWords(plan.gin.num_contexts, plan.gin.num_queues * plan.gin.queue_depth));
  packer.Note(static_cast<uint64_t>(plan.gin.connection));
  packer.Note(static_cast<uint64_t>(plan.gin.form));
  plan.bytes = packer.bytes();
  plan.digest = Fnv1a::OfObjects(std::span<const uint64_t>(packer.extents()));
  return plan;
}

Status FillLsaBarrierRequirement(ncclTeam_t team, int num_barriers, ncclLsaBarrierHandle_t* handle,
                                 ncclDevResourceRequirements_t* element) {
  TUTTI_TRY(CheckPlaces(handle, element));
  if (num_barriers < 0 || team.nRanks < 1)
    return InvalidArgument("{} barriers of a team of {} ranks cannot be", num_barriers,
                           team.nRanks);
  *handle = {0, num_barriers};
  *element = {};
  element->bufferSize = BarrierBytes(team.nRanks, num_barriers);
  element->bufferAlign = alignof(uint32_t);
  element->outBufferHandle = &handle->bufHandle;
  return Status::Ok();
}

Status FillGinBarrierRequirement(ncclTeam_t team, int num_barriers, ncclGinBarrierHandle_t* handle,
                                 ncclDevResourceRequirements_t* element) {
  TUTTI_TRY(CheckPlaces(handle, element));
  const uint64_t signals =
      num_barriers < 0 || team.nRanks < 1
          ? 0
          : static_cast<uint64_t>(num_barriers) * static_cast<uint64_t>(team.nRanks);
  if (num_barriers < 0 || team.nRanks < 1 || signals > kMostGinSignals)
    return InvalidArgument("{} barriers of a team of {} ranks cannot be", num_barriers,
                           team.nRanks);
  *handle = {};
  *element = {};
  element->ginSignalCount = static_cast<int>(signals);
  element->outGinSignalStart = &handle->signal0;
  return Status::Ok();
}

Status FillLLA2ARequirement(int num_blocks, int num_slots, ncclLLA2AHandle_t* handle,
                            ncclDevResourceRequirements_t* element) {
  TUTTI_TRY(CheckPlaces(handle, element));
  if (num_blocks < 0 || num_slots < 0)
    return InvalidArgument("{} blocks of {} slots cannot be", num_blocks, num_slots);
  constexpr uint64_t kLineBytes = 16;
  *handle = {0, static_cast<uint32_t>(num_slots)};
  *element = {};
  element->bufferSize =
      static_cast<uint64_t>(num_blocks) * (1 + 2 * static_cast<uint64_t>(num_slots)) * kLineBytes;
  element->bufferAlign = kLineBytes;
  element->outBufferHandle = &handle->bufHandle;
  return Status::Ok();
}

}  // namespace tutti
