#pragma once

// Plain values that the host passes to the kernels of collectives and messages over channels
// (gpu/channels.h).
//
// Ranks are joined by FIFOs (connection/fifo.h), one for each direction of a pair and channel. A
// kernel sees no difference between the transports:
//
//   peer memory          the slots lie in the receiver's window, the head in the sender's: each
//                        kernel polls its own memory and writes into the peer's
//   shared host memory   the same in windows in pinned memory of the host
//   network              each end has a FIFO of its own in pinned memory of its host; the proxy is
//                        the consumer of the sender's and the producer of the receiver's
//
// A kernel waits only for these words. The number of passed chunks is kept in memory of the GPU
// from one kernel to the next, which makes a captured graph replayable.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/elements.h"
#include "backend/cuda/message_args.h"
#include "connection/fifo_layout.h"
#include "kernels/primitives.h"
#include "kernels/two_level.h"
#include "plan/mesh_limits.h"
#include "plan/work.h"

namespace tutti::cuda {

inline constexpr uint32_t kChannelThreads = 512;
// The threads of the block of a one-shot collective. There is little data, and each line needs
// registers for all ranks.
inline constexpr uint32_t kOneShotThreads = 256;

// The state of one end of a FIFO between kernels, in memory of the kernels' GPU.
struct FifoCount {
  uint64_t passed = 0;  // chunks that this end has passed
  uint64_t head = 0;    // chunks known to be released; a producer with room reads no newer head
};

// Bits that say from which of a collective's buffers the NIC of a FIFO also takes chunks, besides
// the FIFO's slots (proxy/lent_buffers.h).
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

// The arguments that all kernels of a communicator on one rank share.
struct ChannelCommon {
  const uint32_t* abort_word = nullptr;  // in pinned memory of the host
  // A word in memory of the GPU that a kernel raises when it gives up, because its communicator was
  // aborted. No later kernel moves anything, because peers would take the result for data.
  uint64_t* given_up = nullptr;
  uint32_t op_tag = 0;  // the tag of every chunk of the operation
};

// A collective round the rings, down the chains or by the two levels of several channels, with a
// block for each channel.
struct ChannelArgs {
  ChannelCommon common;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // Counts of elements, or of bytes where the collective moves bytes. AllGather and ReduceScatter
  // have `count` for each rank, `count` apart in the longer buffer.
  size_t count = 0;
  size_t channel_elems = 0;  // the share of each channel but the last
  size_t chunk_elems = 0;    // moved by one step of the ring
  size_t slice_elems = 0;    // the length of a slot
  ReduceArgs reduce;
  Collective collective = Collective::kAllReduce;
  // Adds the elements in the order of the ranks (kernels/rank_order.h), which is the order of the
  // rings. A chunk is then a slice.
  bool in_rank_order = false;
  bool two_level = false;  // kernels/two_level.h
  bool one_shot = false;   // kernels/mesh.h, in one round; by one channel
  int rank = 0;
  int num_ranks = 1;
  int root = 0;
  uint32_t channels = 1;
  // The views by channel, with orders in memory of the GPU. `host_rings` replace the ring in
  // `levels`.
  RingView rings[kMostGpuChannels];
  RingView host_rings[kMostGpuChannels];
  kernels::TwoLevelView levels;
  // FIFOs to the next and from the previous rank of the ring. By two levels: of the host's ring,
  // and of the rail. In one shot: to and from the peers, in ascending order.
  DeviceFifo next[kMostGpuChannels];
  DeviceFifo previous[kMostGpuChannels];
  DeviceFifo rail_next[kMostGpuChannels];
  DeviceFifo rail_previous[kMostGpuChannels];
};
static_assert(sizeof(ChannelArgs) <= 4096 - 64);
static_assert(kMostOneShotRanks <= kMostGpuChannels + 1);

// A part of a message.
struct FlowMessage {
  std::byte* buffer = nullptr;
  size_t bytes = 0;
  // The source of a copy into `buffer`. A send has `buffer` here where the buffer is lent to the
  // NIC, and null otherwise.
  const std::byte* from = nullptr;
};

// A sequence of messages of one kind through one pair of FIFOs. Each flow of a group has a block.
struct Flow {
  DeviceFifo send;
  DeviceFifo receive;
  uint16_t first = 0;  // the first message in FlowArgs::messages
  uint16_t count = 0;
  MessageKind kind = MessageKind::kSend;
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
