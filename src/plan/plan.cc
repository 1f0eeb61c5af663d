#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/hash.h"
#include "base/rounding.h"
#include "plan/rows.h"

namespace tutti {
namespace {

struct RowFunctions {
  CutFunction cut;
  CostFunction cost;
};
constexpr RowFunctions kHostFunctions[] = {
#define HOST(algorithm, where, collectives, protocols, needs, order, cut, cost, file) \
  {host_rows::cut, host_rows::cost},
#include "plan/algorithms.def"
};
constexpr RowFunctions kMeshFunctions[] = {
#define GPU(id, description, algorithm, where, collectives, protocols, needs, order, cut, cost, \
            file)                                                                               \
  {mesh_rows::cut, mesh_rows::cost},
#include "plan/algorithms.def"
};
constexpr RowFunctions kChannelFunctions[] = {
#define CHANNEL(algorithm, where, collectives, protocols, needs, order, cut, cost, file) \
  {channel_rows::cut, channel_rows::cost},
#include "plan/algorithms.def"
};

const RowFunctions& FunctionsOf(RankKind kind, const AlgorithmRow& row) {
  const auto i = static_cast<size_t>(&row - RowsOf(kind).data());
  return kind == RankKind::kHost   ? kHostFunctions[i]
         : kind == RankKind::kMesh ? kMeshFunctions[i]
                                   : kChannelFunctions[i];
}

// Holds the ways to answer a question. A tuner sees the options; option i belongs to plan i.
struct Ways {
  static constexpr size_t kMost = 24;
  std::array<CostOption, kMost> options;
  std::array<Plan, kMost> plans;
  size_t count = 0;

  std::span<CostOption> Options() { return {options.data(), count}; }
  // Returns the index of the best way, or kMost without any way. An allowed way is better than a
  // way that is not allowed. Ways that are not allowed are kept because a list without an algorithm
  // for a collective does not apply to the collective: NCCL_ALGO=tree has no effect on an
  // AllGather.
  size_t Best() const {
    size_t best = kMost;
    for (size_t i = 0; i < count; ++i) {
      if (options[i].us == kNeverUs) continue;
      if (best == kMost ||
          std::pair(options[i].off, options[i].us) < std::pair(options[best].off, options[best].us))
        best = i;
    }
    return best;
  }
};

bool Meets(const PlanContext& c, const Question& q, Need need) {
  const bool several = c.kind == RankKind::kHost ? !c.host.one_host : c.hosts.count > 1;
  switch (need) {
    case Need::kOneHost:
      return !several;
    case Need::kSeveralHosts:
      return several;
    case Need::kReadableBuffers:
      return q.buffers == Buffers::kPerhapsMapped || q.buffers == Buffers::kMapped ||
             q.buffers == Buffers::kCopied;
    case Need::kRegisteredBuffers:
      return q.buffers == Buffers::kRegistered;
    case Need::kThreeRanks:
      return c.num_ranks >= 3;
    case Need::kEqualHosts:
      return several && c.channel.local_ranks > 1;
    case Need::kFewRanks:
      return c.num_ranks <= kMostOneShotRanks;
    case Need::kSharedHosts:
      return c.hosts.count > 1 && c.hosts.most > 1;
  }
  return false;
}

// Returns the most ways that any collective has on ranks of this kind.
constexpr size_t MostWays(RankKind kind) {
  size_t most = 0;
  for (int c = 0; c < kNumCollectives; ++c) {
    size_t ways = 0;
    for (const AlgorithmRow& row : RowsOf(kind))
      for (uint32_t protocols = row.protocols; protocols != 0; protocols &= protocols - 1)
        ways += row.Serves(static_cast<Collective>(c)) ? 1 : 0;
    most = ways > most ? ways : most;
  }
  return most;
}
static_assert(MostWays(RankKind::kHost) <= Ways::kMost &&
              MostWays(RankKind::kMesh) <= Ways::kMost &&
              MostWays(RankKind::kChannels) <= Ways::kMost);

// Returns whether the row can run the collective on these ranks, whatever NCCL_ALGO allows.
bool Applies(const PlanContext& c, const AlgorithmRow& row, const PlanQuestion& q) {
  if (!row.Serves(q.collective) || !KeepsOrder(row, q.order, c.num_ranks)) return false;
  if (q.buffers == Buffers::kScattered &&
      (row.where != Where::kStage || (q.allowed != 0 && !q.Names(row.algorithm))))
    return false;
  for (uint32_t need = 0; row.needs >> need != 0; ++need)
    if ((row.needs >> need & 1) != 0 && !Meets(c, q, static_cast<Need>(need))) return false;
  return true;
}

// Adds the way by a row and a protocol, where the row serves the question.
void Consider(const PlanContext& c, const AlgorithmRow& row, Protocol protocol,
              const PlanQuestion& q, Ways& ways) {
  const RowFunctions& functions = FunctionsOf(c.kind, row);
  Plan& plan = ways.plans[ways.count];
  plan = {};
  plan.row = &row;
  plan.protocol = protocol;
  const Fit fit = functions.cut(c, q, plan);
  if (fit == Fit::kNo || (fit == Fit::kIfAdvised && !q.IsAdvised(row.algorithm))) return;
  plan.us = functions.cost(c, q, plan);
  if (plan.us == kNeverUs) return;
  // The wish for an algorithm counts more than the wish for a protocol.
  const bool off_algorithm = q.allowed != 0 && !q.Names(row.algorithm);
  const bool off_protocol = !IsLeft(c, q.collective, protocol);
  ways.options[ways.count++] = {row.algorithm, protocol,
                                4 * off_algorithm + 2 * off_protocol + (fit == Fit::kLastResort),
                                plan.us, fit == Fit::kIfAdvised};
}

void CollectWays(const PlanContext& c, const PlanQuestion& q, Ways& ways) {
  for (const AlgorithmRow& row : RowsOf(c.kind)) {
    if (!Applies(c, row, q)) continue;
    for (const Protocol protocol : {Protocol::kLL, Protocol::kLL128, Protocol::kSimple})
      if (row.Has(protocol)) Consider(c, row, protocol, q, ways);
  }
}

// Describes the question to a tuner. Tuners count the bytes of the operation's largest buffer.
AdvisedOperation OperationOf(const PlanContext& c, const Question& q) {
  const auto parts = CountsOnePart(q.collective) ? static_cast<size_t>(c.num_ranks) : 1;
  return {.collective = q.collective,
          .bytes = static_cast<size_t>(q.bytes()) * parts,
          .registered = q.buffers == Buffers::kRegistered};
}

// Lets the adviser change the predicted times, and returns how many channels the adviser wants. A
// way with is_extra counts only if the adviser has changed its time.
uint32_t TakeAdvice(const PlanContext& c, const PlanQuestion& q, CostAdviser& adviser, Ways& ways) {
  const std::array<CostOption, Ways::kMost> before = ways.options;
  const uint32_t channels = adviser.Advise(OperationOf(c, q), ways.Options());
  for (size_t i = 0; i < ways.count; ++i)
    if (ways.options[i].is_extra && ways.options[i].us == before[i].us)
      ways.options[i].us = kNeverUs;
  return channels;
}

// Cuts the plan anew for the number of channels that the adviser wants, and keeps the plan where
// the row and the protocol do not serve the question by this number.
void TakeChannels(const PlanContext& c, PlanQuestion q, uint32_t channels, Plan& plan) {
  if (channels == 0) return;
  q.advised_channels = channels;
  Plan cut;
  cut.row = plan.row;
  cut.protocol = plan.protocol;
  if (FunctionsOf(c.kind, *plan.row).cut(c, q, cut) != Fit::kNo) plan = cut;
}

// Makes the steps as long as the adviser wants, within the length of a slot. Kernels of GPUs access
// whole lines, and therefore the slices of GPUs are whole lines.
void CutAsAdvised(const PlanContext& c, const PlanQuestion& q, const CostOption& chosen,
                  CostAdviser& adviser, Plan& plan) {
  if (plan.slot_elems == 0) return;
  const size_t slices = plan.chunk_elems / plan.slice_elems;
  const size_t planned = plan.chunk_elems * q.elem_bytes();
  const uint32_t channels = plan.channels * ChannelsPerCut(*plan.row);
  const size_t advised = adviser.AdviseChunk(OperationOf(c, q), chosen, channels, planned);
  if (advised == planned) return;
  const size_t line = c.kind == RankKind::kHost ? 1 : kGpuLineBytes / q.elem_bytes();
  plan.slice_elems =
      std::clamp<size_t>(advised / slices / q.elem_bytes() / line * line, line, plan.slot_elems);
  plan.chunk_elems = plan.slice_elems * slices;
}

// Returns the time of a collective without a row, from the messages that replace the collective
// (plan/lower.h). Over channels the messages are chains of two ranks, one after another.
double MessagesUs(const PlanContext& c, const Question& q) {
  const int messages = q.collective == Collective::kSendRecv ? 1 : c.num_ranks - 1;
  if (c.kind == RankKind::kMesh) return mesh_rows::BytesUs(c, q.bytes() * messages);
  PlanContext pair = c;
  pair.num_ranks = 2;
  return PredictUs(pair, {.collective = Collective::kBroadcast,
                          .count = q.count * q.elem_bytes() * static_cast<size_t>(messages)});
}

// Adds the algorithms that the call allows, or else those of NCCL_ALGO, to the question.
PlanQuestion Restricted(const PlanContext& c, const Question& q) {
  PlanQuestion restricted = {q};
  restricted.allowed =
      q.algorithms != 0 ? q.algorithms : c.allowed_algorithms[static_cast<size_t>(q.collective)];
  return restricted;
}

}  // namespace

// Asks the adviser after the cost model. The advice is ignored if the best allowed way is gone
// after the advice.
Plan MakePlan(const PlanContext& c, const Question& question, CostAdviser* adviser) {
  PlanQuestion q = Restricted(c, question);
  for (uint32_t a = 0; adviser != nullptr && a < kNumAlgorithms; ++a)
    q.advised |= adviser->Names(static_cast<Algorithm>(a)) ? 1u << a : 0;
  Ways ways;
  CollectWays(c, q, ways);
  size_t best = ways.Best();
  if (best == Ways::kMost) return {};
  uint32_t channels = 0;
  if (adviser != nullptr) {
    const int off = ways.options[best].off;
    channels = TakeAdvice(c, q, *adviser, ways);
    best = ways.Best();
    if (best == Ways::kMost || ways.options[best].off > off) return MakePlan(c, question);
  }
  Plan plan = ways.plans[best];
  TakeChannels(c, q, channels, plan);
  plan.us = ways.options[best].us;
  if (q.IsAdvised(plan.algorithm())) CutAsAdvised(c, q, ways.options[best], *adviser, plan);
  return plan;
}

double PredictUs(const PlanContext& c, const Question& question, Algorithm algorithm) {
  const PlanQuestion q = Restricted(c, question);
  Ways ways;
  CollectWays(c, q, ways);
  double least = kNeverUs;
  for (const CostOption& option : ways.Options())
    if (option.algorithm == algorithm) least = std::min(least, option.us);
  return least;
}

double PredictUs(const PlanContext& c, const Question& q, CostAdviser* adviser) {
  const double launch_us = c.kind == RankKind::kMesh ? c.mesh.costs.launch_us : 0;
  if (c.num_ranks == 1 || q.bytes() == 0) return launch_us;
  return launch_us + (Serves(c.kind, q.collective) ? MakePlan(c, q, adviser).us : MessagesUs(c, q));
}

Question QuestionOf(const PlanContext& context, const CollectiveTask& task, Buffers buffers) {
  const bool adds = task.is_reduction();
  const bool in_bytes = context.kind != RankKind::kHost && !adds;
  return {.collective = task.collective,
          .count = in_bytes ? task.plan_count() * task.elem_bytes() : task.plan_count(),
          .type = in_bytes ? DataType::kUint8 : task.type,
          .order = adds && IsDeterministic(context, task) ? OrderOf(task.type, task.op.kind)
                                                          : ReductionOrder::kAny,
          .buffers = buffers,
          .algorithms = task.wishes.algorithms,
          .most_channels = task.wishes.most_blocks};
}

double PredictUs(const PlanContext& context, const Task& task, Buffers buffers,
                 CostAdviser* adviser) {
  Question question;
  if (const auto* const message = std::get_if<MessageTask>(&task)) {
    question = {.collective = Collective::kSendRecv, .count = message->bytes()};
  } else if (const auto* const collective = std::get_if<CollectiveTask>(&task)) {
    question = QuestionOf(context, *collective, buffers);
    // A prediction counts the mean part of a variable-size collective, as the count of NCCL's calls
    // is the part of one rank. A plan counts the longest part.
    if (collective->parts)
      question.count = DivUp(collective->bytes() / question.elem_bytes(),
                             static_cast<size_t>(context.num_ranks));
  } else {
    return 0;
  }
  return PredictUs(context, question, adviser);
}

uint64_t HashOf(const Plan& plan) {
  const std::array<uint64_t, 6> chosen = {static_cast<uint64_t>(plan.algorithm()),
                                          static_cast<uint64_t>(plan.protocol),
                                          plan.slice_elems,
                                          plan.channel_elems,
                                          plan.threads,
                                          static_cast<uint64_t>(plan.owners)};
  return Fnv1a::OfObjects(std::span<const uint64_t>(chosen));
}

bool IsLeft(const PlanContext& c, Collective collective, Protocol protocol) {
  const uint32_t allowed = c.allowed_protocols[static_cast<size_t>(collective)];
  return allowed == 0 || (allowed & Bit(protocol)) != 0;
}

// The key picks one of kRemembered entries. A remembered plan is used only if the whole question is
// equal. With a tuner the plan is made anew.
const Plan& Planner::For(const CollectiveTask& task, Buffers buffers) {
  const Question question = QuestionOf(context_, task, buffers);
  const size_t key = question.count * question.elem_bytes() +
                     static_cast<size_t>(question.collective) * 7 +
                     static_cast<size_t>(question.buffers) * 3;
  Remembered& entry = remembered_[key * 0x9E3779B97F4A7C15u >> 58];
  // A tuner has no name for the algorithms that take scattered buffers.
  CostAdviser* const adviser = buffers == Buffers::kScattered ? nullptr : adviser_;
  if (adviser != nullptr || entry.plan.row == nullptr || entry.question != question)
    entry = {question, MakePlan(context_, question, adviser)};
  return entry.plan;
}

Status Planner::CheckWishes(const CollectiveTask& task, Buffers buffers) const {
  if (!task.wishes.demands_algorithms || context_.num_ranks == 1 || task.plan_count() == 0)
    return Status::Ok();
  const Algorithm algorithm =
      Serves(context_.kind, task.collective)
          ? MakePlan(context_, QuestionOf(context_, task, buffers)).algorithm()
          : Algorithm::kExchange;
  if ((task.wishes.algorithms & Bit(algorithm)) != 0) return Status::Ok();
  return InvalidUsage("none of the algorithms that algSelection leaves serves this {} of {} bytes",
                      Name(task.collective), task.bytes());
}

}  // namespace tutti
