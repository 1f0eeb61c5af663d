// Takes the place of the module in a build without it.

#include "gin/direct.h"

namespace tutti {
namespace {

Status Absent() {
  return InvalidUsage(
      "this build has no GIN direct: when it was configured, TUTTI_GIN_DIRECT was OFF or "
      "infiniband/mlx5dv.h (libibverbs-dev) was not there");
}

}  // namespace

Result<std::vector<CardPort>> FindDirectPorts(const Settings&) { return Absent(); }

Result<std::unique_ptr<DirectCard>> OpenDirectCard(const Settings&, const std::string&,
                                                   const cuda::Device*) {
  return Absent();
}

}  // namespace tutti
