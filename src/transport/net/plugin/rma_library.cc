#include "transport/net/plugin/rma_library.h"

#include <cstddef>
#include <type_traits>

#include "base/log.h"
#include "transport/net/plugin/abi.h"

namespace tutti {
namespace {

// The layouts of the headers against which plugins were compiled.
static_assert(sizeof(tuttiGinDeviceProperties_t) == sizeof(netplugin::Properties12));
static_assert(offsetof(tuttiGinDeviceProperties_t, netDeviceType) == 56 &&
              offsetof(tuttiGinDeviceProperties_t, maxP2pBytes) == 104 &&
              offsetof(tuttiGinDeviceProperties_t, planeId) == 126);
static_assert(sizeof(tuttiGinDeviceHandle_t) == 32 && sizeof(tuttiGinConfig_v13_t) == 20 &&
              sizeof(tuttiGinConfig_v14_t) == 28 && sizeof(tuttiRmaConfig_v14_t) == 12 &&
              sizeof(tuttiGinProperties_v14_t) == 2);
static_assert(sizeof(tuttiGinTable_v13_t) == 168 && sizeof(tuttiGinTable_v14_t) == 136 &&
              sizeof(tuttiRmaTable_v14_t) == 168);
static_assert(offsetof(tuttiGinTable_v13_t, createContext) == 48 &&
              offsetof(tuttiGinTable_v13_t, regMrSym) == 56 &&
              offsetof(tuttiGinTable_v13_t, closeListen) == 96 &&
              offsetof(tuttiGinTable_v13_t, iput) == 104 &&
              offsetof(tuttiGinTable_v13_t, test) == 136 &&
              offsetof(tuttiGinTable_v13_t, finalize) == 160);
static_assert(offsetof(tuttiGinTable_v14_t, getGinProperties) == 24 &&
              offsetof(tuttiGinTable_v14_t, createContext) == 56 &&
              offsetof(tuttiGinTable_v14_t, ginProgress) == 112 &&
              offsetof(tuttiGinTable_v14_t, finalize) == 128);
static_assert(offsetof(tuttiRmaTable_v14_t, createContext) == 48 &&
              offsetof(tuttiRmaTable_v14_t, iputSignal) == 112 &&
              offsetof(tuttiRmaTable_v14_t, test) == 136 &&
              offsetof(tuttiRmaTable_v14_t, finalize) == 160);

// All windows of a communicator use one context, which keeps the order of each pair of ranks.
constexpr int kContext = 0;
constexpr int kContexts = 1;

std::string TextOf(const char* text) { return text != nullptr ? text : ""; }

// Calls a table of version 13 or 14. The two versions differ in the configuration of a context, in
// the handles for kernels, and in strong signals.
template <class Table>
class FunctionsOf final : public RmaFunctions {
 public:
  static constexpr bool kIsOld = std::is_same_v<Table, tuttiGinTable_v13_t>;

  explicit FunctionsOf(const Table& table) : table_(table) {}

  int version() const override { return kIsOld ? 13 : 14; }
  const char* name() const override { return table_.name; }

  ncclResult_t Init(uint64_t comm_id, void** context) override {
    return table_.init(context, comm_id, LogForPlugins());
  }
  ncclResult_t Finalize(void* context) override { return table_.finalize(context); }
  ncclResult_t Devices(int* count) override { return table_.devices(count); }
  ncclResult_t GetProperties(int device, PluginProperties* out, int* type) override {
    tuttiGinDeviceProperties_t own = {};
    const ncclResult_t result = table_.getProperties(device, &own);
    if (result != ncclSuccess) return result;
    out->name = TextOf(own.name);
    out->pci_path = TextOf(own.pciPath);
    out->guid = own.guid;
    out->memory_kinds = own.ptrSupport;
    out->speed_mbps = own.speed;
    out->port = own.port;
    out->latency_us = own.latency;
    *type = kIsOld ? own.netDeviceType : TUTTI_GIN_TYPE_PROXY;
    return ncclSuccess;
  }
  ncclResult_t Listen(void* context, int device, void* handle, void** listen_comm) override {
    return table_.listen(context, device, handle, listen_comm);
  }
  ncclResult_t Connect(void* context, void** handles, int num_ranks, int rank, void* listen_comm,
                       void** coll_comm) override {
    return table_.connect(context, handles, num_ranks, rank, listen_comm, coll_comm);
  }
  ncclResult_t CreateContext(void* coll_comm, void** made) override {
    if constexpr (kIsOld) {
      // Signals lie in registered memory, and counters belong to Tutti: the plugin makes neither.
      tuttiGinConfig_v13_t config = {};
      config.nContexts = kContexts;
      config.trafficClass = netplugin::kUndefinedTrafficClass;
      tuttiGinDeviceHandle_t* for_kernels = nullptr;
      return table_.createContext(coll_comm, &config, made, &for_kernels);
    } else {
      tuttiRmaConfig_v14_t config = {kContexts, netplugin::kUndefinedTrafficClass,
                                     /*rankStride=*/1};
      return table_.createContext(coll_comm, &config, made);
    }
  }
  ncclResult_t Register(void* coll_comm, void* data, size_t bytes, int type, uint64_t flags,
                        void** memory) override {
    if constexpr (kIsOld) {
      void* for_kernels = nullptr;
      return table_.regMrSym(coll_comm, data, bytes, type, flags, memory, &for_kernels);
    } else {
      return table_.regMrSym(coll_comm, data, bytes, type, flags, memory);
    }
  }
  // DMA-BUFs are optional in both versions.
  ncclResult_t RegisterDmabuf(void* coll_comm, void* data, size_t bytes, int type, uint64_t offset,
                              int fd, uint64_t flags, void** memory) override {
    if (table_.regMrSymDmaBuf == nullptr) return ncclInvalidUsage;
    if constexpr (kIsOld) {
      void* for_kernels = nullptr;
      return table_.regMrSymDmaBuf(coll_comm, data, bytes, type, offset, fd, flags, memory,
                                   &for_kernels);
    } else {
      return table_.regMrSymDmaBuf(coll_comm, data, bytes, type, offset, fd, flags, memory);
    }
  }
  ncclResult_t Deregister(void* coll_comm, void* memory) override {
    return table_.deregMrSym(coll_comm, memory);
  }
  ncclResult_t DestroyContext(void* made) override { return table_.destroyContext(made); }
  ncclResult_t CloseColl(void* coll_comm) override { return table_.closeColl(coll_comm); }
  ncclResult_t CloseListen(void* listen_comm) override { return table_.closeListen(listen_comm); }

  ncclResult_t Iput(void* made, Place from, size_t bytes, Place to, uint32_t rank,
                    void** request) override {
    return table_.iput(made, kContext, from.offset, from.memory, bytes, to.offset, to.memory, rank,
                       request);
  }
  ncclResult_t IputSignal(void* made, Place from, size_t bytes, Place to, uint32_t rank,
                          Place signal, uint64_t added, [[maybe_unused]] bool strong,
                          void** request) override {
    if constexpr (kIsOld) {
      return table_.iputSignal(made, kContext, from.offset, from.memory, bytes, to.offset,
                               to.memory, rank, signal.offset, signal.memory, added,
                               TUTTI_GIN_SIGNAL_ADD, request);
    } else {
      return table_.iputSignal(made, kContext, from.offset, from.memory, bytes, to.offset,
                               to.memory, rank, signal.offset, signal.memory, added,
                               TUTTI_GIN_SIGNAL_ADD, strong, request);
    }
  }
  ncclResult_t Iget(void* made, Place from, size_t bytes, Place to, uint32_t rank,
                    void** request) override {
    return table_.iget(made, kContext, from.offset, from.memory, bytes, to.offset, to.memory, rank,
                       request);
  }
  ncclResult_t Test(void* coll_comm, void* request, int* done) override {
    return table_.test(coll_comm, request, done);
  }
  ncclResult_t Progress(void* made) override {
    if constexpr (kIsOld) {
      return table_.ginProgress == nullptr ? ncclSuccess : table_.ginProgress(made);
    } else {
      return table_.rmaProgress == nullptr ? ncclSuccess : table_.rmaProgress(made);
    }
  }
  // A plugin without the function reports all errors by its calls.
  ncclResult_t QueryLastError(void* made, bool* has_error) override {
    *has_error = false;
    return table_.queryLastError == nullptr ? ncclSuccess : table_.queryLastError(made, has_error);
  }

 private:
  const Table& table_;
};

// Functions that only some plugins have, such as progress, are not needed here.
template <class Table>
std::unique_ptr<RmaFunctions> Make(const Table& table, std::string* missing) {
  const std::pair<const char*, bool> needed[] = {
      {"a name", table.name != nullptr},
      {"init", table.init != nullptr},
      {"devices", table.devices != nullptr},
      {"getProperties", table.getProperties != nullptr},
      {"listen", table.listen != nullptr},
      {"connect", table.connect != nullptr},
      {"createContext", table.createContext != nullptr},
      {"regMrSym", table.regMrSym != nullptr},
      {"deregMrSym", table.deregMrSym != nullptr},
      {"destroyContext", table.destroyContext != nullptr},
      {"closeColl", table.closeColl != nullptr},
      {"closeListen", table.closeListen != nullptr},
      {"iput", table.iput != nullptr},
      {"iputSignal", table.iputSignal != nullptr},
      {"iget", table.iget != nullptr},
      {"test", table.test != nullptr},
      {"finalize", table.finalize != nullptr},
  };
  for (const auto& [what, there] : needed) {
    if (!there) {
      *missing = what;
      return nullptr;
    }
  }
  return std::make_unique<FunctionsOf<Table>>(table);
}

// A table that a library may export, and the function that wraps the table.
struct Symbol {
  const char* name;
  std::unique_ptr<RmaFunctions> (*make)(const void* table, std::string* missing);
};

template <class Table>
std::unique_ptr<RmaFunctions> MakeFrom(const void* table, std::string* missing) {
  return Make(*static_cast<const Table*>(table), missing);
}

// In the order of preference, the newest first.
constexpr Symbol kSymbols[] = {
    {"ncclRmaPlugin_v14", MakeFrom<tuttiRmaTable_v14_t>},
    {"ncclRmaPlugin_v13", MakeFrom<tuttiGinTable_v13_t>},
    {"ncclGinPlugin_v13", MakeFrom<tuttiGinTable_v13_t>},
};

}  // namespace

std::unique_ptr<RmaFunctions> MakeRmaFunctions(const tuttiGinTable_v13_t& table,
                                               std::string* missing) {
  return Make(table, missing);
}

std::unique_ptr<RmaFunctions> MakeRmaFunctions(const tuttiRmaTable_v14_t& table,
                                               std::string* missing) {
  return Make(table, missing);
}

// A library with ncclGinPlugin_v14 alone has operations for kernels only, and an error of its own.
Result<std::shared_ptr<RmaLibrary>> RmaLibrary::Open(const PluginKind& kind,
                                                     const std::string& name) {
  TUTTI_ASSIGN(const PluginFile opened, PluginFile::Open(kind, name));
  const std::string& file = opened.name();
  const auto* const for_kernels =
      static_cast<const tuttiGinTable_v14_t*>(opened.Find("ncclGinPlugin_v14"));
  for (const Symbol& symbol : kSymbols) {
    const void* const table = opened.Find(symbol.name);
    if (table == nullptr) continue;
    std::string missing;
    auto functions = symbol.make(table, &missing);
    if (!functions)
      return InvalidUsage("the {} {} lacks {} in {}", kind.what, file, missing, symbol.name);
    TUTTI_INFO(kLogNet | kLogInit, "net: the {} {} has {}, \"{}\"", kind.what, file, symbol.name,
               functions->name());
    return std::shared_ptr<RmaLibrary>(new RmaLibrary(file, std::move(functions), for_kernels));
  }
  if (for_kernels != nullptr) {
    return InvalidUsage(
        "the {} {} has ncclGinPlugin_v14 and no ncclRmaPlugin_v14: its operations are kernels' "
        "alone, which Tutti's do not know",
        kind.what, file);
  }
  return InvalidUsage(
      "the {} {} has none of the tables ncclRmaPlugin_v14, ncclRmaPlugin_v13 and "
      "ncclGinPlugin_v13",
      kind.what, file);
}

// Without a table for kernels all properties are true, as in version 13.
ncclResult_t RmaLibrary::GetGinProperties(tuttiGinProperties_v14_t* properties) const {
  *properties = {true, true};
  if (for_kernels_ == nullptr || for_kernels_->getGinProperties == nullptr) return ncclSuccess;
  return for_kernels_->getGinProperties(properties);
}

}  // namespace tutti
