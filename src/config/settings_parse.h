#pragma once

// Functions that make a value of the text of a variable. When a function fails, it leaves `value`
// alone, and returns InvalidUsage whose sentence names the variable, the text and the allowed
// values.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "config/settings.h"

namespace tutti::config {

// 0 or 1, and the words that people write for them (true, false, yes, no, on, off).
Status ParseFlag(std::string_view variable, std::string_view text, bool& value);

// Decimal, or hexadecimal after 0x; with unit "bytes" a letter K, M or G (powers of 1024) may
// follow.
Status ParseInteger(std::string_view variable, std::string_view text, int64_t low, int64_t high,
                    std::string_view unit, int64_t& value);

Status ParseNumber(std::string_view variable, std::string_view text, double low, double high,
                   std::string_view unit, double& value);

// Parses a word of "A|B|C" in any case; `value` gets the spelling of the list.
Status ParseChoice(std::string_view variable, std::string_view text, std::string_view choices,
                   std::string& value);

// Parses "low-high", or a single port.
Status ParsePorts(std::string_view variable, std::string_view text, PortRange& value);

}  // namespace tutti::config
