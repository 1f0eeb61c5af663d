#include "backend/host/wait_context.h"

namespace tutti {

void WaitContext::AfterSleep(std::span<const int> peers, int64_t before_ns) {
  if (wait_since_ns_ == 0) wait_since_ns_ = before_ns;
  for (ProxyConnection* proxy : connections_) {
    if (Status status = proxy->status(); !status.ok()) return Fail(std::move(status));
  }
  if (Status status = watcher_.OnLongWait(peers, NowNs() - wait_since_ns_); !status.ok())
    Fail(std::move(status));
}

}  // namespace tutti
