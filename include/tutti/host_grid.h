// SPDX-License-Identifier: Apache-2.0
//
// tutti/host_grid.h: runs a function on the host as CUDA runs a kernel: as a grid of blocks of
// threads, each with its index, whose threads meet in barriers and share memory. Plain C; C++
// programs include tutti/host_kernel.h, which puts CUDA's own words on it.
//
// A thread of the grid is a thread of the operating system, so that a debugger, the address
// sanitizer and the thread sanitizer see what they always see. All threads run at once, however
// many processors there are; those that wait give the processor away. The first thread is the
// caller.

#ifndef TUTTI_HOST_GRID_H_
#define TUTTI_HOST_GRID_H_

#include "tutti/host_grid_types.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// Runs kernel(self, argument) on every thread of the grid, after what was queued on the stream
// before. With a stream of tuttiStreamCreate the call returns at once, `argument` must live until
// the stream has come past the kernel, and a failure is one of the stream. ncclInvalidArgument for
// more than TUTTI_HOST_GRID_MAX_THREADS threads; ncclSystemError where the system does not grant
// the threads (then no thread has run the kernel).
ncclResult_t tuttiLaunchHost(const tuttiHostLaunch_t* launch, tuttiHostKernel_t kernel,
                             void* argument);

// -------------------------------------------------------------------------------------------------
// For threads of a grid
// -------------------------------------------------------------------------------------------------

// Waits until all threads of the block have come here.
void tuttiHostSyncBlock(const tuttiHostThread_t* self);
// Waits until `count` threads of the block have come to barrier `id`, below
// TUTTI_HOST_NAMED_BARRIERS.
void tuttiHostSyncNamed(const tuttiHostThread_t* self, unsigned int id, unsigned int count);
// Waits until all lanes of `mask` have called this with the same mask. The caller is one of them.
// Lanes that the warp does not have are not waited for.
void tuttiHostSyncWarp(const tuttiHostThread_t* self, uint32_t mask);

// Returns an array with a word for each thread of the block, by which threads show one another
// where a value lies.
const void** tuttiHostExchange(const tuttiHostThread_t* self);

// Returns the block's variable `key`: `bytes` bytes, aligned to `alignment`, which live as long as
// the block. The first thread that asks makes it; its content is unspecified.
void* tuttiHostSharedVariable(const tuttiHostThread_t* self, const void* key, size_t bytes,
                              size_t alignment);
// Returns the block's shared_bytes bytes of memory.
void* tuttiHostSharedMemory(const tuttiHostThread_t* self);

// Gives the processor away for a moment, longer as `round` rises: for loops that wait for another
// thread or process.
void tuttiHostPause(unsigned int round);

// What carries out device-initiated networking; `handle` is one of ncclDevComm::ginHandles, for the
// first two one of a proxy. The headers call these; kernels need not.
//
// Carries out an operation at once where the queue's rank is reached by load and store, and returns
// 1. Returns 0 where it has to be posted. `words` are the 8 words of a descriptor. An operation
// that names what is not there stops the communicator, and the call returns 1.
int tuttiHostGinDo(void* handle, uint32_t context, uint32_t queue, const uint64_t* words);
// Tells the proxy that an operation has been posted to a queue of a context.
void tuttiHostGinRing(void* handle, uint32_t context, uint32_t queue);
// Passes a moment of a wait of `round` rounds so far, and carries on with what is under way.
void tuttiHostGinWait(void* handle, uint32_t context, unsigned int round);
// Stops the communicator, whose kernel has named a signal, or else a counter, that is not there.
void tuttiHostGinMissing(void* handle, int is_signal, uint32_t number);
// Stops the communicator, whose kernel drives a card and puts to a rank that it has no queue pair
// toward.
void tuttiHostGinUnreached(void* handle, int rank);
// Tells that a wait for a card has ended early. Stops the communicator where the card is the
// reason.
void tuttiHostGinFailed(void* handle);

// Ends the program with a sentence: in a checked build a kernel has asked for `bytes` bytes at
// `offset` of what LSA rank `place` has of a window. It has `size` bytes there, UINT64_MAX where
// the team has no such rank. `window` may be null. `caller` is the function that asked, on line
// `line` of its file.
void tuttiHostRefusePlace(const void* window, uint64_t offset, uint64_t bytes, int place,
                          uint64_t size, const char* caller, int line);
// The same where a kernel has named LSA barrier `index` of `barriers`.
void tuttiHostRefuseBarrier(uint32_t index, uint32_t barriers);

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // TUTTI_HOST_GRID_H_
