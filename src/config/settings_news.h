#pragma once

// Collects what there is to say about the settings of this process once for the whole job.

#include <string>
#include <vector>

namespace tutti {

// Returns, once per process, a sentence for each thing that the first ReadProcessSettings found to
// be without effect: names (see ReviewNames) and lines of configuration files. All processes of a
// job usually find the same, so it is said by the one that has rank 0. Any thread.
std::vector<std::string> TakeSettingsNews();

}  // namespace tutti
