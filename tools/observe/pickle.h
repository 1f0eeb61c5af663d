#pragma once

// Writes JSON values in the form that Python's pickle reads (protocol 2: pickletools.py of Python
// describes the opcodes). An array becomes a list, an object a dict.

#include <nlohmann/json.hpp>
#include <string>

namespace tutti::tools {

// Returns the bytes of a file for pickle.load. REQUIRES: whole numbers fit into 64 bits with a
// sign, and texts are below 4 GiB.
std::string Pickle(const nlohmann::json& value);

}  // namespace tutti::tools
