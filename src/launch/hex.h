#pragma once

// Bytes as hexadecimal text, for what travels through variables and launchers. Pure functions.

#include <string>
#include <string_view>

#include "base/status.h"

namespace tutti::launch {

std::string ToHex(std::string_view bytes);
// Returns InvalidArgument for what is not an even number of lower-case digits.
Result<std::string> FromHex(std::string_view hex);

}  // namespace tutti::launch
