#pragma once

// A bootstrap for tests, which override the functions that they need. Every function succeeds at
// once, moves nothing, and knows no other rank.

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace tutti::testing {

class IdleBootstrap : public Bootstrap {
 public:
  uint64_t id() const override { return 1; }
  const UniqueId& key_holder() const override { return key_; }
  Status AllGather(void*, size_t, Deadline, const std::atomic<bool>*) override {
    return Status::Ok();
  }
  Result<std::vector<Bytes>> AllGatherV(std::span<const std::byte>, Deadline) override {
    return std::vector<Bytes>();
  }
  Status Barrier(Deadline) override { return Status::Ok(); }
  Status Send(int, uint32_t, std::span<const std::byte>) override { return Status::Ok(); }
  Result<Bytes> Recv(int, uint32_t, Deadline) override { return Bytes(); }
  std::function<Status()> FollowWait(const char*, int, Deadline,
                                     const std::atomic<bool>*) override {
    return [] { return Status::Ok(); };
  }
  void SendControl(int, std::span<const std::byte>) override {}
  bool SendControlIfLinked(int peer, std::span<const std::byte> payload) override {
    SendControl(peer, payload);
    return true;
  }
  std::vector<int> LinkedRanks() const override { return {}; }
  int64_t RoundTripNs(int) override { return 0; }
  void SetEvents(Events) override {}
  void SetWaitListener(WaitListener*) override {}
  Status Complete() override { return Status::Ok(); }
  void GiveUp(const Status&) override {}
  void Cancel(Status) override {}
  Status CancelReason() override { return Status::Ok(); }
  std::vector<LostRank> LostRanks() override { return {}; }
  std::unique_ptr<Bootstrap> CreateChild(uint64_t, std::vector<int>, std::atomic<bool>*) override {
    return nullptr;
  }
  PhaseTimes phase_times() const override { return {}; }

 private:
  const UniqueId key_ = {};
};

}  // namespace tutti::testing
