#include "devcomm/gin_plan.h"

#include <algorithm>
#include <bit>

namespace tutti {
namespace {

// The contexts of a program that names no number.
constexpr int kUsualContexts = 4;
// The most contexts; each has a queue for each rank. DeepEP asks for 129 contexts, or for a context
// for each multiprocessor, and does not look how many contexts were made. A program that asks for
// more contexts gets 256, and its kernels read the number in ncclDevComm.
constexpr int kMostContexts = 256;
// A queue of 128 descriptors is 16 KiB. A thread that posts into a full queue drives the queue.
constexpr uint32_t kUsualDepth = 128;
constexpr uint32_t kLeastDepth = 2;
constexpr uint32_t kMostDepth = 32'768;

// The most connections in a device communicator.
constexpr int kMostConnections = NCCL_GIN_MAX_CONNECTIONS;

// Numbers signals or counters: each request gets a run of numbers behind the last run. All ranks
// make the same requests in the same order, and therefore agree on the numbers without an exchange.
class Numbers {
 public:
  Numbers(const char* name, uint64_t most) : name_(name), most_(most) {}
  // Returns the first of `count` numbers.
  Result<uint32_t> Take(int64_t count) {
    if (count < 0) return InvalidArgument("{} {} cannot be", count, name_);
    if (static_cast<uint64_t>(count) > most_ - next_)
      return InvalidArgument("more than {} {} are asked for", most_, name_);
    const uint64_t first = next_;
    next_ += static_cast<uint64_t>(count);
    return static_cast<uint32_t>(first);
  }
  uint32_t count() const { return static_cast<uint32_t>(next_); }

 private:
  const char* const name_;
  const uint64_t most_;
  uint64_t next_ = 0;
};

GinForm FormOf(const ncclDevCommRequirements_t& asked) {
  if (asked.version >= kRelease230) return GinForm::kToday;
  return asked.version >= kRelease2294 ? GinForm::kBefore230 : GinForm::kBefore2294;
}

// Returns the connection that the requirements ask for. ginForceEnable is an older way to ask for
// all ranks. Until 2.29.4 kernels of several hosts had GIN unasked.
ncclGinConnectionType_t ConnectionOf(const ncclDevCommRequirements_t& asked,
                                     const TeamShape& shape) {
  if (asked.ginConnectionType != NCCL_GIN_CONNECTION_NONE) return asked.ginConnectionType;
  const bool unasked = FormOf(asked) == GinForm::kBefore2294 && shape.has_old_gin &&
                       shape.lsa_size < shape.num_ranks;
  return asked.ginForceEnable || unasked ? NCCL_GIN_CONNECTION_FULL : NCCL_GIN_CONNECTION_NONE;
}

// Refuses contradictory requirements, and requirements that these ranks cannot serve. The list
// ends, because PlanResources has walked the list before.
Status CheckConnection(const ncclDevCommRequirements_t& asked, const TeamShape& shape,
                       ncclGinConnectionType_t connection) {
  if (connection == NCCL_GIN_CONNECTION_NONE && FormOf(asked) == GinForm::kBefore2294)
    return Status::Ok();
  const bool one_team = shape.lsa_size == shape.num_ranks;
  bool needs_gin = asked.ginSignalCount != 0 || asked.ginCounterCount != 0 ||
                   asked.railGinBarrierCount != 0 || asked.worldGinBarrierCount != 0 ||
                   (asked.barrierCount != 0 && !one_team);
  for (auto* element = asked.resourceRequirementsList; element != nullptr; element = element->next)
    needs_gin |= element->ginSignalCount != 0 || element->ginCounterCount != 0;
  if (connection == NCCL_GIN_CONNECTION_NONE) {
    if (!needs_gin) return Status::Ok();
    return InvalidArgument(
        "signals, counters and barriers over the network need a GIN connection, and the "
        "requirements have none");
  }
  if (connection != NCCL_GIN_CONNECTION_FULL && connection != NCCL_GIN_CONNECTION_RAIL)
    return InvalidArgument("there is no GIN connection of type {}", static_cast<int>(connection));
  if (!shape.has_gin)
    return InvalidArgument(
        "kernels of these ranks cannot put to all others, or NCCL_GIN_ENABLE=0 forbids it: ask "
        "for no GIN connection");
  if (asked.version < kRelease230 && !shape.has_old_gin)
    return InvalidArgument(
        "the program was compiled for NCCL {}, whose kernels know GIN in another form, which only "
        "the proxy of GPUs knows",
        asked.version);
  if (connection == NCCL_GIN_CONNECTION_RAIL && asked.worldGinBarrierCount != 0)
    return InvalidArgument(
        "worldGinBarrierCount needs a GIN connection to all ranks, not to rails");
  if (asked.ginQueueDepth < 0 || asked.ginQueueDepth > static_cast<int>(kMostDepth))
    return InvalidArgument("a ginQueueDepth of {} is not between 0 and {}", asked.ginQueueDepth,
                           kMostDepth);
  return Status::Ok();
}

// Gives barriers their signals, one for each rank of the meeting team. Programs of NCCL 2.28 use
// the barriers of a rail for all ranks. Rail barriers therefore have signals for all ranks.
Status AddBarriers(const ncclDevCommRequirements_t& asked, const TeamShape& shape, Numbers& signals,
                   GinPlan& plan) {
  const int64_t ranks = shape.num_ranks;
  TUTTI_ASSIGN(plan.rail_barrier.signal0, signals.Take(asked.railGinBarrierCount * ranks));
  TUTTI_ASSIGN(plan.world_barrier.signal0, signals.Take(asked.worldGinBarrierCount * ranks));
  TUTTI_ASSIGN(plan.hybrid_rail_barrier.signal0,
               signals.Take(asked.barrierCount * (ranks / shape.lsa_size)));
  const bool full = plan.connection == NCCL_GIN_CONNECTION_FULL;
  TUTTI_ASSIGN(plan.hybrid_world_barrier.signal0,
               signals.Take(full ? asked.barrierCount * ranks : 0));
  return Status::Ok();
}

// Gives the elements of the program's list their signals and counters, and notes where the program
// wants to be told the first of each.
Status AddList(const ncclDevResourceRequirements_t* list, Numbers& signals, Numbers& counters,
               GinPlan& plan) {
  for (; list != nullptr; list = list->next) {
    TUTTI_ASSIGN(const uint32_t signal, signals.Take(list->ginSignalCount));
    TUTTI_ASSIGN(const uint32_t counter, counters.Take(list->ginCounterCount));
    plan.numbers.push_back({signal, list->outGinSignalStart});
    plan.numbers.push_back({counter, list->outGinCounterStart});
  }
  return Status::Ok();
}

}  // namespace

// The caller's own signals come first, because programs number them from 0; barriers and the list
// follow.
Result<GinPlan> PlanGin(const ncclDevCommRequirements_t& asked, const TeamShape& shape) {
  GinPlan plan;
  plan.connection = ConnectionOf(asked, shape);
  plan.form = FormOf(asked);
  TUTTI_TRY(CheckConnection(asked, shape, plan.connection));
  if (!plan.present()) return plan;
  plan.num_contexts =
      std::min(asked.ginContextCount > 0 ? asked.ginContextCount : kUsualContexts, kMostContexts);
  if (plan.form == GinForm::kBefore2294)
    plan.num_contexts = std::min(plan.num_contexts, kMostConnections);
  const uint32_t usual_depth = shape.usual_depth > 0 ? shape.usual_depth : kUsualDepth;
  const uint32_t depth =
      asked.ginQueueDepth > 0 ? static_cast<uint32_t>(asked.ginQueueDepth) : usual_depth;
  plan.queue_depth = std::max(kLeastDepth, std::bit_ceil(depth));
  const int ranks = plan.connection == NCCL_GIN_CONNECTION_FULL ? shape.num_ranks
                                                                : shape.num_ranks / shape.lsa_size;
  plan.num_queues = static_cast<uint32_t>(ranks);
  plan.strong = asked.ginStrongSignalsRequired;
  plan.va_signals = asked.ginVaSignalsRequired;
  Numbers signals("signals", kMostGinSignals), counters("counters", kMostGinCounters);
  TUTTI_TRY(signals.Take(asked.ginSignalCount).status());
  TUTTI_TRY(counters.Take(asked.ginCounterCount).status());
  TUTTI_TRY(AddBarriers(asked, shape, signals, plan));
  TUTTI_TRY(AddList(asked.resourceRequirementsList, signals, counters, plan));
  plan.num_signals = signals.count();
  plan.num_counters = counters.count();
  return plan;
}

}  // namespace tutti
