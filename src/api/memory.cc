// Memory for peers to map, and registration.

#include "backend/cuda/memory.h"

#include <algorithm>
#include <map>

#include "api/context.h"
#include "base/mutex.h"
#include "nccl.h"

namespace tutti::api {
namespace {

// Owns the memory of ncclMemAlloc on GPUs, which peers can map (ncclCommWindowRegister). Any thread
// may call.
class DeviceBlocks {
 public:
  Result<void*> Allocate(int device, size_t size) {
    TUTTI_ASSIGN(Process* const process, ThisProcess());
    TUTTI_ASSIGN(const cuda::Device* const gpu, process->OpenDevice(device));
    UniqueFd name;  // Only its existence counts: a later export asks for a name again.
    TUTTI_ASSIGN(cuda::MappedMemory block, cuda::MappedMemory::Create(*gpu, size, &name));
    block.LetPeersUse(*gpu);
    const MutexLock lock(mutex_);
    void* const begin = block.data();
    blocks_.emplace(begin, std::move(block));
    return begin;
  }
  // Returns false where `pointer` is no memory of Allocate.
  bool Free(void* pointer) {
    const MutexLock lock(mutex_);
    return blocks_.erase(pointer) != 0;
  }

 private:
  Mutex mutex_;
  std::map<void*, cuda::MappedMemory> blocks_ TUTTI_GUARDED_BY(mutex_);
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
  if (Blocks().Free(pointer)) return Status::Ok();
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  return process->memory().Free(pointer);
}

// Has operations read the buffer in place, where this gains something. Elsewhere, as on hosts, a
// handle only proves that the call was made.
Status Register(ncclComm_t comm, void* buffer, size_t size, void** handle) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  if (handle == nullptr) return InvalidArgument("handle is null");
  *handle = nullptr;
  if (buffer == nullptr || size == 0) return InvalidArgument("the buffer is empty");
  TUTTI_TRY(CheckExtent(buffer, size, "the buffer"));
  const void* token = nullptr;
  if (comm->comm && comm->settings.local_register)
    token = comm->comm->operations().Register({{static_cast<std::byte*>(buffer), size}, {}});
  const MutexLock lock(comm->mutex);
  comm->registrations.push_back(std::make_unique<const void*>(token));
  *handle = comm->registrations.back().get();
  return Status::Ok();
}

Status Deregister(ncclComm_t comm, void* handle) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  if (handle == nullptr) return Status::Ok();
  const void* token = nullptr;
  {
    const MutexLock lock(comm->mutex);
    const auto found = std::find_if(comm->registrations.begin(), comm->registrations.end(),
                                    [&](const auto& r) { return r.get() == handle; });
    if (found == comm->registrations.end())
      return InvalidArgument(
          "the handle was not given out by ncclCommRegister of this communicator");
    token = **found;
  }
  // Where the device cannot tell whether its work is done, the registration stays.
  if (comm->comm) TUTTI_TRY(comm->comm->operations().Forget(token));
  const MutexLock lock(comm->mutex);
  std::erase_if(comm->registrations, [&](const auto& r) { return r.get() == handle; });
  return Status::Ok();
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

TUTTI_PNCCL(MemAlloc);
TUTTI_PNCCL(MemFree);
TUTTI_PNCCL(CommRegister);
TUTTI_PNCCL(CommDeregister);
