#include "config/setting_ranks.h"

#include <algorithm>
#include <span>
#include <utility>

#include "config/settings.h"

namespace tutti {

std::string RanksText(std::string_view variable) {
  using namespace setting_ranks;
  const std::span<const SettingInfo> all = AllSettings();
  const auto row = std::find_if(all.begin(), all.end(),
                                [&](const SettingInfo& one) { return one.variable == variable; });
  if (row == all.end()) return "";
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
