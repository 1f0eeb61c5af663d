#include "transport/net/plugin/plugin_net.h"

#include <time.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "transport/net/plugin/plugin_comm.h"

namespace tutti {
namespace {

// The pause between two calls of connect or accept.
constexpr int64_t kPauseNs = 200'000;

// The time in which a device must connect with itself, perhaps after looking for a route.
constexpr double kLoopSeconds = 10;

// Calls `attempt` until it gives a comm or fails, or `limits` end the wait. Null means "not yet".
Result<void*> AwaitComm(const WaitLimits& limits, std::string_view what,
                        const std::function<Status(void**)>& attempt) {
  int64_t followed_ns = NowNs();
  for (;;) {
    void* comm = nullptr;
    TUTTI_TRY(attempt(&comm));
    if (comm != nullptr) return comm;
    if (limits.Aborted()) return InternalError("{} was aborted", what);
    if (limits.deadline.Passed()) return Timeout("{} did not end in time", what);
    if (const int64_t now_ns = NowNs();
        now_ns - followed_ns >= int64_t{kAbortCheckMs} * 1'000'000) {
      followed_ns = now_ns;
      TUTTI_TRY(limits.Follow());
    }
    const timespec pause = {0, kPauseNs};
    nanosleep(&pause, nullptr);
  }
}

// Translates a plugin's description of a device. Senseless values are brought into range, because
// they come from foreign code.
NetDevice DeviceOf(const PluginProperties& properties, int version) {
  NetDevice device;
  device.name = properties.name;
  device.address = properties.name;
  device.speed_mbps = std::max(properties.speed_mbps, 0);
  device.latency_ns = static_cast<int64_t>(std::max(properties.latency_us, 0.0f) * 1000);
  device.guid = properties.guid;
  device.port = properties.port;
  device.pci_paths = {properties.pci_path};
  device.max_group = std::clamp(properties.max_recvs, 1, kMaxNetGroup);
  device.max_requests = PluginRequests(version);
  device.needs_registration = true;
  device.takes_gpu_memory = (properties.memory_kinds & netplugin::kPtrGpu) != 0;
  device.takes_dmabuf = (properties.memory_kinds & netplugin::kPtrDmabuf) != 0;
  device.registers_memory = device.takes_gpu_memory || device.takes_dmabuf;
  device.needs_flush = device.registers_memory || properties.force_flush;
  return device;
}

class PluginListener final : public NetListener {
 public:
  PluginListener(std::shared_ptr<PluginContext> context, void* comm, const NetHandle& handle)
      : context_(std::move(context)), comm_(comm), handle_(handle) {}
  ~PluginListener() override {
    [[maybe_unused]] const Status status =
        context_->Do("closeListen",
                     [this](PluginFunctions& plugin, void*) { return plugin.CloseListen(comm_); });
  }

  const NetHandle& handle() const override { return handle_; }

  // Stores a connection, or null where no connection has come.
  Status TryAccept(void** comm) {
    return context_->Do("accept",
                        [&](PluginFunctions& plugin, void*) { return plugin.Accept(comm_, comm); });
  }
  Result<std::unique_ptr<NetRecvComm>> Accept(const WaitLimits& limits) override {
    TUTTI_ASSIGN(void* const comm, AwaitComm(limits, "accepting a connection",
                                             [this](void** comm) { return TryAccept(comm); }));
    return std::unique_ptr<NetRecvComm>(
        std::make_unique<PluginRecvComm>(context_, comm, fmt::format("over {}", context_->name())));
  }

 private:
  const std::shared_ptr<PluginContext> context_;
  void* const comm_;
  const NetHandle handle_;
};

// A connection of a device with itself. Plugins register memory with connections only.
struct Loop {
  std::unique_ptr<PluginSendComm> sender;
  Mutex mutex;
  std::unique_ptr<PluginRecvComm> receiver TUTTI_GUARDED_BY(mutex);
};

// Memory that is registered with a loop.
class LoopMemory final : public NetMemory {
 public:
  LoopMemory(std::shared_ptr<Loop> loop, std::unique_ptr<NetMemory> held)
      : NetMemory(held->region()), loop_(std::move(loop)), held_(std::move(held)) {}
  ~LoopMemory() override {
    const MutexLock lock(loop_->mutex);
    held_.reset();
  }

 private:
  const std::shared_ptr<Loop> loop_;
  std::unique_ptr<NetMemory> held_;
};

class PluginNetImpl final : public Net {
 public:
  PluginNetImpl(std::shared_ptr<PluginContext> context, std::vector<NetDevice> devices)
      : context_(std::move(context)), devices_(std::move(devices)) {}

  std::string_view name() const override { return context_->name(); }
  const std::vector<NetDevice>& devices() const override { return devices_; }
  Status IsViable() const override { return Status::Ok(); }

  // A plugin that reports success without a listener would crash later, hence the check.
  Result<std::unique_ptr<NetListener>> Listen(int device) override {
    NetHandle handle = {};
    void* comm = nullptr;
    TUTTI_TRY(context_->Do("listen", [&](PluginFunctions& plugin, void* context) {
      return plugin.Listen(context, device, handle.data(), &comm);
    }));
    if (comm == nullptr) {
      return InternalError("network plugin {}: listen gave no listener", context_->name());
    }
    return std::unique_ptr<NetListener>(std::make_unique<PluginListener>(context_, comm, handle));
  }

  Result<std::unique_ptr<NetSendComm>> Connect(int device, const NetHandle& handle,
                                               const WaitLimits& limits) override {
    // Plugins keep the state of connect in the handle, from one call to the next.
    NetHandle own = handle;
    TUTTI_ASSIGN(void* const comm, AwaitComm(limits, "connecting", [&](void** comm) {
                   return context_->Do("connect", [&](PluginFunctions& plugin, void* context) {
                     return plugin.Connect(context, device, own.data(), comm);
                   });
                 }));
    return std::unique_ptr<NetSendComm>(
        std::make_unique<PluginSendComm>(context_, comm, fmt::format("over {}", context_->name())));
  }

  // Registers the memory with the device's loop. A plugin that takes memory there takes it on other
  // connections too, and each connection registers the memory for itself.
  Result<std::unique_ptr<NetMemory>> Register(int device, const NetRegion& region) override {
    TUTTI_ASSIGN(std::shared_ptr<Loop> loop, LoopOf(device));
    std::unique_ptr<NetMemory> held;
    {
      const MutexLock lock(loop->mutex);
      TUTTI_ASSIGN(held, loop->receiver->Register(region));
    }
    return std::unique_ptr<NetMemory>(
        std::make_unique<LoopMemory>(std::move(loop), std::move(held)));
  }

 private:
  Result<std::shared_ptr<Loop>> LoopOf(int device) {
    const MutexLock lock(mutex_);
    auto found = loops_.find(device);
    // A failure takes kLoopSeconds, hence a failed loop is not tried again.
    if (found == loops_.end()) found = loops_.emplace(device, MakeLoop(device)).first;
    return found->second;
  }
  Result<std::shared_ptr<Loop>> MakeLoop(int device);

  const std::shared_ptr<PluginContext> context_;
  const std::vector<NetDevice> devices_;
  Mutex mutex_;
  std::map<int, Result<std::shared_ptr<Loop>>> loops_ TUTTI_GUARDED_BY(mutex_);
};

// Connects both ends in turn, since both are driven here and neither may wait for the other.
Result<std::shared_ptr<Loop>> PluginNetImpl::MakeLoop(int device) {
  TUTTI_ASSIGN(std::unique_ptr<NetListener> listener, Listen(device));
  NetHandle handle = listener->handle();
  auto loop = std::make_shared<Loop>();
  const auto both = [&](void** comm) -> Status {
    if (loop->sender == nullptr) {
      void* sending = nullptr;
      TUTTI_TRY(context_->Do("connect", [&](PluginFunctions& plugin, void* context) {
        return plugin.Connect(context, device, handle.data(), &sending);
      }));
      if (sending != nullptr)
        loop->sender = std::make_unique<PluginSendComm>(context_, sending, "to itself");
    }
    const MutexLock lock(loop->mutex);
    if (loop->receiver == nullptr) {
      void* receiving = nullptr;
      TUTTI_TRY(static_cast<PluginListener&>(*listener).TryAccept(&receiving));
      if (receiving != nullptr)
        loop->receiver = std::make_unique<PluginRecvComm>(context_, receiving, "from itself");
    }
    *comm = loop->sender != nullptr && loop->receiver != nullptr ? loop.get() : nullptr;
    return Status::Ok();
  };
  const WaitLimits limits = {Deadline::AfterSeconds(kLoopSeconds), nullptr};
  TUTTI_TRY(AwaitComm(limits, "connecting a device with itself", both).status());
  return loop;
}

}  // namespace

// Calls the functions in the order that plugins are promised: init, devices, getProperties.
Result<std::unique_ptr<Net>> PluginNet::Create(std::shared_ptr<PluginLibrary> library,
                                               uint64_t comm_id,
                                               std::shared_ptr<NetEvents> events) {
  TUTTI_ASSIGN(std::shared_ptr<PluginContext> context,
               PluginContext::Create(std::move(library), comm_id, std::move(events)));
  int count = 0;
  TUTTI_TRY(context->Do("devices",
                        [&](PluginFunctions& plugin, void*) { return plugin.Devices(&count); }));
  if (count <= 0) return InvalidUsage("network plugin {} has no devices", context->name());
  std::vector<NetDevice> devices;
  for (int i = 0; i < count; ++i) {
    PluginProperties properties;
    TUTTI_TRY(context->Do("getProperties", [&](PluginFunctions& plugin, void*) {
      return plugin.GetProperties(i, &properties);
    }));
    devices.push_back(DeviceOf(properties, context->version()));
    TUTTI_INFO(kLogNet | kLogInit, "net {}: device {} is {}, {} Mb/s, port {}, {}", context->name(),
               i, devices.back().name, devices.back().speed_mbps, devices.back().port,
               properties.pci_path.empty() ? "not on PCI" : properties.pci_path);
  }
  return std::unique_ptr<Net>(
      std::make_unique<PluginNetImpl>(std::move(context), std::move(devices)));
}

}  // namespace tutti
