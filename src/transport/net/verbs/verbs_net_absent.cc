// The network over verbs of a build without rdma-core's headers: IsViable names the lack.

#include "transport/net/verbs/verbs_net.h"

namespace tutti {
namespace {

class AbsentNet final : public Net {
 public:
  std::string_view name() const override { return "IB"; }
  const std::vector<NetDevice>& devices() const override { return devices_; }
  Status IsViable() const override {
    return InvalidUsage(
        "this build has no network over verbs, because infiniband/verbs.h (libibverbs-dev) was not "
        "there when it was configured");
  }
  Result<std::unique_ptr<NetListener>> Listen(int) override { return IsViable(); }
  Result<std::unique_ptr<NetSendComm>> Connect(int, const NetHandle&, const WaitLimits&) override {
    return IsViable();
  }

 private:
  const std::vector<NetDevice> devices_;
};

}  // namespace

Result<std::unique_ptr<Net>> VerbsNet::Create(EventLoop&, const Key&, const Settings&,
                                              const Options&) {
  return std::unique_ptr<Net>(std::make_unique<AbsentNet>());
}

}  // namespace tutti
