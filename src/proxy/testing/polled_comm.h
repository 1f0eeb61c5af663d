#pragma once

// A network for tests, made of another network's comms, without descriptors and op_tags. Plugins
// have neither.

#include <memory>
#include <utility>
#include <vector>

#include "transport/net/net.h"

namespace tutti {

// `Comm` is NetSendComm or NetRecvComm.
template <class Comm>
class PolledComm : public Comm {
 public:
  explicit PolledComm(std::unique_ptr<Comm> inner) : inner_(std::move(inner)) {}

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override {
    return inner_->Register(region);
  }
  bool CarriesOpTag() const override { return false; }
  Result<bool> Progress() override { return inner_->Progress(); }
  Result<bool> Test(NetRequest& request) override { return inner_->Test(request); }
  NetIdle PrepareToWait(std::vector<NetWait>&) override { return NetIdle::kPoll; }
  void AppendFds(std::vector<int>&) const override {}
  void Shutdown() override { inner_->Shutdown(); }
  std::string_view peer() const override { return inner_->peer(); }

 protected:
  Comm& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Comm> inner_;
};

class PolledSendComm final : public PolledComm<NetSendComm> {
 public:
  using PolledComm::PolledComm;
  Result<NetRequest*> Isend(const NetSend& message) override {
    NetSend without = message;
    without.op_tag = 0;
    return inner().Isend(without);
  }
  bool Drained() const override { return inner().Drained(); }
  size_t Undelivered() const override { return inner().Undelivered(); }
};

class PolledRecvComm final : public PolledComm<NetRecvComm> {
 public:
  using PolledComm::PolledComm;
  Result<NetRequest*> Irecv(std::span<const NetReceive> group) override {
    return inner().Irecv(group);
  }
  Result<NetRequest*> Iflush(std::span<const NetReceive> buffers) override {
    return inner().Iflush(buffers);
  }
};

}  // namespace tutti
