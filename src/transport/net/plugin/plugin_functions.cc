#include <algorithm>
#include <limits>
#include <type_traits>

#include "base/mutex.h"
#include "config/plugin_file.h"
#include "transport/net/plugin/plugin_library.h"

namespace tutti {
namespace {

// Receives the events that plugins report. From its start to its stop, a plugin keeps in `event` a
// NetEvents::Event, or null where nobody wants the event.
ncclResult_t TakeEvent(void** event, int type, void* handle, int64_t plugin, void* data) {
  if (event == nullptr) return ncclInvalidArgument;
  if (type == netplugin::kEventStart) {
    auto* const step = static_cast<NetEvents::Step*>(handle);
    *event = step != nullptr ? step->Begin(plugin, data).release() : nullptr;
    return ncclSuccess;
  }
  auto* const own = static_cast<NetEvents::Event*>(*event);
  if (own == nullptr) return ncclSuccess;
  if (type == netplugin::kEventUpdate || type == netplugin::kEventUpdateAndStop) own->Update(data);
  if (type == netplugin::kEventStop || type == netplugin::kEventUpdateAndStop) {
    delete own;
    *event = nullptr;
  }
  return ncclSuccess;
}

std::string TextOf(const char* text) { return text != nullptr ? text : ""; }

// Calls the table of one version. Differences between versions are resolved at compile time, hence
// a call costs no more than the plugin's own function.
template <int kVersion>
class FunctionsOf final : public PluginFunctions {
 public:
  using Table = netplugin::Table<kVersion>;
  using Size = typename Table::Size;
  using RegisterSize = typename Table::RegisterSize;

  explicit FunctionsOf(const Table& table) : table_(table) {}

  int version() const override { return kVersion; }
  const char* name() const override { return table_.name; }

  ncclResult_t Init(uint64_t comm_id, void** context) override {
    *context = nullptr;
    if constexpr (kVersion >= 11) {
      return table_.init(context, comm_id, &config_, LogForPlugins(), TakeEvent);
    } else {
      // An older plugin has one state for the process, and is initialised once.
      const MutexLock lock(mutex_);
      if (initialized_) return ncclSuccess;
      ncclResult_t result;
      if constexpr (kVersion == 10) {
        result = table_.init(LogForPlugins(), TakeEvent);
      } else {
        result = table_.init(LogForPlugins());
      }
      initialized_ = result == ncclSuccess;
      return result;
    }
  }
  // Before version 11 a plugin has no finalize, and its one state lives as long as the process.
  ncclResult_t Finalize([[maybe_unused]] void* context) override {
    if constexpr (kVersion >= 11) {
      if (table_.finalize != nullptr) return table_.finalize(context);
    }
    return ncclSuccess;
  }
  ncclResult_t Devices(int* count) override { return table_.devices(count); }
  ncclResult_t GetProperties(int device, PluginProperties* out) override;

  ncclResult_t Listen([[maybe_unused]] void* context, int device, void* handle,
                      void** listen_comm) override {
    if constexpr (kVersion >= 11) {
      return table_.listen(context, device, handle, listen_comm);
    } else {
      return table_.listen(device, handle, listen_comm);
    }
  }
  // The device handle is for device offload, which Tutti does not ask for.
  ncclResult_t Connect([[maybe_unused]] void* context, int device, void* handle,
                       void** send_comm) override {
    [[maybe_unused]] void* device_handle = nullptr;
    if constexpr (kVersion >= 11) {
      return table_.connect(context, device, handle, send_comm, &device_handle);
    } else if constexpr (kVersion == 10) {
      return table_.connect(device, &config_, handle, send_comm, &device_handle);
    } else if constexpr (kVersion >= 7) {
      return table_.connect(device, handle, send_comm, &device_handle);
    } else {
      return table_.connect(device, handle, send_comm);
    }
  }
  ncclResult_t Accept(void* listen_comm, void** recv_comm) override {
    if constexpr (kVersion >= 7) {
      void* device_handle = nullptr;
      return table_.accept(listen_comm, recv_comm, &device_handle);
    } else {
      return table_.accept(listen_comm, recv_comm);
    }
  }

  // Versions 6 and 7 count the bytes in an int, and longer regions must not be cut silently.
  ncclResult_t Register(void* comm, void* data, size_t bytes, int type, void** memory) override {
    if (!Fits<RegisterSize>(bytes)) return ncclInvalidArgument;
    return table_.reg_mr(comm, data, static_cast<RegisterSize>(bytes), type, memory);
  }
  // DMA-BUFs are optional. The caller falls back to an address, or to memory of the host.
  ncclResult_t RegisterDmabuf(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                              int fd, void** memory) override {
    if (table_.reg_mr_dmabuf == nullptr) return ncclInvalidUsage;
    return table_.reg_mr_dmabuf(comm, data, bytes, type, offset, fd, memory);
  }
  ncclResult_t Deregister(void* comm, void* memory) override {
    return table_.dereg_mr(comm, memory);
  }

  ncclResult_t Isend(void* send_comm, void* data, size_t bytes, int tag, void* memory,
                     [[maybe_unused]] NetEvents::Step* step, void** request) override {
    if (!Fits<Size>(bytes)) return ncclInvalidArgument;
    if constexpr (kVersion >= 10) {
      return table_.isend(send_comm, data, bytes, tag, memory, step, request);
    } else {
      return table_.isend(send_comm, data, static_cast<Size>(bytes), tag, memory, request);
    }
  }
  // All buffers of a group share one step, since the group has one request.
  ncclResult_t Irecv(void* recv_comm, int count, void** data, size_t* bytes, int* tags,
                     void** memory, [[maybe_unused]] NetEvents::Step* step,
                     void** request) override {
    if constexpr (kVersion >= 10) {
      void* profiler_handles[kMostRecvs] = {};
      std::fill_n(profiler_handles, count, step);
      return table_.irecv(recv_comm, count, data, bytes, tags, memory, profiler_handles, request);
    } else {
      Size sizes[kMostRecvs];
      for (int i = 0; i < count; ++i) {
        if (!Fits<Size>(bytes[i])) return ncclInvalidArgument;
        sizes[i] = static_cast<Size>(bytes[i]);
      }
      return table_.irecv(recv_comm, count, data, sizes, tags, memory, request);
    }
  }
  ncclResult_t Iflush(void* recv_comm, int count, void** data, int* bytes, void** memory,
                      void** request) override {
    if (table_.iflush == nullptr) return ncclInvalidUsage;
    return table_.iflush(recv_comm, count, data, bytes, memory, request);
  }
  ncclResult_t Test(void* request, int* done, int* bytes) override {
    return table_.test(request, done, bytes);
  }
  ncclResult_t CloseSend(void* send_comm) override { return table_.close_send(send_comm); }
  ncclResult_t CloseRecv(void* recv_comm) override { return table_.close_recv(recv_comm); }
  ncclResult_t CloseListen(void* listen_comm) override { return table_.close_listen(listen_comm); }

 private:
  static constexpr int kMostRecvs = 8;  // kMaxNetGroup of net.h

  template <class To>
  static bool Fits(size_t bytes) {
    return bytes <= static_cast<size_t>(std::numeric_limits<To>::max());
  }

  const Table& table_;
  netplugin::CommConfig config_;
  Mutex mutex_;
  bool initialized_ TUTTI_GUARDED_BY(mutex_) = false;
};

// A message must fit both of a plugin's limits, hence the lower of them counts.
template <int kVersion>
ncclResult_t FunctionsOf<kVersion>::GetProperties(int device, PluginProperties* out) {
  netplugin::Properties<kVersion> own = {};
  const ncclResult_t result = table_.get_properties(device, &own);
  if (result != ncclSuccess) return result;
  out->name = TextOf(own.name);
  out->pci_path = TextOf(own.pci_path);
  out->guid = own.guid;
  out->memory_kinds = own.ptr_support;
  out->speed_mbps = own.speed;
  out->port = own.port;
  out->latency_us = own.latency;
  out->max_recvs = own.max_recvs;
  if constexpr (kVersion >= 9) {
    out->force_flush = own.force_flush != 0;
    out->max_bytes = own.max_coll_bytes;
    if (own.max_p2p_bytes != 0 && (out->max_bytes == 0 || own.max_p2p_bytes < out->max_bytes)) {
      out->max_bytes = own.max_p2p_bytes;
    }
  }
  return ncclSuccess;
}

// Functions that only some plugins have, such as iflush, are not needed here; calls of them fail.
template <int kVersion>
std::unique_ptr<PluginFunctions> Make(const void* from, std::string* missing) {
  const auto& table = *static_cast<const netplugin::Table<kVersion>*>(from);
  const std::pair<const char*, bool> needed[] = {
      {"a name", table.name != nullptr},
      {"init", table.init != nullptr},
      {"devices", table.devices != nullptr},
      {"getProperties", table.get_properties != nullptr},
      {"listen", table.listen != nullptr},
      {"connect", table.connect != nullptr},
      {"accept", table.accept != nullptr},
      {"regMr", table.reg_mr != nullptr},
      {"deregMr", table.dereg_mr != nullptr},
      {"isend", table.isend != nullptr},
      {"irecv", table.irecv != nullptr},
      {"test", table.test != nullptr},
      {"closeSend", table.close_send != nullptr},
      {"closeRecv", table.close_recv != nullptr},
      {"closeListen", table.close_listen != nullptr},
  };
  for (const auto& [what, there] : needed) {
    if (!there) {
      *missing = what;
      return nullptr;
    }
  }
  return std::make_unique<FunctionsOf<kVersion>>(table);
}

}  // namespace

// The version decides the layout of `table`, hence the cast in Make is valid only for the table's
// own version.
std::unique_ptr<PluginFunctions> MakePluginFunctions(int version, const void* table,
                                                     std::string* missing) {
  switch (version) {
    case 6:
      return Make<6>(table, missing);
    case 7:
      return Make<7>(table, missing);
    case 8:
      return Make<8>(table, missing);
    case 9:
      return Make<9>(table, missing);
    case 10:
      return Make<10>(table, missing);
    case 11:
      return Make<11>(table, missing);
    case 12:
      return Make<12>(table, missing);
    default:
      *missing = "a known version";
      return nullptr;
  }
}

}  // namespace tutti
