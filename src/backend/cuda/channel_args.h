#pragma once

// The host hands this to the kernels of a ring over channels (gpu/channels.h): plain values.
//
// Ranks are joined by FIFOs (connection/fifo.h), one for each direction of a pair and channel. A
// kernel sees no difference between the transports:
//
//   peer memory          the slots lie in the receiver's window, the head in the sender's: each
//                        kernel polls its own memory and writes into the other's
//   shared host memory   the same in windows that lie in pinned memory of the host
//   network              each end has a FIFO of its own in pinned memory of its host; the proxy is
//                        the consumer of the sender's and the producer of the receiver's
//
// A kernel waits for these words and for nothing else. How many chunks it has passed is counted in
// memory of its GPU, from one kernel to the next, so that a captured graph can be replayed.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/elements.h"
#include "connection/fifo_layout.h"
#include "kernels/primitives.h"
#include "kernels/two_level.h"
#include "plan/mesh_limits.h"
#include "plan/work.h"

namespace tutti::cuda {

inline constexpr uint32_t kChannelThreads = 512;
// Of the block that does a collective in one shot: little data, and for each line registers for all
// ranks.
inline constexpr uint32_t kOneShotThreads = 256;

// What the kernels of one end of a FIFO hand to the next kernel, in memory of their GPU.
struct FifoCount {
  uint64_t passed = 0;  // chunks that this end has passed
  uint64_t head = 0;    // A producer has seen so many released: the head need not be looked at yet.
};

// Bits: the NIC that takes chunks out of a FIFO also takes them out of a collective's buffers
// (proxy/lent_buffers.h).
inline constexpr uint32_t kLendsInput = 1;
inline constexpr uint32_t kLendsOutput = 2;

// Describes one end of a FIFO.
struct DeviceFifo {
  uint64_t* head = nullptr;          // chunks released, by the consumer
  FifoSlotWords* headers = nullptr;  // kFifoSlots, by the producer
  std::byte* data = nullptr;         // kFifoSlots × slot_stride
  FifoCount* count = nullptr;        // null: the end is not used
  uint32_t slot_stride = 0;
  uint32_t lends = 0;  // kLendsInput, kLendsOutput; of a producer
};

// The kernels of a communicator on one rank share this.
struct ChannelCommon {
  const uint32_t* abort_word = nullptr;  // It lies in pinned memory of the host.
  // It lies in memory of the GPU, and is raised by a kernel that has given up, because its
  // communicator was aborted: no later kernel moves anything, because others would take it for
  // data.
  uint64_t* given_up = nullptr;
  uint32_t op_tag = 0;  // stands in every chunk of the operation
};

// A collective round the rings, down the chains or by the two levels of several channels: a block
// for each.
struct ChannelArgs {
  ChannelCommon common;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // These are counts of elements, or of bytes where the collective moves bytes. AllGather and
  // ReduceScatter have `count` for each rank, `count` apart in the longer buffer.
  size_t count = 0;
  size_t channel_elems = 0;  // Each channel but the last has so many.
  size_t chunk_elems = 0;    // A step of the ring moves so many.
  size_t slice_elems = 0;    // A slot takes so many.
  ReduceArgs reduce;
  Collective collective = Collective::kAllReduce;
  // Adds the elements in the order of the ranks (kernels/rank_order.h), which is that of the rings;
  // a chunk is a slice then.
  bool in_rank_order = false;
  bool two_level = false;  // kernels/two_level.h
  bool one_shot = false;   // kernels/mesh.h, in one round; by one channel
  int rank = 0;
  int num_ranks = 1;
  int root = 0;
  uint32_t channels = 1;
  // By channel; the orders that these views show lie in memory of the GPU. `host_rings` stand in
  // place of the ring in `levels`.
  RingView rings[kMostGpuChannels];
  RingView host_rings[kMostGpuChannels];
  kernels::TwoLevelView levels;
  // To the next and from the previous rank of the ring; by two levels, of the host's ring, and of
  // the rail. In one shot, to and from the other ranks, ascending.
  DeviceFifo next[kMostGpuChannels];
  DeviceFifo previous[kMostGpuChannels];
  DeviceFifo rail_next[kMostGpuChannels];
  DeviceFifo rail_previous[kMostGpuChannels];
};
static_assert(sizeof(ChannelArgs) <= 4096 - 64);
static_assert(kMostOneShotRanks <= kMostGpuChannels + 1);

// Sends and receives of a group: a block for each flow.
enum class FlowKind : uint8_t {
  kSend,
  kReceive,
  kSwap,  // Each slice of the buffer is sent before one from the peer takes its place.
  kCopy,  // what a rank sends to itself
};

// A part of a message.
struct FlowMessage {
  std::byte* buffer = nullptr;
  size_t bytes = 0;
  // Of a copy into `buffer`. Of a send: not null where the NIC reads the message in `buffer`.
  const std::byte* from = nullptr;
};

// The messages of one kind through one pair of FIFOs, which go one after another.
struct Flow {
  DeviceFifo send;
  DeviceFifo receive;
  uint16_t first = 0;  // Its first message in FlowArgs::messages.
  uint16_t count = 0;
  FlowKind kind = FlowKind::kSend;
};

inline constexpr uint32_t kMostFlows = 24;
inline constexpr uint32_t kMostFlowMessages = 64;

struct FlowArgs {
  ChannelCommon common;
  size_t slice_bytes = 0;
  uint32_t num_flows = 0;
  Flow flows[kMostFlows];
  FlowMessage messages[kMostFlowMessages];
};
static_assert(sizeof(FlowArgs) <= 4096 - 64);

}  // namespace tutti::cuda
