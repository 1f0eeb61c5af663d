#pragma once

// Reads what the kernel says of processors. These functions stand apart for tests to call; all
// production code uses FindProcessors of detect.h.

#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

// Reads a list of cores as the kernel writes it ("0-3,8"). Element i says whether the list has core
// i; the last element is the highest core's. Empty where the text is no such list.
std::vector<bool> ParseCoreList(std::string_view list);

// Returns uname's machine in the words of NCCL's XML.
std::string ArchitectureName(std::string_view machine);

}  // namespace tutti::topology
