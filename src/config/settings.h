#pragma once

// Config: every setting of Tutti, in a single table (settings.def), the source of the struct below,
// its reader and docs/settings.md.
//
// Settings are a plain value, read once where the library is entered and handed down by
// constructors; nothing else in the library calls getenv. A value that cannot be understood is an
// error whose sentence names the variable, the value and the allowed values. Variables come from
// the environment, then from the file named by NCCL_CONF_FILE (or ~/.nccl.conf), then from
// /etc/nccl.conf; the first source with a variable wins. An environment plugin (env_plugin.h)
// stands in for the environment.
//
// Everything here may be called from any thread, as long as none calls setenv meanwhile.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/erased.h"
#include "base/status.h"

namespace tutti {

// TCP ports from low to high, both included; 0-0 leaves the choice to the kernel.
struct PortRange {
  uint16_t low = 0;
  uint16_t high = 0;
  bool any() const { return high == 0; }
  friend bool operator==(const PortRange&, const PortRange&) = default;
};

struct Settings {
#define FLAG(field, variable, initial, ranks, why) bool field = initial;
#define INTEGER(field, variable, initial, low, high, unit, ranks, why) int64_t field = initial;
#define NUMBER(field, variable, initial, low, high, unit, ranks, why) double field = initial;
#define TEXT(field, variable, initial, form, ranks, why) std::string field = initial;
#define SECRET(field, variable, form, ranks, why) ErasedText field;
#define CHOICE(field, variable, initial, choices, ranks, why) std::string field = initial;
#define PORTS(field, variable, ranks, why) PortRange field;
#include "config/settings.def"
#undef FLAG
#undef INTEGER
#undef NUMBER
#undef TEXT
#undef SECRET
#undef CHOICE
#undef PORTS
  // The variable or file that gave comm_key; empty without a secret (config/secret.h).
  std::string secret_source;
  // The key of ncclSetEncryption, which protects data beside the secret of the job; empty without
  // such a key.
  ErasedText encryption_key;
};

// Gives the text of a variable, or null when the variable is not set. The text lives as long as the
// Environment.
using Environment = std::function<const char*(const char* name)>;

// Returns the process's own environment.
Environment ProcessEnvironment();

// Returns the process's environment with the configuration files behind it. Environment plugins
// have no part.
Environment ProcessVariables();

// Returns the settings that `environment` asks for. An empty text counts as not set. InvalidUsage
// when a value is not allowed.
Result<Settings> ReadSettings(const Environment& environment);

// Reads the settings of this process from its environment and the configuration files, and tells
// the log where to write. The setting comm_key is the secret of the job from any source (secret.h).
// Variables without effect, as found by the first call, are kept for settings_news.h.
Result<Settings> ReadProcessSettings();

// A setting as data, for documentation and for the parameter calls of the API.
struct SettingInfo {
  std::string_view variable;
  std::string_view type;     // "flag", "integer", "number", "text", "secret", "choice", "ports"
  std::string default_text;  // empty: not set
  std::string allowed;       // "0 or 1", "0.01 to 1000000", "AF_INET or AF_INET6", …
  std::string_view unit;     // empty: none
  std::string_view why;
  unsigned ranks;  // the kinds of rank with an effect (setting_ranks.h)
  // Sets the field named by `text` in `settings`; InvalidUsage names the variable, the value and
  // the allowed values.
  Status (*read)(std::string_view text, Settings& settings);
  // Returns the value in `settings` as a user would write it; "(set)" for a secret that is set.
  std::string (*format)(const Settings& settings);
};

// Returns all settings in the order of the table.
std::span<const SettingInfo> AllSettings();

// Returns a sentence for each of `names`, given as NAME=VALUE, that begins with NCCL_ or TUTTI_ and
// has no effect here: names known to mean nothing, unless the value asks for Tutti's ordinary
// behaviour, and unknown names, with the nearest existing name where a near one exists.
std::vector<std::string> ReviewNames(std::span<const std::string> names);

// Returns the text of docs/settings.md.
std::string SettingsMarkdown();

}  // namespace tutti
