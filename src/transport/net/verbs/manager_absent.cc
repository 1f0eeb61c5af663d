// The RDMA connection manager of a build without its header: loading the manager fails.

#include "transport/net/verbs/manager.h"

namespace tutti {

Result<std::shared_ptr<const RdmaManager>> RdmaManager::Load(const std::string&) {
  return SystemError(
      "this build has no RDMA connection manager, because rdma/rdma_cma.h (librdmacm-dev) was not "
      "there when it was configured");
}

}  // namespace tutti
