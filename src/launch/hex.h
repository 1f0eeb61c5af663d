#pragma once

// Converts bytes to and from hexadecimal text, for values in variables and launchers' stores. Pure
// functions.

#include <string>
#include <string_view>

#include "base/status.h"

namespace tutti::launch {

std::string ToHex(std::string_view bytes);
// Returns InvalidArgument unless `hex` is an even number of lower-case digits.
Result<std::string> FromHex(std::string_view hex);

}  // namespace tutti::launch
