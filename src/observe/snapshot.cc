#include "observe/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/text.h"

namespace tutti::observe {
namespace {

constexpr int32_t kMostRanks = 1 << 24;
constexpr size_t kMostRanksShown = 8;

// Names of collectives and types come from tables, and a bool must be 0 or 1.
bool IsSane(const OpSignature& signature) {
  unsigned char has_op = 0;
  std::memcpy(&has_op, reinterpret_cast<const char*>(&signature) + offsetof(OpSignature, has_op),
              1);
  return has_op <= 1 && static_cast<int>(signature.collective) < kNumCollectives &&
         static_cast<int>(signature.type) < kNumDataTypes;
}

void DecodeOperations(const OperationRecord& record, CommunicatorSnapshot& out) {
  const uint64_t under_way = record.under_way.load(std::memory_order_relaxed);
  out.begun = record.collectives.last();
  for (size_t i = 0; i < out.begun_of.size(); ++i)
    out.begun_of[i] = record.begun[i].load(std::memory_order_relaxed);
  out.in_collective = under_way == OperationRecord::kCollective && out.begun > 0;
  out.messages_begun = record.messages_begun.load(std::memory_order_relaxed);
  if (under_way != OperationRecord::kCollective)
    out.messages_under_way = std::min(under_way, out.messages_begun);
  const uint64_t kept = std::min(out.begun, RecentCollectives::kKept);
  for (uint64_t back = kept; back > 0; --back) {
    const std::optional<OpSignature> one = record.collectives.Find(out.begun - back + 1);
    if (one && IsSane(*one)) out.recent.push_back(*one);
  }
}

std::vector<RankName> DecodeNames(const RankNames& names, int num_ranks) {
  std::vector<RankName> out;
  const auto known = static_cast<size_t>(std::clamp(std::min(names.num_ranks, num_ranks), 0,
                                                    static_cast<int32_t>(RankNames::kMostRanks)));
  for (size_t i = 0; i < known; ++i) {
    const RankNames::Name& name = names.ranks[i];
    RankName one;
    one.pid = std::max(name.pid, 0);
    if (name.host >= 0 && static_cast<size_t>(name.host) < RankNames::kMostHosts)
      one.host = Printable(TextOf(names.hosts[static_cast<size_t>(name.host)]));
    out.push_back(std::move(one));
  }
  return out;
}

// Returns the ranks of a record that lists some ranks.
template <class Record>
std::vector<int> DecodeRanks(const Record& record, int num_ranks) {
  std::vector<int> ranks;
  const auto listed = static_cast<size_t>(
      std::clamp(record.num_ranks, 0, static_cast<int32_t>(Record::kMostRanks)));
  for (size_t i = 0; i < listed; ++i)
    if (record.ranks[i] >= 0 && record.ranks[i] < num_ranks) ranks.push_back(record.ranks[i]);
  return ranks;
}

void DecodeSlow(const SlowRecord& record, CommunicatorSnapshot& out) {
  SlowSnapshot slow = {.since_ns = record.since_ns,
                       .per_collective_ns = std::max<int64_t>(record.per_collective_ns, 0),
                       .share = std::clamp(static_cast<double>(record.cost_ppm) / 1e6, 0.0, 1.0),
                       .ranks = DecodeRanks(record, out.num_ranks)};
  if (!slow.ranks.empty()) out.slow = std::move(slow);
}

// A wait of an operation before the last, or of no operation, is over.
void DecodeWait(const CommunicatorRecord& record, CommunicatorSnapshot& out) {
  const std::optional<Awaited> awaited = record.awaited.Load();
  if (!awaited || awaited->collective != out.begun) return;
  if (!out.busy() && out.step.empty()) return;
  WaitSnapshot wait;
  wait.since_ns = awaited->since_ns;
  wait.seen_ns = awaited->seen_ns;
  wait.ranks = DecodeRanks(*awaited, out.num_ranks);
  wait.num_ranks = std::max(awaited->num_ranks, static_cast<int32_t>(wait.ranks.size()));
  if (!wait.ranks.empty()) out.wait = std::move(wait);
}

}  // namespace

const OpSignature* CommunicatorSnapshot::Find(uint64_t sequence) const {
  const auto found = std::find_if(recent.begin(), recent.end(),
                                  [&](const OpSignature& one) { return one.sequence == sequence; });
  return found == recent.end() ? nullptr : &*found;
}

std::optional<CommunicatorSnapshot> Decode(const CommunicatorRecord& record) {
  const std::optional<Identity> identity = record.identity.Load();
  if (!identity) return {};
  if (identity->num_ranks < 1 || identity->num_ranks > kMostRanks || identity->rank < 0 ||
      identity->rank >= identity->num_ranks)
    return {};
  CommunicatorSnapshot out;
  out.id = identity->id;
  out.meeting = identity->meeting;
  out.name = Printable(TextOf(identity->name));
  out.rank = identity->rank;
  out.num_ranks = identity->num_ranks;
  out.cuda_device = identity->cuda_device;
  out.place_use = identity->place_use;
  if (const std::optional<State> state = record.state.Load()) {
    out.phase_since_ns = state->since_ns;
    const auto phase = static_cast<int32_t>(state->phase);
    if (phase > 0 && phase < kNumPhases) out.phase = state->phase;
    if (out.phase == Phase::kStopped) {
      out.code = state->code;
      out.reason = Printable(TextOf(state->reason));
    }
  }
  DecodeOperations(record.operations, out);
  if (const std::optional<StepRecord> step = record.step.Load()) {
    out.step = Printable(TextOf(step->what));
    out.step_since_ns = step->since_ns;
  }
  DecodeWait(record, out);
  if (const std::optional<SlowRecord> slow = record.slow.Load()) DecodeSlow(*slow, out);
  out.waited_ns = std::max<int64_t>(record.waited_ns.load(std::memory_order_relaxed), 0);
  if (const std::optional<RankNames> names = record.names.Load())
    out.names = DecodeNames(*names, out.num_ranks);
  return out;
}

std::string ActivityOf(const CommunicatorSnapshot& one) {
  if (one.phase == Phase::kBeingMade) return "being made";
  if (!one.step.empty()) return one.step;
  if (one.messages_under_way > 0)
    return fmt::format("in a group of {} sends and receives after collective number {}",
                       one.messages_under_way, one.begun);
  if (one.begun == 0)
    return one.messages_begun == 0 ? "idle, no operation called yet"
                                   : "idle, no collective called yet";
  const OpSignature* const last = one.Find(one.begun);
  const std::string_view verb = one.in_collective      ? "in"
                                : one.cuda_device >= 0 ? "behind the launch of"
                                                       : "idle after";
  return fmt::format("{} collective number {}{}", verb, one.begun,
                     last != nullptr ? ", " + last->Describe() : std::string());
}

std::string NameOf(int rank, const std::vector<RankName>& names) {
  const auto at = static_cast<size_t>(rank);
  if (at >= names.size() || names[at].pid == 0) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (host {}, pid {})", rank, names[at].host, names[at].pid);
}

std::string NameAll(const std::vector<int>& ranks, const std::vector<RankName>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMostRanksShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", NameOf(ranks[i], names));
  if (ranks.size() > kMostRanksShown)
    text += fmt::format(" and {} more", ranks.size() - kMostRanksShown);
  return text;
}

std::string TitleOf(const std::string& name, uint64_t id) {
  return fmt::format("communicator {}{}{:016x}", name, name.empty() ? "" : " ", id);
}

std::string Describe(const SlowSnapshot& slow, const std::vector<RankName>& names) {
  return fmt::format("{} {} the others waiting, {:.2f} ms in each collective, {:.0f} % of the time",
                     NameAll(slow.ranks, names), slow.ranks.size() == 1 ? "keeps" : "keep",
                     static_cast<double>(slow.per_collective_ns) / 1e6, 100 * slow.share);
}

std::string Seconds(int64_t ns) { return fmt::format("{:.1f} s", static_cast<double>(ns) / 1e9); }

}  // namespace tutti::observe
