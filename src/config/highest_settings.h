#pragma once

// The highest values of the settings with numbers, by field of Settings, for code that checks
// numbers from other ranks. The values come from the table of settings.

#include <cstdint>

namespace tutti {

struct HighestSettings {
#define FLAG(...)
#define INTEGER(field, variable, initial, low, high, ...) static constexpr int64_t field = high;
#define NUMBER(field, variable, initial, low, high, ...) static constexpr double field = high;
#define TEXT(...)
#define SECRET(...)
#define CHOICE(...)
#define PORTS(...)
#include "config/settings.def"
#undef FLAG
#undef INTEGER
#undef NUMBER
#undef TEXT
#undef SECRET
#undef CHOICE
#undef PORTS
};

}  // namespace tutti
