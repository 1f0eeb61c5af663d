#pragma once

// The two ends of a connection of a plugin's network.

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "transport/net/net.h"
#include "transport/net/plugin/plugin_context.h"

namespace tutti {

// The requests for which a plugin has room on one connection: NCCL's NCCL_NET_MAX_REQUESTS, which
// was 8 before version 8 of the interface.
inline constexpr uint64_t kPluginRequests = 32;
inline constexpr uint64_t kOldPluginRequests = 8;
constexpr uint64_t PluginRequests(int version) {
  return version >= 8 ? kPluginRequests : kOldPluginRequests;
}

// The shared part of both directions: the plugin's comm, the requests, and the first failure.
class PluginChannel {
 public:
  struct Request : NetRequest {
    void* request = nullptr;  // the plugin's; null: done, or not in flight
    bool in_flight = false;   // begun, and not yet tested as done by the caller
    int count = 0;            // buffers of a receive; 0: a send or a flush
    std::array<size_t, kMaxNetGroup> capacity = {};
    std::unique_ptr<NetEvents::Step> step;  // null: nobody wants reports of the request
  };

  enum class Direction : uint8_t { kSend, kReceive };

  PluginChannel(std::shared_ptr<PluginContext> context, Direction direction, void* comm,
                std::string peer)
      : context_(std::move(context)), direction_(direction), comm_(comm), peer_(std::move(peer)) {}
  ~PluginChannel() { Close(); }

  PluginContext& context() const { return *context_; }
  std::string_view peer() const { return peer_; }

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region);
  // Ends a registration, unless Close has ended it.
  void Deregister(void* handle);
  // Returns a free request, or null.
  Request* FreeRequest();
  // Calls a function of the plugin as call(functions, comm), unless the connection is closed.
  template <class F>
  Status Call(std::string_view what, F&& call) {
    bool closed = false;
    Status status = context_->Do(what, [&](PluginFunctions& plugin, void*) {
      closed = comm_ == nullptr;
      return closed ? ncclSuccess : call(plugin, comm_);
    });
    return closed ? Closed() : status;
  }
  // Returns the first failure, or a failure that says that the connection is closed.
  Status Check() const;
  static Status Closed() { return InternalError("this rank closed the connection"); }
  // Keeps the first failure and closes the connection, hence the other end notices it.
  Status Fail(Status status);

  Result<bool> Progress();
  Result<bool> Test(NetRequest& request);
  // Closes the connection. Any thread may call it, and later calls of other threads fail.
  void Close();
  bool Idle() const { return in_flight_ == 0; }
  // Returns the step of the next request. The step stays the same until the plugin takes a request,
  // hence a send that is tried again and again is reported once.
  NetEvents::Step* NextStep(size_t bytes);
  // Counts a send or a group of receives that the plugin has taken, with the step of NextStep.
  NetRequest* BegunStep(Request& request);
  // Counts a request without a step that the plugin has taken.
  NetRequest* Begun(Request& request);

 private:
  Status Take(Request& request, const std::array<int, kMaxNetGroup>& bytes);

  const std::shared_ptr<PluginContext> context_;
  const Direction direction_;
  // comm_ and registered_ are touched within Do only, since Close may come from any thread.
  void* comm_;  // null: closed
  std::set<void*> registered_;
  const std::string peer_;
  std::array<Request, kPluginRequests> requests_;
  std::unique_ptr<NetEvents::Step> next_step_;
  size_t in_flight_ = 0;
  std::atomic<bool> closed_ = false;  // comm_ is null; for readers outside of Do
  Status failure_;                    // only the driving thread uses it
};

// Implements the functions of a comm by the channel. `Base` is NetSendComm or NetRecvComm.
template <class Base>
class PluginComm : public Base {
 public:
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override {
    return channel_.Register(region);
  }
  bool CarriesOpTag() const override { return false; }
  Result<bool> Progress() override { return channel_.Progress(); }
  Result<bool> Test(NetRequest& request) override { return channel_.Test(request); }
  NetIdle PrepareToWait(std::vector<NetWait>&) override { return NetIdle::kPoll; }
  void AppendFds(std::vector<int>&) const override {}
  void Shutdown() override { channel_.Close(); }
  std::string_view peer() const override { return channel_.peer(); }

 protected:
  PluginComm(std::shared_ptr<PluginContext> context, PluginChannel::Direction direction, void* comm,
             std::string peer)
      : channel_(std::move(context), direction, comm, std::move(peer)) {}

  PluginChannel channel_;
};

class PluginSendComm final : public PluginComm<NetSendComm> {
 public:
  PluginSendComm(std::shared_ptr<PluginContext> context, void* comm, std::string peer)
      : PluginComm(std::move(context), PluginChannel::Direction::kSend, comm, std::move(peer)) {}

  Result<NetRequest*> Isend(const NetSend& message) override;
  bool Drained() const override { return channel_.Idle(); }
};

class PluginRecvComm final : public PluginComm<NetRecvComm> {
 public:
  PluginRecvComm(std::shared_ptr<PluginContext> context, void* comm, std::string peer)
      : PluginComm(std::move(context), PluginChannel::Direction::kReceive, comm, std::move(peer)) {}

  bool ReceivesAhead() const override { return false; }
  Result<NetRequest*> Irecv(std::span<const NetReceive> group) override;
  Result<NetRequest*> Iflush(std::span<const NetReceive> buffers) override;
};

}  // namespace tutti
