#pragma once

// The hosts of an elastic job, as users and discovery scripts name them. A pure function.

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti::elastic {

struct HostSlots {
  std::string host;
  int slots = 1;
  bool operator==(const HostSlots&) const = default;
};

// Reads lines (or fields between commas) "host" or "host:slots"; blank lines and lines that begin
// with # are skipped. A name that is doubled, a bad name or a bad number is an InvalidArgument.
Result<std::vector<HostSlots>> ParseHosts(std::string_view text, int default_slots);

}  // namespace tutti::elastic
