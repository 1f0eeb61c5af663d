// SPDX-License-Identifier: Apache-2.0
//
// The record of a context of GIN in the layout of NCCL's GDAKI, under NCCL's names. Read by
// nccl_device/gin.h. The layout is part of the binary interface of NCCL 2.30.7.
//
// Some programs read the words of signals and counters from this record, where ncclGin has no
// function for the purpose (a wait with a time-out of the program's own):
//
//   auto* context = static_cast<ncclGinGdakiGPUContext*>(gin._ginHandle) + gin.contextId;
//   uint64_t* word = context->signals_table.buffer + context->signals_table.offset + signal;
//
// `_ginHandle` points at such records whether kernels drive a card or post to a proxy. The record
// of a proxy's context has the tables, and is otherwise empty.

#ifndef NCCL_DEVICE_IMPL_GIN_GDAKI_CONTEXT_H_
#define NCCL_DEVICE_IMPL_GIN_GDAKI_CONTEXT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus

namespace tutti {
namespace device {
namespace mlx5 {
struct QueuePair;
}  // namespace mlx5
}  // namespace device
}  // namespace tutti

// A table of words, and the keys by which cards reach each rank's table.
template <typename T>
struct ncclGinGdakiGlobalGPUBufferTable {
  T* buffer;
  uint32_t* rkeys;
  uint32_t lkey;
  uint32_t offset;  // The first word of the context. 0 in the tables of a proxy.
};

struct ncclGinGdakiGPUContext {
  tutti::device::mlx5::QueuePair* gdqp;            // The main queue pair of each rank.
  tutti::device::mlx5::QueuePair* companion_gdqp;  // The companion of each.
  ncclGinGdakiGlobalGPUBufferTable<uint64_t> counters_table;
  ncclGinGdakiGlobalGPUBufferTable<uint64_t> signals_table;
  uint32_t sink_buffer_lkey;   // of 8 bytes for the old values of words, which nobody reads
  uint64_t* last_issued_get;   // of each rank: how many entries of its queue, up to its last get
  uint64_t* last_visible_get;  // the same for visible gets
};
static_assert(sizeof(ncclGinGdakiGlobalGPUBufferTable<uint64_t>) == 24,
              "part of the binary interface");
static_assert(sizeof(ncclGinGdakiGPUContext) == 88, "part of the binary interface");
static_assert(offsetof(ncclGinGdakiGPUContext, signals_table) == 40,
              "part of the binary interface");

#endif  // __cplusplus

#endif  // NCCL_DEVICE_IMPL_GIN_GDAKI_CONTEXT_H_
