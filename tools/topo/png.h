#pragma once

// Writes pictures as PNG, in builds that found cairo's headers. The library is looked up at run
// time.

#include <string>

#include "base/status.h"
#include "topo/picture.h"

namespace tutti::tools::topo {

// Writes `picture` to `path`, with `scale` pixels for each pixel of the picture. InvalidUsage
// without cairo, SystemError when the file cannot be written.
Status WritePng(const Picture& picture, double scale, const std::string& path);

}  // namespace tutti::tools::topo
