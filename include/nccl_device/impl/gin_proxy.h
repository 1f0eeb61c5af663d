// SPDX-License-Identifier: Apache-2.0
//
// The functions by which kernels hand operations to the proxy of GIN and wait for them
// (gin_descriptor.h). Read by nccl_device/gin.h.
//
// No thread of the proxy polls on a host: the library carries operations out on the calling thread,
// and needs no descriptor toward ranks whose memory is mapped. A thread that posts a descriptor
// rings, and a waiting thread drives operations under way and takes incoming data.

#ifndef NCCL_DEVICE_IMPL_GIN_PROXY_H_
#define NCCL_DEVICE_IMPL_GIN_PROXY_H_

#include "nccl_device/impl/core__funcs.h"
#include "nccl_device/impl/gin_descriptor.h"

#if TUTTI_DEVICE_API

#include "nccl_device/impl/target.h"

namespace tutti {
namespace device {

// Stores a descriptor into a slot. Everything that the thread knows of before is visible to the
// reader of the descriptor.
NCCL_DEVICE_INLINE void StoreDescriptor(GinDescriptor* slot, const GinDescriptor& descriptor) {
  for (int i = 0; i < GinDescriptor::kWords; i += 2) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1,%2};" ::"l"(slot->words + i),
                 "l"(descriptor.words[i]), "l"(descriptor.words[i + 1])
                 : "memory");
#elif !NCCL_CHECK_CUDACC
    for (int word = i; word < i + 2; ++word)
      cuda::atomic_ref<uint64_t>(slot->words[word])
          .store(descriptor.words[word], cuda::memory_order_release);
#else
    slot->words[i] = descriptor.words[i];
#endif
  }
}

// The effect on a signal, for all types of actions.
struct GinAction {
  bool present;
  bool va;
  bool strong;
  bool increment;
  uint32_t signal;
  ncclWindow_t window;
  size_t offset;
  uint64_t added;
};

// Posts to the queues of one context.
class GinPoster {
 public:
  // `all_near` says that the LSA team is all ranks.
  NCCL_DEVICE_INLINE GinPoster(void* handle, uint32_t context, uint32_t* abort_flag,
                               bool all_near = false)
      : handle_(handle),
        context_(context),
        queues_(static_cast<GinContext*>(handle) + context),
        abort_flag_(abort_flag),
        all_near_(all_near) {}

  // Posts an operation. Returns early, with nothing posted, when the communicator is aborted.
  NCCL_DEVICE_INLINE void Post(uint32_t queue, const GinOperation& operation) const {
    const GinDescriptor descriptor = PackGin(operation);
#if !NCCL_CHECK_CUDACC
    if (tuttiHostGinCarryOut(handle_, context_, queue, descriptor.words) != 0) return;
#endif
    const uint32_t size = LoadConstant(&queues_->queueSize);
    const uint32_t index = cuda::atomic_ref<uint32_t>(LoadConstant(&queues_->pis)[queue])
                               .fetch_add(1, cuda::memory_order_relaxed);
    WaitRounds rounds(abort_flag_);
    while (index - LoadFlag(ConsumerIndex(queue), cuda::memory_order_acquire) >= size) {
      if (!Pass(rounds)) return;
    }
    StoreDescriptor(LoadConstant(&queues_->queues) + size_t{queue} * size + (index & (size - 1)),
                    descriptor);
#if !NCCL_CHECK_CUDACC
    tuttiHostGinRing(handle_, context_, queue);
#endif
  }

  // Returns the number of posted operations; WaitUntilDone waits for as many.
  NCCL_DEVICE_INLINE uint32_t Posted(uint32_t queue) const {
    return LoadFlag(LoadConstant(&queues_->pis) + queue, cuda::memory_order_relaxed);
  }
  NCCL_DEVICE_INLINE void WaitUntilDone(uint32_t queue, uint32_t posted,
                                        cuda::memory_order order) const {
    WaitRounds rounds(abort_flag_);
    while (!HasReached(LoadFlag(ConsumerIndex(queue), order), posted)) {
      if (!Pass(rounds)) return;
    }
  }

  // Passes a moment of a wait, and drives the operations under way. Returns false when the wait
  // ends.
  NCCL_DEVICE_INLINE bool Pass(WaitRounds& rounds) const {
#if NCCL_CHECK_CUDACC
    return rounds.Another();
#else
    // Ranks that carry out all operations themselves have none under way.
    if (all_near_ && rounds.rounds() < kSpins) {
      PauseProcessor();
      return rounds.AnotherAtOnce();
    }
    tuttiHostGinPass(handle_, context_, rounds.rounds());
    return rounds.AnotherAtOnce();
#endif
  }

 private:
  // About 2 us, as long as the library spins (tuttiHostPause).
  static constexpr uint32_t kSpins = 64;

  NCCL_DEVICE_INLINE uint32_t* ConsumerIndex(uint32_t queue) const {
    return LoadConstant(&queues_->cis) + queue;
  }

  void* handle_;
  uint32_t context_;
  GinContext* queues_;
  uint32_t* abort_flag_;
  bool all_near_;
};

}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_GIN_PROXY_H_
