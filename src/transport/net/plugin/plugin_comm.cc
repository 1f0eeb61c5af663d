#include "transport/net/plugin/plugin_comm.h"

#include <algorithm>
#include <numeric>

namespace tutti {
namespace {

int TypeOf(NetMemoryKind kind) {
  return kind == NetMemoryKind::kGpu ? netplugin::kPtrGpu : netplugin::kPtrHost;
}

// A registration with a plugin. The channel of the registration outlives it.
class PluginMemory final : public NetMemory {
 public:
  PluginMemory(const NetRegion& region, PluginChannel& channel, void* handle)
      : NetMemory(region), channel_(channel), handle_(handle) {}
  ~PluginMemory() override { channel_.Deregister(handle_); }
  void* handle() const { return handle_; }

 private:
  PluginChannel& channel_;
  void* const handle_;
};

// Returns the plugin's handle of the registration; null where the caller gave no registration.
void* HandleOf(NetMemory* memory) {
  return memory != nullptr ? static_cast<PluginMemory*>(memory)->handle() : nullptr;
}

}  // namespace

// The handle enters registered_ within the same call of the plugin, hence Close on another thread
// cannot miss it.
Result<std::unique_ptr<NetMemory>> PluginChannel::Register(const NetRegion& region) {
  TUTTI_TRY(Check());
  void* handle = nullptr;
  const bool dmabuf = region.dmabuf_fd >= 0;
  TUTTI_TRY(Call(dmabuf ? "regMrDmaBuf" : "regMr", [&](PluginFunctions& plugin, void* comm) {
    const int type = TypeOf(region.kind);
    const ncclResult_t result =
        dmabuf ? plugin.RegisterDmabuf(comm, region.address, region.bytes, type,
                                       region.dmabuf_offset, region.dmabuf_fd, &handle)
               : plugin.Register(comm, region.address, region.bytes, type, &handle);
    if (result == ncclSuccess) registered_.insert(handle);
    return result;
  }));
  return std::unique_ptr<NetMemory>(std::make_unique<PluginMemory>(region, *this, handle));
}

void PluginChannel::Deregister(void* handle) {
  // A failure is ignored, since nothing depends on the registration any more.
  [[maybe_unused]] const Status status = Call("deregMr", [&](PluginFunctions& plugin, void* comm) {
    return registered_.erase(handle) == 0 ? ncclSuccess : plugin.Deregister(comm, handle);
  });
}

// Closes in the order that plugins are promised: memory first, then the comm.
void PluginChannel::Close() {
  [[maybe_unused]] const Status status =
      Call("closing a connection", [&](PluginFunctions& plugin, void* comm) {
        for (void* const handle : registered_) plugin.Deregister(comm, handle);
        registered_.clear();
        comm_ = nullptr;
        closed_.store(true, std::memory_order_release);
        return direction_ == Direction::kSend ? plugin.CloseSend(comm) : plugin.CloseRecv(comm);
      });
}

// Returns a free request, or null where the plugin has as many requests as its version allows.
PluginChannel::Request* PluginChannel::FreeRequest() {
  const auto limit = static_cast<ptrdiff_t>(PluginRequests(context_->version()));
  const auto free = std::find_if(requests_.begin(), requests_.begin() + limit,
                                 [](const Request& request) { return !request.in_flight; });
  return free == requests_.begin() + limit ? nullptr : &*free;
}

// The first failure has priority over the close that it caused.
Status PluginChannel::Check() const {
  if (!failure_.ok() || !closed_.load(std::memory_order_acquire)) return failure_;
  return Closed();
}

Status PluginChannel::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  Close();
  return failure_;
}

// The step is kept for the next attempt when the plugin takes no request now.
NetEvents::Step* PluginChannel::NextStep(size_t bytes) {
  if (!next_step_) next_step_ = context_->BeginStep(direction_ == Direction::kSend, bytes);
  return next_step_.get();
}

NetRequest* PluginChannel::BegunStep(Request& request) {
  request.step = std::move(next_step_);
  return Begun(request);
}

NetRequest* PluginChannel::Begun(Request& request) {
  request.in_flight = true;
  ++in_flight_;
  return &request;
}

// Tests all requests that are under way. A plugin moves data in `test` only, hence each is tested
// every time.
Result<bool> PluginChannel::Progress() {
  TUTTI_TRY(Check());
  bool moved = false;
  for (Request& request : requests_) {
    if (request.request == nullptr) continue;
    int done = 0;
    std::array<int, kMaxNetGroup> bytes = {};
    Status status = Call("test", [&](PluginFunctions& plugin, void*) {
      return plugin.Test(request.request, &done, bytes.data());
    });
    if (!status.ok()) return Fail(std::move(status));
    if (done == 0) continue;
    request.request = nullptr;
    request.step.reset();
    TUTTI_TRY(Take(request, bytes));
    moved = true;
  }
  return moved;
}

// Stores how much a finished receive has received, after a check of the plugin's numbers.
Status PluginChannel::Take(Request& request, const std::array<int, kMaxNetGroup>& bytes) {
  for (size_t i = 0; i < static_cast<size_t>(request.count); ++i) {
    if (bytes[i] < 0 || static_cast<size_t>(bytes[i]) > request.capacity[i]) {
      return Fail(InternalError("network plugin {}: test reports {} bytes in a buffer of {}",
                                context_->name(), bytes[i], request.capacity[i]));
    }
    request.received[i] = {static_cast<size_t>(bytes[i]), 0};
  }
  return Status::Ok();
}

// A finished request succeeds even after a later failure of the connection.
Result<bool> PluginChannel::Test(NetRequest& request) {
  auto& own = static_cast<Request&>(request);
  if (!own.in_flight) return InternalError("a request was tested that is not under way");
  if (own.request != nullptr) {
    TUTTI_TRY(Check());
    return false;
  }
  own.in_flight = false;
  --in_flight_;
  return true;
}

// A plugin gives no request before the receiver posts a buffer. The caller tries again, with this
// step.
Result<NetRequest*> PluginSendComm::Isend(const NetSend& message) {
  TUTTI_TRY(channel_.Check());
  if (message.bytes > kMaxNetMessageBytes) {
    return InternalError("a message of {} bytes is too long", message.bytes);
  }
  PluginChannel::Request* const request = channel_.FreeRequest();
  if (request == nullptr) return nullptr;
  void* begun = nullptr;
  NetEvents::Step* const step = channel_.NextStep(message.bytes);
  Status status = channel_.Call("isend", [&](PluginFunctions& plugin, void* comm) {
    return plugin.Isend(comm, const_cast<std::byte*>(message.data), message.bytes,
                        static_cast<int>(message.tag), HandleOf(message.memory), step, &begun);
  });
  if (!status.ok()) return channel_.Fail(std::move(status));
  if (begun == nullptr) return nullptr;
  request->request = begun;
  request->count = 0;
  return channel_.BegunStep(*request);
}

Result<NetRequest*> PluginRecvComm::Irecv(std::span<const NetReceive> group) {
  TUTTI_TRY(channel_.Check());
  if (group.empty() || group.size() > kMaxNetGroup) {
    return InternalError("a group of {} receives", group.size());
  }
  PluginChannel::Request* const request = channel_.FreeRequest();
  if (request == nullptr) return nullptr;
  std::array<void*, kMaxNetGroup> data = {};
  std::array<size_t, kMaxNetGroup> bytes = {};
  std::array<int, kMaxNetGroup> tags = {};
  std::array<void*, kMaxNetGroup> memory = {};
  for (size_t i = 0; i < group.size(); ++i) {
    data[i] = group[i].data;
    bytes[i] = group[i].capacity;
    tags[i] = static_cast<int>(group[i].tag);
    memory[i] = HandleOf(group[i].memory);
  }
  void* begun = nullptr;
  NetEvents::Step* const step =
      channel_.NextStep(std::accumulate(bytes.begin(), bytes.end(), size_t{0}));
  Status status = channel_.Call("irecv", [&](PluginFunctions& plugin, void* comm) {
    return plugin.Irecv(comm, static_cast<int>(group.size()), data.data(), bytes.data(),
                        tags.data(), memory.data(), step, &begun);
  });
  if (!status.ok()) return channel_.Fail(std::move(status));
  if (begun == nullptr) return nullptr;
  request->request = begun;
  request->count = static_cast<int>(group.size());
  for (size_t i = 0; i < group.size(); ++i) request->capacity[i] = group[i].capacity;
  return channel_.BegunStep(*request);
}

Result<NetRequest*> PluginRecvComm::Iflush(std::span<const NetReceive> buffers) {
  TUTTI_TRY(channel_.Check());
  if (buffers.empty() || buffers.size() > kMaxNetGroup) {
    return InternalError("a flush of {} buffers", buffers.size());
  }
  PluginChannel::Request* const request = channel_.FreeRequest();
  if (request == nullptr) return nullptr;
  std::array<void*, kMaxNetGroup> data = {};
  std::array<int, kMaxNetGroup> bytes = {};
  std::array<void*, kMaxNetGroup> memory = {};
  for (size_t i = 0; i < buffers.size(); ++i) {
    data[i] = buffers[i].data;
    bytes[i] = static_cast<int>(std::min(buffers[i].capacity, kMaxNetMessageBytes));
    memory[i] = HandleOf(buffers[i].memory);
  }
  void* begun = nullptr;
  Status status = channel_.Call("iflush", [&](PluginFunctions& plugin, void* comm) {
    return plugin.Iflush(comm, static_cast<int>(buffers.size()), data.data(), bytes.data(),
                         memory.data(), &begun);
  });
  if (!status.ok()) return channel_.Fail(std::move(status));
  // A plugin without anything to flush gives no request, and this request is done at once.
  request->request = begun;
  request->count = 0;
  return channel_.Begun(*request);
}

}  // namespace tutti
