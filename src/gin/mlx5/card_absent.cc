// The card of a build without rdma-core's headers: there is none.

#include "gin/card.h"

namespace tutti {

Result<std::unique_ptr<Card>> Card::Open(const Settings&, const GinOptions&, int) {
  return InvalidUsage(
      "this build has no GIN direct, because infiniband/mlx5dv.h (libibverbs-dev) was not there "
      "when it was configured");
}

}  // namespace tutti
