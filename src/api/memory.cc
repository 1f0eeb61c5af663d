// Memory that other ranks can map, and registration.

#include <map>
#include <mutex>

#include "api/context.h"
#include "backend/cuda/driver.h"
#include "nccl.h"

namespace tutti::api {
namespace {

// What ncclMemAlloc gave out on GPUs: the context that each address belongs to.
class DeviceBlocks {
 public:
  Result<void*> Allocate(int device, size_t size) {
    TUTTI_ASSIGN(const cuda::Driver* const driver, cuda::Driver::Find());
    cuda::Context context = nullptr;
    TUTTI_TRY(driver->Check(driver->PrimaryContextRetain(&context, device), "opening a GPU"));
    const cuda::ContextScope scope(*driver, context);
    cuda::DeviceAddress address = 0;
    Status status =
        driver->Check(driver->MemAlloc(&address, size),
                      fmt::format("allocating {} bytes on CUDA device {}", size, device));
    if (!status.ok()) {
      driver->PrimaryContextRelease(device);
      return status;
    }
    std::lock_guard lock(mutex_);
    blocks_[address] = {context, device};
    return reinterpret_cast<void*>(address);
  }
  // False: it is no memory of a GPU.
  Result<bool> Free(void* pointer) {
    const auto address = static_cast<cuda::DeviceAddress>(reinterpret_cast<uintptr_t>(pointer));
    Block block;
    {
      std::lock_guard lock(mutex_);
      const auto found = blocks_.find(address);
      if (found == blocks_.end()) return false;
      block = found->second;
      blocks_.erase(found);
    }
    TUTTI_ASSIGN(const cuda::Driver* const driver, cuda::Driver::Find());
    const cuda::ContextScope scope(*driver, block.context);
    TUTTI_TRY(driver->Check(driver->MemFree(address), "freeing memory of a GPU"));
    TUTTI_TRY(driver->Check(driver->PrimaryContextRelease(block.device), "closing a GPU"));
    return true;
  }

 private:
  struct Block {
    cuda::Context context = nullptr;
    int device = 0;
  };
  std::mutex mutex_;
  std::map<cuda::DeviceAddress, Block> blocks_;
};

DeviceBlocks& Blocks() {
  static auto* const blocks = new DeviceBlocks;
  return *blocks;
}

Status MemAlloc(void** out, size_t size) {
  if (out == nullptr) return InvalidArgument("ptr is null");
  *out = nullptr;
  if (size == 0) return Status::Ok();
  TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
  TUTTI_ASSIGN(const int device, Process::CurrentDevice(settings));
  if (device >= 0) {
    TUTTI_ASSIGN(*out, Blocks().Allocate(device, size));
    return Status::Ok();
  }
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  TUTTI_ASSIGN(*out, process->memory().Allocate(size));
  return Status::Ok();
}

Status MemFree(void* pointer) {
  if (pointer == nullptr) return Status::Ok();
  TUTTI_ASSIGN(const bool freed, Blocks().Free(pointer));
  if (freed) return Status::Ok();
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  return process->memory().Free(pointer);
}

// Registration announces buffers; on a host nothing need be prepared, so a handle only proves that
// it was given out.
Status Register(ncclComm_t comm, void* buffer, size_t size, void** handle) {
  TUTTI_TRY(CheckHandle(comm));
  if (handle == nullptr) return InvalidArgument("handle is null");
  *handle = nullptr;
  if (buffer == nullptr || size == 0) return InvalidArgument("the buffer is empty");
  std::lock_guard lock(comm->mutex);
  comm->registrations.push_back(std::make_unique<char>());
  *handle = comm->registrations.back().get();
  return Status::Ok();
}

Status Deregister(ncclComm_t comm, void* handle) {
  TUTTI_TRY(CheckHandle(comm));
  if (handle == nullptr) return Status::Ok();
  std::lock_guard lock(comm->mutex);
  if (std::erase_if(comm->registrations, [&](const auto& r) { return r.get() == handle; }) == 0)
    return InvalidArgument("the handle was not given out by ncclCommRegister of this communicator");
  return Status::Ok();
}

Status MemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  TUTTI_TRY(CheckReady(comm));
  if (value == nullptr) return InvalidArgument("value is null");
  switch (stat) {
    case ncclStatGpuMemSuspend:
    case ncclStatGpuMemSuspended:
      *value = 0;
      return Status::Ok();
    case ncclStatGpuMemPersist:
    case ncclStatGpuMemTotal:
      *value = comm->comm->MemoryBytes();
      return Status::Ok();
  }
  return InvalidArgument("{} is no statistic", static_cast<int>(stat));
}

}  // namespace
}  // namespace tutti::api

using tutti::api::Return;

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  return Return(__func__, [&] { return tutti::api::MemAlloc(ptr, size); });
}
ncclResult_t ncclMemFree(void* ptr) {
  return Return(__func__, [&] { return tutti::api::MemFree(ptr); });
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle) {
  return Return(__func__, [&] { return tutti::api::Register(comm, buff, size, handle); });
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return Return(__func__, [&] { return tutti::api::Deregister(comm, handle); });
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  return Return(__func__, [&] { return tutti::api::MemStats(comm, stat, value); });
}

TUTTI_PNCCL(MemAlloc);
TUTTI_PNCCL(MemFree);
TUTTI_PNCCL(CommRegister);
TUTTI_PNCCL(CommDeregister);
TUTTI_PNCCL(CommMemStats);
