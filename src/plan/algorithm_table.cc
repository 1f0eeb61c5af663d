#include "plan/algorithm_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "plan/mesh_limits.h"

namespace tutti {
namespace {

// Say in words, for docs/algorithms.md, what the values in the columns of the table mean.
constexpr std::string_view Phrase(Where where) {
  switch (where) {
    case Where::kFifo:
      return "hosts: FIFOs";
    case Where::kStage:
      return "hosts: stages in shared memory";
    case Where::kBuffers:
      return "hosts: the users' buffers";
    case Where::kWindows:
      return "GPUs: windows";
    case Where::kWindowRing:
      return "GPUs: windows, round a ring";
    case Where::kWindowChain:
      return "GPUs: windows, down a chain";
    case Where::kRegistered:
      return "GPUs: registered buffers";
    case Where::kMessageChannels:
      return "GPUs: channels of messages";
    case Where::kChannelRing:
      return "GPUs: FIFOs, round a ring";
    case Where::kChannelRails:
      return "GPUs: FIFOs, inside hosts and along rails";
    case Where::kChannelTrees:
      return "GPUs: FIFOs, in trees over hosts and chains inside them";
    case Where::kChannelPairs:
      return "GPUs: FIFOs, to every rank";
  }
  return "";
}

std::string Phrase(Need need) {
  switch (need) {
    case Need::kOneHost:
      return "one host";
    case Need::kSeveralHosts:
      return "several hosts";
    case Need::kReadableBuffers:
      return "buffers that all ranks can read";
    case Need::kRegisteredBuffers:
      return "registered buffers";
    case Need::kThreeRanks:
      return "three ranks";
    case Need::kEqualHosts:
      return "several hosts of equally many ranks";
    case Need::kFewRanks:
      return fmt::format("at most {} ranks", kMostOneShotRanks);
    case Need::kSharedHosts:
      return "a host of several ranks";
  }
  return "";
}

constexpr std::string_view Phrase(AddingOrder order) {
  switch (order) {
    case AddingOrder::kAddsNothing:
      return "–";
    case AddingOrder::kRankOrder:
      return "rank order, rounded once";
    case AddingOrder::kRankOrderStored:
      return "rank order, partial sums stored";
    case AddingOrder::kOtherOrder:
      return "another";
  }
  return "";
}

// Returns the names of all values with a set bit, separated by commas, or "–" for none.
template <class Value, class NameOf>
std::string Listed(uint32_t bits, NameOf name_of) {
  std::string text;
  for (uint32_t v = 0; bits >> v != 0; ++v)
    if ((bits >> v & 1) != 0)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(static_cast<Value>(v)));
  return text.empty() ? "–" : text;
}

std::string MarkdownOf(const AlgorithmRow& row) {
  return fmt::format(
      "| {} | {} | {} | {} | {} | {} | `{}` |\n", Name(row.algorithm), Phrase(row.where),
      Listed<Collective>(row.collectives, [](Collective value) { return Name(value); }),
      Listed<Protocol>(row.protocols, [](Protocol value) { return Name(value); }),
      Listed<Need>(row.needs, [](Need value) { return Phrase(value); }), Phrase(row.order),
      row.file);
}

// Returns whether the rows differ in their collectives only.
bool AreAlike(const AlgorithmRow& a, const AlgorithmRow& b) {
  return a.algorithm == b.algorithm && a.where == b.where && a.protocols == b.protocols &&
         a.needs == b.needs && a.order == b.order && a.file == b.file;
}

}  // namespace

// Each row of the mesh is a kernel of its own. Rows that differ in their collectives only become
// one row of the page.
std::string AlgorithmTableMarkdown() {
  const auto hosts = RowsOf(RankKind::kHost);
  std::vector<AlgorithmRow> all(hosts.begin(), hosts.end());
  for (const AlgorithmRow& row : RowsOf(RankKind::kMesh)) {
    const auto alike = std::find_if(all.begin(), all.end(),
                                    [&](const AlgorithmRow& one) { return AreAlike(one, row); });
    if (alike == all.end())
      all.push_back(row);
    else
      alike->collectives |= row.collectives;
  }
  const auto channels = RowsOf(RankKind::kChannels);
  all.insert(all.end(), channels.begin(), channels.end());
  std::string text =
      "| `NCCL_ALGO` | works on | collectives | protocols | needs | adds in | source |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const AlgorithmRow& row : all) text += MarkdownOf(row);
  return text;
}

}  // namespace tutti
