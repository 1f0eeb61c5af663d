// Kernels on hosts: the C functions of tutti/host_grid.h.

#include "tutti/host_grid.h"

#include <cstdio>
#include <cstdlib>

#include "api/context.h"
#include "backend/host/stream.h"
#include "gin/proxy.h"
#include "grid/block.h"
#include "grid/grid.h"
#include "nccl_device/impl/core__types.h"

namespace tutti::api {
namespace {

// Errors found here are the caller's. On a stream of its own the grid runs later, and its errors
// are the stream's.
Status Launch(const tuttiHostLaunch_t* given, tuttiHostKernel_t kernel, void* argument) {
  if (given == nullptr || kernel == nullptr)
    return InvalidArgument("the {} is null", given == nullptr ? "launch" : "kernel");
  TUTTI_ASSIGN(const tuttiHostLaunch_t launch, CheckLaunch(*given));
  TUTTI_ASSIGN(HostStream* const stream, ResolveStream(launch.stream));
  if (stream == nullptr) {
    TUTTI_TRY(RunGrid(launch, kernel, argument));
    if (launch.done != nullptr) launch.done(argument);
    return Status::Ok();
  }
  stream->Enqueue([stream, launch, kernel, argument] {
    const Status status = WithoutExceptions([&] { return RunGrid(launch, kernel, argument); });
    if (!status.ok()) stream->NoteError(status);
    if (launch.done != nullptr) launch.done(argument);
  });
  return Status::Ok();
}

bool RefuseOldKernel(void* handle) {
  GinHostCalls* const calls = GinHostCalls::Of(handle);
  return calls != nullptr && calls->RefuseOldKernel();
}

}  // namespace
}  // namespace tutti::api

ncclResult_t tuttiLaunchHost(const tuttiHostLaunch_t* launch, tuttiHostKernel_t kernel,
                             void* argument) {
  return tutti::api::Return(__func__, [&] { return tutti::api::Launch(launch, kernel, argument); });
}

void tuttiHostSyncBlock(const tuttiHostThread_t* self) { self->block->Sync(); }
void tuttiHostSyncNamed(const tuttiHostThread_t* self, unsigned int id, unsigned int count) {
  self->block->SyncNamed(id, count);
}
void tuttiHostSyncWarp(const tuttiHostThread_t* self, uint32_t mask) {
  self->block->SyncWarp(self->number, mask);
}
const void** tuttiHostExchange(const tuttiHostThread_t* self) { return self->block->exchange(); }
void* tuttiHostSharedVariable(const tuttiHostThread_t* self, const void* key, size_t bytes,
                              size_t alignment) {
  return self->block->SharedVariable(key, bytes, alignment);
}
void* tuttiHostSharedMemory(const tuttiHostThread_t* self) { return self->block->shared_memory(); }
void tuttiHostGinRing(void* handle, uint32_t context, uint32_t queue) {
  auto* const calls = tutti::GinHostCalls::Of(handle);
  auto* const proxy = calls != nullptr ? calls->AsProxy() : nullptr;
  if (proxy != nullptr) proxy->RingDoorbell(context, queue);
}
int tuttiHostGinCarryOut(void* handle, uint32_t context, uint32_t queue, const uint64_t* words) {
  auto* const calls = tutti::GinHostCalls::Of(handle);
  if (calls == nullptr) return 0;
  auto* const proxy = calls->AsProxy();
  return proxy == nullptr || proxy->Do(context, queue, words) ? 1 : 0;
}
void tuttiHostGinPass(void* handle, uint32_t context, unsigned int round) {
  if (auto* const calls = tutti::GinHostCalls::Of(handle)) return calls->Wait(context, round);
  tutti::PauseInGrid(round);
}
int tuttiHostGinDo(void* handle, uint32_t context, uint32_t queue, const uint64_t* words) {
  if (tutti::api::RefuseOldKernel(handle)) return 1;
  return tuttiHostGinCarryOut(handle, context, queue, words);
}
void tuttiHostGinWait(void* handle, uint32_t context, unsigned int round) {
  if (tutti::api::RefuseOldKernel(handle)) return tutti::PauseInGrid(round);
  tuttiHostGinPass(handle, context, round);
}
void tuttiHostGinMissing(void* handle, int is_signal, uint32_t number) {
  if (auto* const calls = tutti::GinHostCalls::Of(handle))
    calls->NoteMissing(is_signal != 0, number);
}
void tuttiHostGinUnreached(void* handle, int rank) {
  if (auto* const calls = tutti::GinHostCalls::Of(handle)) calls->NoteUnreached(rank);
}
void tuttiHostGinFailed(void* handle) {
  if (auto* const calls = tutti::GinHostCalls::Of(handle)) calls->NoteFailed();
}
void tuttiHostPause(unsigned int round) { tutti::PauseInGrid(round); }

// The kernel cannot go on with any address. The program therefore ends here, where a debugger shows
// the caller.
void tuttiHostRefusePlace(const void* window, uint64_t offset, uint64_t bytes, int place,
                          uint64_t size, const char* caller, int line) {
  const auto* const record = static_cast<const ncclWindow_vidmem*>(window);
  const std::string thread = tutti::NameOfGridThread();
  const std::string has = window == nullptr    ? "there is no window"
                          : size == UINT64_MAX ? "the LSA team has no such rank"
                                               : fmt::format("there it has {}", size);
  const std::string rank = record == nullptr ? "" : fmt::format("rank {}, ", record->worldRank);
  const std::string sentence =
      fmt::format("tutti: {}{}: {}, line {}: {} bytes at {} of LSA rank {} of the window {}: {}\n",
                  rank, thread.empty() ? "no thread of a kernel" : thread, caller, line, bytes,
                  offset, place, window, has);
  std::fputs(sentence.c_str(), stderr);
  std::abort();
}
void tuttiHostRefuseBarrier(uint32_t index, uint32_t barriers) {
  const std::string thread = tutti::NameOfGridThread();
  const std::string sentence =
      fmt::format("tutti: {}: there is no LSA barrier {}: the requirements have {}\n",
                  thread.empty() ? "no thread of a kernel" : thread, index, barriers);
  std::fputs(sentence.c_str(), stderr);
  std::abort();
}
