#pragma once

// Writes pictures as PNG, in builds that found cairo's headers, where the library is found at run
// time.

#include <string>

#include "base/status.h"
#include "topo/picture.h"

namespace tutti::tools::topo {

// Writes `picture` to `path`, `scale` pixels for each of its own. InvalidUsage where there is
// no cairo, SystemError when the file cannot be written.
Status WritePng(const Picture& picture, double scale, const std::string& path);

}  // namespace tutti::tools::topo
