#include "config/settings.h"

#include <cstdlib>

#include "config/setting_ranks.h"
#include "config/settings_parse.h"

namespace tutti {
namespace {

using config::ParseChoice;
using config::ParseFlag;
using config::ParseInteger;
using config::ParseNumber;
using config::ParsePorts;

std::string Show(bool value) { return value ? "1" : "0"; }
std::string Show(int64_t value) { return std::to_string(value); }
std::string Show(double value) { return fmt::format("{:.10g}", value); }
std::string Show(const std::string& value) { return value; }
std::string Show(const PortRange& value) {
  return value.any() ? "" : fmt::format("{}-{}", value.low, value.high);
}

// Returns "A|B|C" as "A, B or C".
std::string Sentence(std::string_view choices) {
  std::string text(choices);
  const size_t last = text.rfind('|');
  if (last != std::string::npos) text.replace(last, 1, " or ");
  for (size_t bar = text.find('|'); bar != std::string::npos; bar = text.find('|')) {
    text.replace(bar, 1, ", ");
  }
  return text;
}

// The two functions of a row: the first reads a text into the field, the second shows the field.
#define TUTTI_READ(expression)                                               \
  [](std::string_view text, [[maybe_unused]] Settings& settings) -> Status { \
    expression;                                                              \
    return Status::Ok();                                                     \
  }
#define TUTTI_SHOW(field) [](const Settings& settings) { return Show(settings.field); }

// Returns the kinds of rank of a row. A row of other kinds does not compile.
consteval unsigned Known(unsigned ranks) {
  using namespace setting_ranks;
  if (ranks != kCoordinator && (ranks == 0 || ranks > kAll))
    throw "a setting without effect belongs into ignored.def";
  return ranks;
}

std::vector<SettingInfo> MakeTable() {
  using namespace setting_ranks;
  std::vector<SettingInfo> table;
#define FLAG(field, variable, initial, ranks, why)                                          \
  table.push_back({#variable, "flag", Show(bool{initial}), "0 or 1", "", why, Known(ranks), \
                   TUTTI_READ(TUTTI_TRY(ParseFlag(#variable, text, settings.field))),       \
                   TUTTI_SHOW(field)});
#define INTEGER(field, variable, initial, low, high, unit, ranks, why)                         \
  table.push_back(                                                                             \
      {#variable, "integer", Show(int64_t{initial}), fmt::format("{} to {}", low, high), unit, \
       why, Known(ranks),                                                                      \
       TUTTI_READ(TUTTI_TRY(ParseInteger(#variable, text, low, high, unit, settings.field))),  \
       TUTTI_SHOW(field)});
#define NUMBER(field, variable, initial, low, high, unit, ranks, why)                         \
  table.push_back(                                                                            \
      {#variable, "number", Show(double{initial}),                                            \
       fmt::format("{:.10g} to {:.10g}", double{low}, double{high}), unit, why, Known(ranks), \
       TUTTI_READ(TUTTI_TRY(ParseNumber(#variable, text, low, high, unit, settings.field))),  \
       TUTTI_SHOW(field)});
#define TEXT(field, variable, initial, form, ranks, why)                    \
  table.push_back({#variable, "text", initial, form, "", why, Known(ranks), \
                   TUTTI_READ(settings.field = text), TUTTI_SHOW(field)});
#define SECRET(field, variable, form, ranks, why)                                    \
  table.push_back({#variable, "secret", "", form, "", why, Known(ranks),             \
                   TUTTI_READ(settings.field = text), [](const Settings& settings) { \
                     return std::string(settings.field.empty() ? "" : "(set)");      \
                   }});
#define CHOICE(field, variable, initial, choices, ranks, why)                                    \
  table.push_back({#variable, "choice", initial, Sentence(choices), "", why, Known(ranks),       \
                   TUTTI_READ(TUTTI_TRY(ParseChoice(#variable, text, choices, settings.field))), \
                   TUTTI_SHOW(field)});
#define PORTS(field, variable, ranks, why)                                                     \
  table.push_back({#variable, "ports", "", "low-high, from 1 to 65535", "", why, Known(ranks), \
                   TUTTI_READ(TUTTI_TRY(ParsePorts(#variable, text, settings.field))),         \
                   TUTTI_SHOW(field)});
#include "config/settings.def"
  return table;
}

const std::vector<SettingInfo>& Table() {
  static const std::vector<SettingInfo> table = MakeTable();
  return table;
}

}  // namespace

std::span<const SettingInfo> AllSettings() { return Table(); }

Environment ProcessEnvironment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

Result<Settings> ReadSettings(const Environment& environment) {
  Settings settings;
  for (const SettingInfo& row : Table()) {
    const char* text = environment(row.variable.data());
    if (text != nullptr && *text != '\0') TUTTI_TRY(row.read(text, settings));
  }
  return settings;
}

}  // namespace tutti
