#pragma once

// Collects remarks about the settings of this process, to be made once for the whole job.

#include <string>
#include <vector>

namespace tutti {

// Returns, once per process, a sentence for each item without effect that the first
// ReadProcessSettings found: names (see ReviewNames) and lines of configuration files. All
// processes of a job usually find the same, so only the process with rank 0 says it. Any thread.
std::vector<std::string> TakeSettingsNews();

}  // namespace tutti
