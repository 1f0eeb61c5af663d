// The card of a build without rdma-core's headers: there is none.

#include "gin/card.h"

namespace tutti {

namespace {

Status Absent() {
  return InvalidUsage(
      "this build has no GIN direct, because infiniband/mlx5dv.h (libibverbs-dev) was not there "
      "when it was configured");
}

}  // namespace

Result<std::vector<CardPort>> Card::Find(const Settings&, const GinOptions&) { return Absent(); }

Result<std::unique_ptr<Card>> Card::Open(const Settings&, const GinOptions&, const std::string&) {
  return Absent();
}

}  // namespace tutti
