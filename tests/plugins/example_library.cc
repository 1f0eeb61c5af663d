#include "example_library.h"

#include <fmt/format.h>

namespace tutti {

std::string ExampleFile(const char* kind, int version) {
  return fmt::format("{}/libnccl-{}-example_v{}.so", PLUGIN_FOLDER, kind, version);
}

}  // namespace tutti
