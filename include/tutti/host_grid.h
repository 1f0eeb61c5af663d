// SPDX-License-Identifier: Apache-2.0
//
// tutti/host_grid.h: runs a function on the host as CUDA runs a kernel: as a grid of blocks of
// threads, each with its index, whose threads meet in barriers and share memory. Plain C; C++
// programs include tutti/host_kernel.h, which has CUDA's own words.
//
// A thread of the grid is a thread of the operating system, and debuggers, the address sanitizer
// and the thread sanitizer work as usual. All threads run at once on any number of processors, and
// waiting threads give the processor away. The first thread is the caller.

#ifndef TUTTI_HOST_GRID_H_
#define TUTTI_HOST_GRID_H_

#include "tutti/host_grid_types.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// Runs kernel(self, argument) on every thread of the grid, after the work queued on the stream
// before. With a stream of tuttiStreamCreate the call returns at once, `argument` must live until
// the stream has come past the kernel, and a failure is a failure of the stream.
// ncclInvalidArgument for more than TUTTI_HOST_GRID_MAX_THREADS threads; ncclSystemError, without
// any thread having run the kernel, where the system does not grant the threads.
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
// Waits until all lanes of `mask` have called this with the same mask. The caller is a lane of
// `mask`. Lanes beyond the size of the warp are not waited for.
void tuttiHostSyncWarp(const tuttiHostThread_t* self, uint32_t mask);

// Returns an array with a word for each thread of the block, by which threads show one another
// addresses of values.
const void** tuttiHostExchange(const tuttiHostThread_t* self);

// Returns the block's variable `key`: `bytes` bytes, aligned to `alignment`, for the life of the
// block. The first call makes the variable, with unspecified content.
void* tuttiHostSharedVariable(const tuttiHostThread_t* self, const void* key, size_t bytes,
                              size_t alignment);
// Returns the block's shared_bytes bytes of memory.
void* tuttiHostSharedMemory(const tuttiHostThread_t* self);

// Gives the processor away for a moment, and for longer as `round` rises, in loops that wait for a
// thread or process.
void tuttiHostPause(unsigned int round);

// The functions of device-initiated networking. `handle` is one of ncclDevComm::ginHandles. The
// headers call these functions; kernels need not.
//
// Carries out an operation at once where the queue's rank is reached by load and store, and returns
// 1. Returns 0 where the operation has to be posted. `words` are the 8 words of a descriptor. An
// operation with invalid operands stops the communicator, and the call returns 1. A handle of a
// card also stops the communicator, because kernels that drive a card post to no proxy.
int tuttiHostGinCarryOut(void* handle, uint32_t context, uint32_t queue, const uint64_t* words);
// Tells the proxy of a posted operation in a queue of a context.
void tuttiHostGinRing(void* handle, uint32_t context, uint32_t queue);
// Passes a moment of a wait in its round `round`, and drives the operations under way.
void tuttiHostGinPass(void* handle, uint32_t context, unsigned int round);
// The names of the two functions in headers of earlier versions, whose kernels read one of the two
// words of a signal and would miss signals of other hosts. Both stop the communicator with a
// sentence, and tuttiHostGinDo returns 1.
int tuttiHostGinDo(void* handle, uint32_t context, uint32_t queue, const uint64_t* words);
void tuttiHostGinWait(void* handle, uint32_t context, unsigned int round);
// Stops the communicator, because a kernel has named a signal, or else a counter, that does not
// exist.
void tuttiHostGinMissing(void* handle, int is_signal, uint32_t number);
// Stops the communicator, because a kernel that drives a card puts to a rank without a queue pair.
void tuttiHostGinUnreached(void* handle, int rank);
// Tells of the early end of a wait for a card. Stops the communicator if the card is the reason.
void tuttiHostGinFailed(void* handle);

// Ends the program with a sentence: in a checked build a kernel has asked for `bytes` bytes at
// `offset` of LSA rank `place`'s part of a window. The part has `size` bytes, or UINT64_MAX for a
// rank outside the team. `window` may be null. `caller` is the function that asked, on line `line`
// of its file.
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
