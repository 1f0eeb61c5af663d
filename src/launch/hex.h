#pragma once

// Converts bytes to and from hexadecimal text, for values in variables and launchers' stores. Pure
// functions.

#include <string>
#include <string_view>

#include "base/status.h"
#include "bootstrap/unique_id.h"
#include "bootstrap/wire.h"

namespace tutti::launch {

std::string ToHex(std::string_view bytes);
inline std::string ToHex(const Key& key) { return ToHex(AsText(std::as_bytes(std::span(key)))); }
// Returns InvalidArgument unless `hex` is an even number of lower-case digits.
Result<std::string> FromHex(std::string_view hex);

}  // namespace tutti::launch
