#include "config/setting_ranks.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tutti {
namespace {

using namespace setting_ranks;

struct Row {
  std::string_view variable;
  unsigned ranks;
};

constexpr Row kRows[] = {
#define FLAG(field, variable, initial, ranks, why) {#variable, ranks},
#define INTEGER(field, variable, initial, low, high, unit, ranks, why) {#variable, ranks},
#define NUMBER(field, variable, initial, low, high, unit, ranks, why) {#variable, ranks},
#define TEXT(field, variable, initial, form, ranks, why) {#variable, ranks},
#define SECRET(field, variable, form, ranks, why) {#variable, ranks},
#define CHOICE(field, variable, initial, choices, ranks, why) {#variable, ranks},
#define PORTS(field, variable, ranks, why) {#variable, ranks},
#include "config/settings.def"
};

constexpr bool IsKnown(unsigned ranks) {
  return ranks == kCoordinator || (ranks > 0 && ranks <= kAll);
}
static_assert(std::all_of(std::begin(kRows), std::end(kRows),
                          [](const Row& row) { return IsKnown(row.ranks); }),
              "a setting without effect belongs into ignored.def");

}  // namespace

std::string RanksText(std::string_view variable) {
  const auto* const row = std::find_if(std::begin(kRows), std::end(kRows),
                                       [&](const Row& one) { return one.variable == variable; });
  if (row == std::end(kRows)) return "";
  if (row->ranks == kAll) return "all";
  if (row->ranks == kGpus) return "GPUs";
  std::string text;
  constexpr std::pair<unsigned, std::string_view> kNames[] = {
      {kHosts, "hosts"}, {kMesh, "mesh"}, {kChannels, "channels"}, {kCoordinator, "coordinator"}};
  for (const auto& [kind, name] : kNames) {
    if ((row->ranks & kind) == 0) continue;
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

}  // namespace tutti
