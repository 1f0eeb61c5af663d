// The texts about settings: the page of documentation, and the review of variable names.

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "config/setting_ranks.h"
#include "config/settings.h"

namespace tutti {
namespace {

struct IgnoredName {
  std::string_view variable;
  std::string_view off;  // the value that asks for Tutti's ordinary behaviour; empty: none
  std::string_view reason;
};

std::span<const IgnoredName> IgnoredNames() {
  static const std::vector<IgnoredName> names = {
#define IGNORED(variable, off, reason) {#variable, off, reason},
#define PROGRAM(variable, meaning)
#define SILENT(variable)
#include "config/ignored.def"
#undef IGNORED
#undef PROGRAM
#undef SILENT
  };
  return names;
}

const std::set<std::string_view>& SilentNames() {
  static const std::set<std::string_view> names = {
#define IGNORED(variable, off, reason)
#define PROGRAM(variable, meaning) #variable,
#define SILENT(variable) #variable,
#include "config/ignored.def"
#undef IGNORED
#undef PROGRAM
#undef SILENT
  };
  return names;
}

// Levenshtein's distance: how many letters must be added, taken or changed to turn the first word
// into the second.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

// Returns the setting whose name is nearest to `name`, or nothing when none is near enough to be
// meant.
std::string_view NearestSetting(std::string_view name) {
  // Three slips at most: with more, names that differ in a whole word would come out as
  // suggestions.
  constexpr size_t kMostSlips = 3;
  size_t best_distance = kMostSlips + 1;
  std::string_view best;
  for (const SettingInfo& setting : AllSettings()) {
    const size_t distance = EditDistance(name, setting.variable);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = setting.variable;
  }
  return best;
}

bool IsSetting(std::string_view name) {
  const auto settings = AllSettings();
  return std::any_of(settings.begin(), settings.end(),
                     [&](const SettingInfo& setting) { return setting.variable == name; });
}

// Returns an empty sentence when nothing is to be said about the name with this value.
std::string ReviewName(std::string_view name, std::string_view value) {
  if (!name.starts_with("NCCL_") && !name.starts_with("TUTTI_")) return "";
  if (IsSetting(name) || SilentNames().contains(name)) return "";
  for (const IgnoredName& ignored : IgnoredNames()) {
    if (ignored.variable != name) continue;
    if (value.empty() || (!ignored.off.empty() && value == ignored.off)) return "";
    return fmt::format("{} is set but ignored: {}", name, ignored.reason);
  }
  const std::string_view nearest = NearestSetting(name);
  if (nearest.empty()) return fmt::format("{} is set, but there is no such setting", name);
  return fmt::format("{} is set, but there is no such setting; is {} meant?", name, nearest);
}

// A vertical bar would end the cell of a table.
std::string Cell(std::string_view text) {
  std::string cell;
  for (const char letter : text) {
    if (letter == '|') cell += '\\';
    cell += letter;
  }
  return cell;
}

std::string SettingRow(const SettingInfo& setting) {
  const std::string initial =
      setting.default_text.empty() ? "not set" : fmt::format("`{}`", setting.default_text);
  std::string allowed = setting.allowed;
  if (!setting.unit.empty()) allowed += fmt::format(" {}", setting.unit);
  if (setting.unit == "bytes") allowed += "; K, M or G may follow";
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", setting.variable, initial, Cell(allowed),
                     RanksText(setting.variable), Cell(setting.why));
}

}  // namespace

std::vector<std::string> ReviewNames(std::span<const std::string> names) {
  std::vector<std::string> sentences;
  for (const std::string_view text : names) {
    const size_t end = std::min(text.find('='), text.size());
    std::string sentence =
        ReviewName(text.substr(0, end), text.substr(std::min(end + 1, text.size())));
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
  }
  return sentences;
}

std::string SettingsMarkdown() {
  std::string page =
      "# Settings\n\n"
      "<!-- Written by `make docs` from src/config/settings.def and src/config/ignored.def. -->\n\n"
      "A setting is an environment variable. Where the environment does not have it, the file "
      "that\n"
      "`NCCL_CONF_FILE` names (`~/.nccl.conf` when that is not set) is asked, then "
      "`/etc/nccl.conf`: lines of\n"
      "`NAME=VALUE`, `#` begins a comment. A value that is not allowed stops initialisation with a "
      "sentence.\n"
      "Names that begin with `NCCL_` mean what they mean to NCCL; Tutti's own begin with "
      "`TUTTI_`.\n\n"
      "Ranks are the kinds of rank for which a setting has an effect: `hosts` are ranks on "
      "processors, `mesh`\n"
      "are ranks on GPUs of one host that reach one another's memory or share the host's, and "
      "`channels` are\n"
      "ranks on all other GPUs, as of several hosts. `GPUs` are both, and `all` are all three. "
      "`coordinator`\n"
      "is the coordinator (coordinator.md) over ranks of any kind. A mesh with teams of windows "
      "(`NCCL_LSA_TEAM_SIZE`)\n"
      "puts over sockets between teams, and settings of sockets then count there.\n\n"
      "| Variable | Default | Allowed | Ranks | Why |\n"
      "|---|---|---|---|---|\n";
  for (const SettingInfo& setting : AllSettings()) page += SettingRow(setting);

  page +=
      "\n## Read by programs\n\n"
      "| Variable | Why |\n"
      "|---|---|\n";
#define IGNORED(variable, off, reason)
#define PROGRAM(variable, meaning) page += fmt::format("| `{}` | {} |\n", #variable, Cell(meaning));
#define SILENT(variable)
#include "config/ignored.def"
#undef IGNORED
#undef PROGRAM
#undef SILENT

  page +=
      "\n## Without effect\n\n"
      "These names of NCCL mean nothing here. Rank 0 says so once where one is set, unless to the "
      "value in\n"
      "brackets, which asks for what is done anyway.\n\n"
      "| Why | Variables |\n"
      "|---|---|\n";
  std::map<std::string_view, std::string> by_reason;
  for (const IgnoredName& ignored : IgnoredNames()) {
    std::string& list = by_reason[ignored.reason];
    fmt::format_to(std::back_inserter(list), "{}`{}`", list.empty() ? "" : ", ", ignored.variable);
    if (!ignored.off.empty()) fmt::format_to(std::back_inserter(list), " (`{}`)", ignored.off);
  }
  for (const auto& [reason, list] : by_reason) {
    page += fmt::format("| {} | {} |\n", Cell(reason), list);
  }
  return page;
}

}  // namespace tutti
