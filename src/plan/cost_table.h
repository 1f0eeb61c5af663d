#pragma once

// The cost model: every number by which an algorithm is chosen, and by which an operation is cut
// into pieces.
//
// On hosts an operation takes what follows from what its algorithm does and what its wires cost:
//
//   time = start + steps × step + waits × wake + bytes / min(most, part × channels × bandwidth)
//
// and between hosts that are far from one another from how often it crosses the network besides
// (crossings.h). Steps and bytes follow from the algorithm (ExtentOf); start, step, most and part
// stand in one table (CostTable), a row for each wire, algorithm and protocol, with where each was
// measured; channels × bandwidth are what the search found on the machine (topology/search.h).
//
// GPUs of one host have numbers of their own (GpuCosts), which plan/mesh_rows.cc adds up, and so
// have GPUs that channels join (ChannelCosts, plan/channel_rows.cc).
//
// Other numbers say how much memory there is and how it is laid out, which bounds a choice but does
// not make it: the slots, channels and threads that kernels are compiled for (plan/mesh_limits.h,
// backend/cuda/message_args.h) and the limits of windows (gpu/mesh.cc, comm/join_gpus.cc).
//
// Pure functions: all ranks compute the same. docs/cost_model.md is made from the tables.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plan/work.h"

namespace tutti {

// Says what joins two host ranks, as far as costs go.
enum class Wire : uint8_t {
  kSharedMemory,  // Ranks of one host.
  kKernelCopy,    // Ranks of one host in several processes, by process_vm_readv.
  kTcp,           // Ranks of two hosts.
};
std::string_view Name(Wire wire);

// Says where a row's numbers come from.
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
  double start_us = 0;   // It is paid once.
  double step_us = 0;    // It is paid for each step.
  double most_gbps = 0;  // GB/s that a rank moves at most; 0: no bound but the channels'
  double part = 1;       // The protocol uses this part of the channels' bandwidth.
  CostSource source = CostSource::kCostBench;
};

std::span<const CostRow> CostTable();

// Returns the row, or null where the wire does not carry the algorithm by this protocol.
const CostRow* FindCost(Wire wire, Algorithm algorithm, Protocol protocol);

// Host ranks that share cores do not spin: each time one waits, its peer must be scheduled first;
// and they share what a core moves. Measured with 4 ranks on 2 cores, bench/results/cost.md.
constexpr double WakeUs(Wire wire) { return wire == Wire::kTcp ? 17 : 4; }
inline constexpr double kSharedCorePart = 0.5;

// From so many bytes on the ranks of several processes describe their buffers to one another to
// find out whether these are mapped. Where they are not, they have met for nothing, which costs 0.5
// us: a tenth of what an operation of this size takes (bench/results/cost.md).
inline constexpr double kAskFromBytes = 16 << 10;

// ---- How operations of hosts are cut (plan/host_rows.cc, operations/executor.cc)

// A step of a ring keeps at most half of a FIFO's slots busy, so that every rank can send before it
// receives. The rings of GPUs on several hosts (plan/channel_rows.cc) keep to it too.
inline constexpr size_t kSlicesPerStep = 4;
// Slices are not cut shorter than this: a slot's hand-over costs as much as copying so many bytes.
inline constexpr size_t kMinSliceBytes = 16 << 10;
// A slice of so many bytes and its frame are one packet for TCP to cut, of whole segments of 1448
// bytes (Ethernet), of 8948 (jumbo frames) or of 65483 (loopback), which have 65160, 62636 and
// 65483. A slice of 64 KB would be two, of which the second costs as much as the first
// (transport/net/socket/send_comm.cc, bench/results/hosts.md).
inline constexpr size_t kNetPacketBytes = 62'592;
// Between hosts, slices up to this size stay in a core's L2 while they are copied to the network;
// the more so as eight are on their way. Two packets were faster between namespaces, but over
// loopback, whose segments have 64 KB, a Broadcast of 1 MB then took three times as long in most
// runs. Steps of more than 4 MB have longer ones, up to a slot: they last long enough to fill links
// whose latency is large (bench/results/sockets.md). An AllReduce keeps to fewer, longer ones:
// between two ranks it lost a tenth by short ones, and each rank's half of 4 MB stays one send.
inline constexpr size_t kNetSliceBytes = kNetPacketBytes;
inline constexpr size_t kNetSlicesPerStep = 64;
// How two ranks on two hosts reduce a vector for both, by the vector's length: the first row that is
// long enough counts. By recursive doubling each rank sends its whole vector to the other; in one
// shot a rank adds the other's data to its input on the way to the output and copies nothing there
// first. The rates of the cost table are those of more ranks, and where the NIC's speed is the
// bound all algorithms take the same time, so that the table cannot tell (bench/results/hosts.md).
struct PairWay {
  Algorithm algorithm;
  size_t from_bytes;
};
inline constexpr size_t kPairOneShotBytes = 512 << 10;
inline constexpr PairWay kPairWays[] = {{Algorithm::kOneShot, kPairOneShotBytes},
                                        {Algorithm::kRecursiveDoubling, 0}};
// A pair cuts a vector of kPairSliceBytes to kPairOneShotBytes into even slices of about
// kPairSliceBytes, in Broadcasts and Reduces too: neither rank passes anything on, and each slice of
// more than kKeepBytes (transport/net/socket/resume.h) is acknowledged (bench/results/hosts.md).
inline constexpr size_t kPairSliceBytes = 64 << 10;
// One-shot and two-shot between hosts cut each part into so many chunks of at most so many bytes,
// so that sending one overlaps with reducing another.
inline constexpr size_t kMeshPieces = 4;
inline constexpr size_t kMostMeshChunkBytes = 128 << 10;
// An AlltoAll by two levels has room for what every two ranks exchange: at most so much. Longer
// blocks are better sent where they belong.
inline constexpr double kMostMatrixBytes = 1 << 20;
// By two levels another rank of each host owns a part, and sends it to the other hosts, for each so
// many bytes that pass between two hosts: a message of a rank costs as much as copying so many.
inline constexpr size_t kOwnerBytes = 32 << 10;
// A rank reduces so much of the buffers that it reads where they lie at a time: little enough that
// its peers find the result in a cache.
inline constexpr size_t kPullPartBytes = 256 << 10;
// An AllReduce of many buffers packs so many bytes at a time: half of a common L2, so that what
// was copied in is still in the cache when it is reduced and copied out, and far more than the 32
// KB or so that a collective moves in its start-up time.
inline constexpr size_t kPackedBytes = size_t{1} << 20;
// On GPUs it packs so many, in memory that the first one allocates.
inline constexpr size_t kGpuPackedBytes = size_t{32} << 20;

// ---- How long operations of hosts take

// Counts what an algorithm does, from one end to the other.
struct Extent {
  double steps = 0;  // They come one after the other.
  double waits = 0;  // These are waits for other ranks, one after the other.
  double bytes = 0;  // A rank moves so many.
};

// Returns what `algorithm` does. `bytes` is the whole vector for AllReduce, Reduce and Broadcast,
// one rank's part otherwise. REQUIRES: num_ranks > 1.
Extent ExtentOf(Collective collective, Algorithm algorithm, int num_ranks, double bytes);
// Returns the same for one-shot and two-shot reductions over FIFOs between all pairs of ranks.
Extent MeshExtentOf(Collective collective, Algorithm algorithm, int num_ranks, double bytes);

// Holds what the two levels of kTwoLevel do, one after the other.
struct TwoLevelExtent {
  Extent inside;   // in shared memory
  Extent between;  // along the rails
};
// `most_local`: the ranks of the largest host. `owners` of each host send to other hosts.
TwoLevelExtent TwoLevelExtentOf(Collective collective, int num_ranks, int num_hosts, int most_local,
                                int owners, double bytes);

// Returns the time of `row`, in microseconds, where the channels have `channels_gbps` in all (0:
// not known, no bound). `shared_cores`: host ranks share cores.
double CostUs(const CostRow& row, const Extent& extent, double channels_gbps, bool shared_cores);

// ---- GPUs

// The numbers by which operations of GPUs are planned (plan/gpu_costs.def); plan/mesh.h adds them
// up.
struct GpuCosts {
#define GPU_COST(type, field, nvlink, host_memory, unit, meaning) type field = nvlink;
#include "plan/gpu_costs.def"
};

// Says how GPUs reach one another's windows.
enum class GpuReach : uint8_t {
  kNvlink,      // They lie in one another's memory. This was measured where NVLink joins GPUs.
  kHostMemory,  // They lie in pinned memory of the host.
};
GpuCosts CostsOf(GpuReach reach);

// The numbers for GPUs that channels join with a transport for each pair:
// estimates, made from the times of channels over sockets.
struct ChannelCosts {
  // Microseconds until the other rank has a slice: through the memory of GPUs, and through two
  // hosts and sockets between them.
  double window_step_us = 5;
  double network_step_us = 17;
  // What each further rank adds where a rank sends to several, and receives from them, at a time.
  double network_peer_us = 4;
  // A channel carries so much over sockets while it has a processor.
  double channel_bytes_per_us = 1500;
  // What each of them carries of messages to several ranks at once.
  double message_bytes_per_us = 1000;
  // The block of a channel carries so much between the windows of one host. This is an estimate
  // from what all blocks of a mesh's ring carry (plan/gpu_costs.def); it was not measured.
  double channel_window_bytes_per_us = 20e3;
  // A channel costs a block and, between hosts, a message. It is worth them from so many bytes of a
  // ring's step on, and a message takes another channel for each so many bytes.
  size_t ring_bytes_per_channel = 16 << 10;
  size_t message_bytes_per_channel = 64 << 10;
  // By two levels, a channel's data are cut into so many pieces, of which one passes the network
  // while another one moves inside the host; with more, and with shorter slices, each costs the
  // network's latency for fewer bytes.
  size_t two_level_pieces = 4;
  size_t two_level_slice_bytes = 32 << 10;
  // A connection of a tree carries a slice at this rate. A tree is worth its two blocks from so
  // many bytes on, and cuts its data into so many slices, but into none that are shorter.
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
