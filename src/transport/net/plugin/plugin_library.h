#pragma once

// A network plugin for NCCL, in the form in which its maker ships it: a shared library that exports
// tables of functions under the names ncclNetPlugin_v<N>. PluginLibrary opens a library and takes
// its newest known table. PluginFunctions calls a table of any version by the newest version's
// rules, hence no further code depends on versions.
//
// Tutti keeps NCCL's promises to plugins: init is the first call. devices and get_properties come
// before listen and connect. connect and accept are called again until they give a comm. A comm is
// closed after its memory is deregistered and its requests are tested to the end. finalize is the
// last call of a context. A plugin's functions must return at once. Any thread may call them, but
// no two threads at the same time for one context.

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/net/plugin/abi.h"
#include "transport/net/plugin/net_events.h"

namespace tutti {

// A plugin's description of a device: the properties of the newest version. Properties that an
// older plugin lacks keep the default values here.
struct PluginProperties {
  std::string name;
  std::string pci_path;
  uint64_t guid = 0;
  int memory_kinds = netplugin::kPtrHost;
  bool force_flush = false;
  int speed_mbps = 0;
  int port = 0;
  float latency_us = 0;
  int max_recvs = 1;
  size_t max_bytes = 0;  // the most bytes of one message; 0: no limit
};

// The functions of a plugin by the newest version's rules. Their results are the plugin's own.
class PluginFunctions {
 public:
  virtual ~PluginFunctions() = default;

  virtual int version() const = 0;
  virtual const char* name() const = 0;

  virtual ncclResult_t Init(uint64_t comm_id, void** context) = 0;
  virtual ncclResult_t Finalize(void* context) = 0;
  virtual ncclResult_t Devices(int* count) = 0;
  virtual ncclResult_t GetProperties(int device, PluginProperties* properties) = 0;
  virtual ncclResult_t Listen(void* context, int device, void* handle, void** listen_comm) = 0;
  virtual ncclResult_t Connect(void* context, int device, void* handle, void** send_comm) = 0;
  virtual ncclResult_t Accept(void* listen_comm, void** recv_comm) = 0;
  // Returns ncclInvalidArgument when the plugin's version cannot express `bytes`.
  virtual ncclResult_t Register(void* comm, void* data, size_t bytes, int type, void** memory) = 0;
  virtual ncclResult_t RegisterDmabuf(void* comm, void* data, size_t bytes, int type,
                                      uint64_t offset, int fd, void** memory) = 0;
  virtual ncclResult_t Deregister(void* comm, void* memory) = 0;
  // `step` lives until the request is done; null where nobody wants reports.
  virtual ncclResult_t Isend(void* send_comm, void* data, size_t bytes, int tag, void* memory,
                             NetEvents::Step* step, void** request) = 0;
  virtual ncclResult_t Irecv(void* recv_comm, int count, void** data, size_t* bytes, int* tags,
                             void** memory, NetEvents::Step* step, void** request) = 0;
  virtual ncclResult_t Iflush(void* recv_comm, int count, void** data, int* bytes, void** memory,
                              void** request) = 0;
  virtual ncclResult_t Test(void* request, int* done, int* bytes) = 0;
  virtual ncclResult_t CloseSend(void* send_comm) = 0;
  virtual ncclResult_t CloseRecv(void* recv_comm) = 0;
  virtual ncclResult_t CloseListen(void* listen_comm) = 0;
};

class PluginLibrary {
 public:
  // Opens the library of one name in NCCL_NET_PLUGIN (config/plugin_file.h). Every call for one
  // name returns the same object, since older plugins are initialised once in a process. Fails with
  // InvalidUsage and the reason when there is no such library, when the library has no table of a
  // known version, or when its table lacks a function.
  static Result<std::shared_ptr<PluginLibrary>> Open(const std::string& name);
  // The library stays loaded: plugins start threads that outlive their communicators.
  PluginLibrary(const PluginLibrary&) = delete;
  PluginLibrary& operator=(const PluginLibrary&) = delete;

  PluginFunctions& functions() const { return *functions_; }
  // Returns the file that was opened.
  const std::string& file() const { return file_; }

 private:
  static Result<std::shared_ptr<PluginLibrary>> Load(const std::string& name);
  PluginLibrary(std::string file, std::unique_ptr<PluginFunctions> functions)
      : file_(std::move(file)), functions_(std::move(functions)) {}

  const std::string file_;
  const std::unique_ptr<PluginFunctions> functions_;
};

// Returns the functions of `table`, a table of version `version`. Returns null for an unknown
// version, or when the table lacks a function that every plugin of its version has; `missing` then
// names the lack.
std::unique_ptr<PluginFunctions> MakePluginFunctions(int version, const void* table,
                                                     std::string* missing);

}  // namespace tutti
