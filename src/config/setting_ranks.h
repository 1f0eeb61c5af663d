#pragma once

// The column `ranks` of settings.def: the kinds of rank for which a setting has an effect. Only the
// documentation and tests read the column. tests/settings proves each kind of each row.

#include <string>
#include <string_view>

namespace tutti {

namespace setting_ranks {

// The kinds, as bits.
inline constexpr unsigned kHosts = 1;     // Ranks on processors.
inline constexpr unsigned kMesh = 2;      // Ranks on GPUs of one host, with access to one another.
inline constexpr unsigned kChannels = 4;  // Ranks on other GPUs, which channels join.
inline constexpr unsigned kGpus = kMesh | kChannels;
inline constexpr unsigned kAll = kHosts | kGpus;
inline constexpr unsigned kCoordinator = 8;  // The coordinator, whatever the kind of its ranks.

}  // namespace setting_ranks

// Returns the kinds of rank for which the setting has an effect, such as "hosts, channels"; empty
// for a name that is no setting.
std::string RanksText(std::string_view variable);

}  // namespace tutti
