#pragma once

// A plugin with one-sided operations (tutti/gin_plugin.h), in the form in which its maker ships it
// for NCCL's RMA and GIN. RmaLibrary opens a library and takes its newest known table. RmaFunctions
// calls a table of any version by the newest version's rules.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/plugin_file.h"
#include "transport/net/plugin/plugin_library.h"
#include "tutti/gin_plugin.h"

namespace tutti {

// The functions of a plugin. Their results are the plugin's own.
class RmaFunctions {
 public:
  virtual ~RmaFunctions() = default;

  virtual int version() const = 0;
  virtual const char* name() const = 0;

  virtual ncclResult_t Init(uint64_t comm_id, void** context) = 0;
  virtual ncclResult_t Finalize(void* context) = 0;
  virtual ncclResult_t Devices(int* count) = 0;
  // Sets `type` to the kind of agent that carries out operations (TUTTI_GIN_TYPE_*). A plugin of
  // version 14 has no type.
  virtual ncclResult_t GetProperties(int device, PluginProperties* properties, int* type) = 0;
  virtual ncclResult_t Listen(void* context, int device, void* handle, void** listen_comm) = 0;
  virtual ncclResult_t Connect(void* context, void** handles, int num_ranks, int rank,
                               void* listen_comm, void** coll_comm) = 0;
  virtual ncclResult_t CreateContext(void* coll_comm, void** made) = 0;
  virtual ncclResult_t Register(void* coll_comm, void* data, size_t bytes, int type, uint64_t flags,
                                void** memory) = 0;
  virtual ncclResult_t RegisterDmabuf(void* coll_comm, void* data, size_t bytes, int type,
                                      uint64_t offset, int fd, uint64_t flags, void** memory) = 0;
  virtual ncclResult_t Deregister(void* coll_comm, void* memory) = 0;
  virtual ncclResult_t DestroyContext(void* made) = 0;
  virtual ncclResult_t CloseColl(void* coll_comm) = 0;
  virtual ncclResult_t CloseListen(void* listen_comm) = 0;

  // A part of registered memory.
  struct Place {
    uint64_t offset = 0;
    void* memory = nullptr;
  };
  virtual ncclResult_t Iput(void* made, Place from, size_t bytes, Place to, uint32_t rank,
                            void** request) = 0;
  virtual ncclResult_t IputSignal(void* made, Place from, size_t bytes, Place to, uint32_t rank,
                                  Place signal, uint64_t added, bool strong, void** request) = 0;
  virtual ncclResult_t Iget(void* made, Place from, size_t bytes, Place to, uint32_t rank,
                            void** request) = 0;
  virtual ncclResult_t Test(void* coll_comm, void* request, int* done) = 0;
  virtual ncclResult_t Progress(void* made) = 0;
  virtual ncclResult_t QueryLastError(void* made, bool* has_error) = 0;
};

class RmaLibrary {
 public:
  // The kinds of library that may have a table, in the order of the search.
  static constexpr PluginKind kRma = {"libnccl-rma", "RMA plugin"};
  static constexpr PluginKind kGin = {"libnccl-gin", "GIN plugin"};
  static constexpr PluginKind kNet = {"libnccl-net", "network plugin"};

  // Opens the library of one name in a setting (config/plugin_file.h). Fails with InvalidUsage
  // and the reason when there is no such library, when the library has no table with data
  // operations, or when its table lacks a function.
  static Result<std::shared_ptr<RmaLibrary>> Open(const PluginKind& kind, const std::string& name);
  RmaLibrary(const RmaLibrary&) = delete;
  RmaLibrary& operator=(const RmaLibrary&) = delete;

  RmaFunctions& functions() const { return *functions_; }
  const std::string& file() const { return file_; }
  // Reads the properties from the library's table of version 14 for kernels. Without such a table
  // all properties are true. Must be called after init.
  ncclResult_t GetGinProperties(tuttiGinProperties_v14_t* properties) const;

 private:
  RmaLibrary(std::string file, std::unique_ptr<RmaFunctions> functions,
             const tuttiGinTable_v14_t* for_kernels)
      : file_(std::move(file)), functions_(std::move(functions)), for_kernels_(for_kernels) {}

  const std::string file_;
  const std::unique_ptr<RmaFunctions> functions_;
  const tuttiGinTable_v14_t* const for_kernels_;
};

// Return the functions of a table of version 13, which RMA and GIN share, or of version 14 of RMA.
// Return null when the table lacks a function that every plugin of its version has; `missing` then
// names the lack.
std::unique_ptr<RmaFunctions> MakeRmaFunctions(const tuttiGinTable_v13_t& table,
                                               std::string* missing);
std::unique_ptr<RmaFunctions> MakeRmaFunctions(const tuttiRmaTable_v14_t& table,
                                               std::string* missing);

}  // namespace tutti
