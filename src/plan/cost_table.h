#pragma once

// The cost model: all numbers by which an algorithm is chosen and by which an operation is cut into
// pieces.
//
// The time of an operation on hosts follows from the work of its algorithm and from the costs of
// its wires:
//
//   time = start + steps × step + waits × wake + bytes / min(most, part × channels × bandwidth)
//
// Far hosts add the time of the passages between hosts (plan/crossings.h). ExtentOf computes steps,
// waits and bytes from the algorithm. CostTable has start, step, most and part, in a row for each
// wire, algorithm and protocol, with the source of each measurement. The search finds channels ×
// bandwidth on the machine (topology/search.h).
//
// GPUs of one host have other numbers (GpuCosts), from which plan/mesh_rows.cc computes times. GPUs
// that channels join have numbers of their own too (ChannelCosts, plan/channel_rows.cc).
//
// Numbers elsewhere say how much memory exists and how the memory is laid out. These limits bound a
// choice but do not make it: the slots, channels and threads for which kernels are compiled
// (plan/mesh_limits.h, backend/cuda/message_args.h) and the limits of windows (gpu/mesh.cc,
// comm/join_gpus.cc).
//
// All functions are pure: all ranks compute the same result. docs/cost_model.md is made from the
// tables.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plan/work.h"

namespace tutti {

// Says what joins two ranks on hosts, as far as costs are concerned.
enum class Wire : uint8_t {
  kSharedMemory,  // Ranks of one host.
  kKernelCopy,    // Ranks of one host in several processes, by process_vm_readv.
  kTcp,           // Ranks of two hosts.
};
std::string_view Name(Wire wire);

// Names the page with the measurement behind a row.
enum class CostSource : uint8_t {
  kCostBench,     // bench/results/cost.md
  kShmBench,      // bench/results/shm.md
  kSocketsBench,  // bench/results/sockets.md
};
std::string_view Name(CostSource source);

struct CostRow {
  Wire wire = Wire::kSharedMemory;
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  double start_us = 0;   // Paid once.
  double step_us = 0;    // Paid for each step.
  double most_gbps = 0;  // The most GB/s that a rank moves; 0: the channels are the only bound
  double part = 1;       // The protocol's share of the channels' bandwidth.
  CostSource source = CostSource::kCostBench;
};

std::span<const CostRow> CostTable();

// Returns the row, or null where the wire does not carry the algorithm by this protocol.
const CostRow* FindCost(Wire wire, Algorithm algorithm, Protocol protocol);

// Returns the time until a waiting rank runs again. Ranks that share cores do not spin, and the
// scheduler must run the peer first. Such ranks also share the rate at which a core moves data
// (kSharedCorePart). Measured with 4 ranks on 2 cores (bench/results/cost.md).
constexpr double WakeUs(Wire wire) { return wire == Wire::kTcp ? 17 : 4; }
inline constexpr double kSharedCorePart = 0.5;

// The ranks of several processes describe their buffers to one another for operations of at least
// this many bytes, to find out whether the buffers are mapped. If the buffers are not mapped the
// exchange was in vain and costs 0.5 us, a tenth of the time of an operation of this size
// (bench/results/cost.md).
inline constexpr double kAskFromBytes = 16 << 10;

// ---- How operations of hosts are cut (plan/host_rows.cc, operations/executor.cc)

// A step of a ring occupies at most half of a FIFO's slots, and therefore every rank can send
// before it receives. The rings of GPUs on several hosts (plan/channel_rows.cc) obey the same
// limit.
inline constexpr size_t kSlicesPerStep = 4;
// The shortest length into which slices are cut: handing over a slot costs as much as copying this
// many bytes.
inline constexpr size_t kMinSliceBytes = 16 << 10;
// A slice of this many bytes and its frame are one packet that TCP cuts into whole segments of 1448
// bytes (Ethernet), 8948 bytes (jumbo frames) or 65483 bytes (loopback): 65160, 62636 and 65483
// bytes in all. A slice of 64 KB would become two packets, and the second would cost as much as the
// first (transport/net/socket/send_comm.cc, bench/results/hosts.md).
inline constexpr size_t kNetPacketBytes = 62'592;
// Between hosts, slices of up to this size stay in a core's L2 cache while they are copied to the
// network, and eight slices are on their way at once. Slices of two packets were faster between
// network namespaces. Over loopback, with segments of 64 KB, such slices made a Broadcast of 1 MB
// take three times as long in most runs. Steps of more than 4 MB have longer slices, up to a slot,
// because such steps last long enough to fill links with a large latency
// (bench/results/sockets.md). An AllReduce has fewer, longer slices: between two ranks short slices
// cost a tenth of the speed, and each rank's half of 4 MB remains a single send.
inline constexpr size_t kNetSliceBytes = kNetPacketBytes;
inline constexpr size_t kNetSlicesPerStep = 64;
// Says how two ranks on two hosts reduce a vector for both, by the vector's length. The first row
// with a fitting length applies. By recursive doubling each rank sends its whole vector to its
// peer. In one shot a rank adds the peer's data to its own input while it writes the output, and
// copies nothing beforehand. The cost table cannot decide here: its rates were measured with more
// ranks, and all algorithms take the same time where the NIC's speed is the bound
// (bench/results/hosts.md).
struct PairWay {
  Algorithm algorithm;
  size_t from_bytes;
};
inline constexpr size_t kPairOneShotBytes = 512 << 10;
inline constexpr PairWay kPairWays[] = {{Algorithm::kOneShot, kPairOneShotBytes},
                                        {Algorithm::kRecursiveDoubling, 0}};
// A pair of ranks cuts a vector of kPairSliceBytes to kPairOneShotBytes into even slices of about
// kPairSliceBytes, for Broadcasts and Reduces too. Neither rank forwards data, and each slice of
// more than kKeepBytes (transport/net/socket/resume.h) is acknowledged (bench/results/hosts.md).
inline constexpr size_t kPairSliceBytes = 64 << 10;
// One-shot and two-shot algorithms between hosts cut each part into kMeshPieces chunks of at most
// kMostMeshChunkBytes, to overlap the sending of a chunk with the reduction of the next.
inline constexpr size_t kMeshPieces = 4;
inline constexpr size_t kMostMeshChunkBytes = 128 << 10;
// The most bytes of the blocks of all pairs of ranks in an AlltoAll by two levels. Longer blocks
// are better sent directly.
inline constexpr double kMostMatrixBytes = 1 << 20;
// The bytes between two hosts for each rank that owns a part in an algorithm of two levels. An
// owner sends its part to the other hosts. A further message costs as much as copying this many
// bytes.
inline constexpr size_t kOwnerBytes = 32 << 10;
// The bytes that a rank reduces at a time when it reads buffers where they lie. The result is short
// enough for its peers to find it in a cache.
inline constexpr size_t kPullPartBytes = 256 << 10;
// The most bytes that an AllReduce of many buffers packs at a time: half of a common L2 cache,
// because the packed data should still be in the cache when the data are reduced and copied out.
// The number is far above the 32 KB or so that a collective moves in its start-up time.
inline constexpr size_t kPackedBytes = size_t{1} << 20;
// The same number on GPUs, in memory that the first such AllReduce allocates.
inline constexpr size_t kGpuPackedBytes = size_t{32} << 20;

// ---- How long operations of hosts take

// Counts the work of an algorithm, from the beginning of the operation to its end.
struct Extent {
  double steps = 0;  // Steps one after another.
  double waits = 0;  // Waits for other ranks, one after another.
  double bytes = 0;  // Bytes that a rank moves.
};

// Returns the work of `algorithm`. `bytes` is the size of the whole vector for AllReduce, Reduce
// and Broadcast, and the size of one rank's part otherwise. REQUIRES: num_ranks > 1.
Extent ExtentOf(Collective collective, Algorithm algorithm, int num_ranks, double bytes);
// Returns the same for one-shot and two-shot reductions over FIFOs between all pairs of ranks.
Extent MeshExtentOf(Collective collective, Algorithm algorithm, int num_ranks, double bytes);

// Holds the work of each level of Algorithm::kTwoLevel. The levels run one after the other.
struct TwoLevelExtent {
  Extent inside;   // in shared memory
  Extent between;  // along the rails
};
// Returns the work of both levels. `most_local` is the number of ranks of the largest host.
// `owners` ranks of each host send to other hosts.
TwoLevelExtent TwoLevelExtentOf(Collective collective, int num_ranks, int num_hosts, int most_local,
                                int owners, double bytes);

// Returns the time of `extent` by the numbers of `row`, in microseconds. `channels_gbps` is the
// bandwidth of all channels; 0 means "not known, no bound". `shared_cores` says that ranks share
// cores.
double CostUs(const CostRow& row, const Extent& extent, double channels_gbps, bool shared_cores);

// ---- GPUs

// Holds the numbers by which operations of GPUs are planned (plan/gpu_costs.def). plan/mesh_rows.cc
// computes times from the numbers.
struct GpuCosts {
#define GPU_COST(type, field, nvlink, host_memory, unit, meaning) type field = nvlink;
#include "plan/gpu_costs.def"
};

// Says how GPUs reach one another's windows.
enum class GpuReach : uint8_t {
  kNvlink,      // Windows lie in the GPUs' memory. Measured where NVLink joins GPUs.
  kHostMemory,  // Windows lie in pinned memory of the host.
};
GpuCosts CostsOf(GpuReach reach);

// Holds the numbers for GPUs that channels join with a transport for each pair. The numbers are
// estimates made from the times of channels over sockets.
struct ChannelCosts {
  // Microseconds until the next rank has a slice: through the memory of GPUs, and through two hosts
  // with sockets between them.
  double window_step_us = 5;
  double network_step_us = 17;
  // Microseconds that each further rank adds where a rank sends to and receives from several ranks
  // at a time.
  double network_peer_us = 4;
  // The rate of a channel over sockets that has a processor to itself.
  double channel_bytes_per_us = 1500;
  // The rate of a channel with messages to several ranks at once.
  double message_bytes_per_us = 1000;
  // The rate of a channel's block between the windows of one host: an estimate from the rate of all
  // blocks of a mesh's ring (plan/gpu_costs.def), not measured.
  double channel_window_bytes_per_us = 20e3;
  // A channel costs a block and, between hosts, a message. A further channel pays from this many
  // bytes of a ring's step on, and a message takes a further channel for each
  // message_bytes_per_channel bytes.
  size_t ring_bytes_per_channel = 16 << 10;
  size_t message_bytes_per_channel = 64 << 10;
  // By two levels, a channel's data are cut into this many pieces, because one piece should pass
  // the network while the next piece moves inside the host. With more pieces or shorter slices,
  // each piece pays the network's latency for fewer bytes.
  size_t two_level_pieces = 4;
  size_t two_level_slice_bytes = 32 << 10;
  // The rate of a slice on a connection of a tree. A tree pays for its two blocks from
  // bytes_per_tree on, and cuts its data into tree_slices slices of at least tree_slice_bytes.
  double tree_bytes_per_us = 1800;
  size_t bytes_per_tree = 4 << 10;
  size_t tree_slices = 4;
  size_t tree_slice_bytes = 8 << 10;
};
inline constexpr ChannelCosts kChannelCosts = {};

// Return the tables as Markdown.
std::string CostTableMarkdown();
std::string GpuCostsMarkdown();

}  // namespace tutti
