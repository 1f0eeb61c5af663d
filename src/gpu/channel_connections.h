#pragma once

// ChannelConnections holds the connections of one rank of GpuChannels (gpu/channels.h). Two ranks
// of one host are joined by FIFOs in one another's windows (gpu/windows.h), where windows can be
// had. All other pairs have a FIFO at either end, in pinned memory of the host, and the network
// between the FIFOs. The slots of such a FIFO lie in memory of the GPU where the NIC reaches this
// memory (gpu/direct_slots.h).
//
// A pair has a connection for each direction and number. The numbers below kMostGpuChannels are the
// channels of the ring, the next numbers belong to trees, and the rest to messages. A window holds
// only FIFOs that come from ranks of its host. The memory of a GPU therefore grows with the ranks
// of its host, not with the ranks of the job:
//
//   heads        a line for each FIFO in another window that this rank fills
//   ring         a FIFO for each channel, from the previous rank of the ring; by two levels and in
//                trees the host's last rank in the ring precedes its first rank
//   messages     FIFOs from each rank of the host
//
// The thread of the KernelProxy makes a network connection when an operation first needs the
// connection; a kernel may wait for the connection meanwhile. The FIFOs of the ring are pinned in
// advance, because CUDA may pin memory only when no kernel runs, and a running kernel may wait for
// another rank. FIFOs of trees are pinned in advance where AllReduces go by trees without being
// asked to, and FIFOs of messages among few ranks. Among many ranks most FIFOs of messages are
// never needed.
//
// A message may go by way of another rank's proxy (PXN, gpu/pxn_lanes.h). The sender of such a
// message has a lane of the other rank in place of a FIFO, and the receiver has a connection to the
// other rank.
//
// Threads: one launching thread at a time, and the threads of KernelProxies, which call the
// functions of KernelConnections.

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "backend/cuda/channel_args.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/pinned_pool.h"
#include "base/mutex.h"
#include "gpu/channel_rings.h"
#include "gpu/channel_trees.h"
#include "gpu/direct_slots.h"
#include "gpu/pxn_lanes.h"
#include "gpu/windows.h"
#include "operations/connections.h"
#include "proxy/kernel_proxy.h"
#include "proxy/lent_buffers.h"
#include "watch/watch.h"

namespace tutti {

// Holds what the ranks of a communicator have agreed on.
struct ChannelShape {
  uint32_t channels = 1;          // The number of channels of the ring.
  uint32_t message_channels = 1;  // The channels of a pair for messages, in each direction.
  size_t ring_slot_bytes = 512 << 10;
  size_t tree_slot_bytes = 64 << 10;  // At most ring_slot_bytes.
  size_t message_slot_bytes = 128 << 10;
};

enum class FifoUse : uint8_t { kRing, kTree, kMessages };

class ChannelConnections {
 public:
  // Among at most kFewRanks ranks all FIFOs are pinned when the communicator is made.
  static constexpr int kFewRanks = 8;

  // Describes one direction of a connection, as this rank has it.
  struct Direction {
    int peer = -1;
    FifoUse use = FifoUse::kRing;
    uint32_t channel = 0;
    bool sends = false;
  };
  // Describes one end of a connection for a kernel. An end of a network connection also has the
  // number by which the KernelProxy knows the connection, or the lane of the rank that sends for
  // this rank.
  struct End {
    cuda::DeviceFifo fifo;
    std::optional<size_t> proxied;
    std::shared_ptr<const PxnInbox> inbox;
    size_t lane = 0;
  };

  // Joins the ranks. All ranks call Create. Windows lie in `place`; without a place all data passes
  // the network. `routes` name the messages that other ranks send. An error is the same on all
  // ranks; windows that do not serve are a refusal.
  static Result<TriedWindows<ChannelConnections>> Create(
      const GpuPeers& peers, const ChannelShape& shape, ChannelRings rings, ChannelTrees trees,
      std::optional<WindowPlace> place, const GpuDirect& direct, const PxnRoutes& routes);

  // Returns this rank's end, and makes the end if necessary. Within a host, trees use the FIFOs of
  // the ring. REQUIRES: the peer is not this rank. The peer of a ring is a neighbour in the ring of
  // all ranks, of the host or of the rail, and the peer of a tree is named by trees().
  Result<End> Get(const Direction& direction);

  const ChannelRings& rings() const { return rings_; }
  const ChannelTrees& trees() const { return trees_; }
  // Returns the tables of rings() in memory of the GPU.
  const int* device_tables() const {
    return reinterpret_cast<const int*>(words_.data() + TablesAt());
  }
  // Returns whether collectives may run by two levels: ranks of each host reach one another.
  bool HasTwoLevels() const { return HasWindows() && rings_.HasTwoLevels(); }
  // Returns whether AllReduces may go by trees: trees exist, and ranks of each host reach one
  // another.
  bool HasTrees() const { return trees_.size() > 0 && (HasWindows() || most_here_ == 1); }
  // Makes the missing FIFOs of this rank's trees. Called before the launch of a kernel that needs
  // them.
  Status PinTrees();
  // Has the NIC read outgoing data directly out of a buffer of the user, if the NIC can: memory of
  // the host that CUDA knows, or memory of this rank's GPU. Returns a token for TakeBack, or null
  // where the NIC does not read the buffer. Called on any thread.
  const void* Lend(std::span<std::byte> buffer);
  // Ends a loan. REQUIRES: no running kernel sends out of the buffer.
  void TakeBack(const void* token) { lent_.Remove(token); }
  // Returns whether data of this direction goes by the rank's own NIC, which knows the lent
  // buffers.
  bool SendsByOwnNic(const Direction& direction) const;
  // Returns whether a kernel may have the rank's NIC read these bytes directly. Called on any
  // thread.
  bool IsLent(const std::byte* data, size_t bytes) const;
  // Returns the word of the GPU's memory in which kernels note that they gave up.
  uint64_t* given_up() const { return reinterpret_cast<uint64_t*>(words_.data()); }
  // Returns memory of the GPU for one line of data.
  std::byte* scratch() const { return words_.data() + kScratchAt; }
  const ChannelShape& shape() const { return shape_; }

  // Returns whether data to `peer` passes a window.
  bool InWindow(int peer) const { return windows_.of(peer) != nullptr; }
  // Returns whether any pair of the job needs the network; the same on all ranks.
  bool NeedsNetwork() const;
  std::optional<WindowPlace> place() const {
    return HasWindows() ? std::optional(windows_.place()) : std::nullopt;
  }
  uint64_t DeviceBytes() const {
    return windows_.DeviceBytes() + words_.size() + direct_bytes_.load(std::memory_order_relaxed) +
           (pxn_ ? pxn_->DeviceBytes() : 0);
  }
  uint64_t PinnedBytes() const {
    return windows_.PinnedBytes() + pinned_bytes_.load(std::memory_order_relaxed) +
           (pxn_ ? pxn_->PinnedBytes() : 0);
  }
  // Null where every rank sends by itself.
  const PxnLanes* pxn() const { return pxn_.get(); }

  // Describes the use of GPU memory by the NIC, as far as FIFOs were made. Empty without such use.
  std::string DescribeDirect() const;

  // Holds the facts that a KernelProxy needs about a connection.
  struct NetFifo {
    NetEnd end;
    bool sends = false;
    int nic = -1;  // The device that sends; -1: the rank's own.
  };
  NetFifo Proxied(size_t number) const;
  // Returns the devices besides the rank's own by which this rank sends its messages.
  std::set<int> OtherNics() const;
  // Returns the number of the network connection for messages from `from` to `to`, as the sending
  // rank and the receiver count connections.
  uint32_t WireNumber(int from, int to, uint32_t channel) const;
  // Returns the connections on which this rank receives messages that ranks send for other ranks:
  // the numbers by which the KernelProxy knows the connections, and the ends without a place.
  struct Invited {
    uint32_t channel = 0;
    size_t number = 0;
    NetEnd end;
  };
  std::vector<Invited> ReceivedThroughOthers() const;

 private:
  static constexpr uint32_t kFirstMessageNumber =
      static_cast<uint32_t>(FifoUse::kMessages) * kMostGpuChannels;
  static constexpr size_t kScratchAt = 128;
  static constexpr size_t kCountsAt = 256;

  ChannelConnections(const GpuPeers& peers, const ChannelShape& shape, ChannelRings rings,
                     ChannelTrees trees, const GpuDirect& direct);
  bool HasWindows() const { return windows_.of(rank_) != nullptr; }
  Status MakeWords();
  Status PinFirst();

  // Return offsets in a window. `consumer` and `producer` count the ranks of the host.
  size_t HereIndex(int rank) const;
  size_t RingFifosAt() const;
  size_t MessageFifosAt() const;
  size_t WindowBytes() const;
  size_t HeadAt(const Direction& direction, size_t consumer) const;
  size_t FifoAt(const Direction& direction, size_t producer) const;

  // Return offsets and numbers of the words in words_.
  size_t EndsOfPair() const;
  // Returns the number of a connection among the connections of its pair in the same direction.
  static uint32_t NumberOfPair(const Direction& direction) {
    return static_cast<uint32_t>(direction.use) * kMostGpuChannels + direction.channel;
  }
  size_t Number(const Direction& direction) const;
  size_t TablesAt() const;
  cuda::FifoCount* CountAt(size_t number) const;

  End InWindows(const Direction& direction) const;
  Result<End> OverNetwork(const Direction& direction);
  End EndOf(std::byte* base, std::byte* gpu_slots, const Direction& direction) const;
  // Returns the lane of the rank that sends for this rank, if another rank does.
  Result<std::optional<End>> ThroughAnother(const Direction& direction);
  struct Pinned {
    Direction direction;
    cuda::PinnedBlock memory;          // All of the FIFO, or only the headers of its slots.
    std::optional<DirectSlots> slots;  // Present where the slots are in memory of the GPU.
  };
  Result<Pinned> MakeFifo(const Direction& direction) TUTTI_REQUIRES(making_mutex_);
  // Returns slots in memory of the GPU, where the NIC is allowed and able to use them.
  std::optional<DirectSlots> TryDirect(const Direction& direction) TUTTI_REQUIRES(making_mutex_);
  GpuDirect direct() const {
    const MutexLock lock(mutex_);
    return direct_;
  }
  size_t SlotBytes(FifoUse use) const {
    return use == FifoUse::kRing   ? shape_.ring_slot_bytes
           : use == FifoUse::kTree ? shape_.tree_slot_bytes
                                   : shape_.message_slot_bytes;
  }

  const GpuPeers peers_;
  const ChannelShape shape_;
  const ChannelRings rings_;
  const ChannelTrees trees_;
  const int rank_;
  const int num_ranks_;
  const int most_here_;  // The number of ranks on the host with most ranks.
  GpuWindows windows_;
  cuda::MappedMemory
      words_;  // given_up, scratch, the counts of each FIFO, and the tables of rings_.
  // Held while memory is pinned for a FIFO or a lane. Pinning may wait for kernels, and kernels
  // wait for a proxy thread. A proxy thread takes mutex_ and never making_mutex_.
  Mutex making_mutex_;
  mutable Mutex mutex_;
  GpuDirect direct_ TUTTI_GUARDED_BY(mutex_);  // Rights that the NIC refuses are taken out.
  LentBuffers lent_;
  std::map<size_t, Pinned> pinned_ TUTTI_GUARDED_BY(mutex_);
  PxnRoutes routes_;               // Constant once Create has returned.
  std::unique_ptr<PxnLanes> pxn_;  // Its lanes are pinned under making_mutex_.
  std::atomic<uint64_t> pinned_bytes_ = 0;
  std::atomic<uint64_t> direct_bytes_ = 0;
  size_t direct_message_bytes_ TUTTI_GUARDED_BY(making_mutex_) = 0;
};

// ProxiedConnections are the network connections of a ChannelConnections that one KernelProxy
// drives.
class ProxiedConnections : public KernelConnections {
 public:
  // Connectors by the device that they connect with; -1 is the rank's own device.
  using Connectors = std::map<int, std::unique_ptr<NetConnector>>;
  // `fifos` and `watch` must outlive the object. `connectors` has a connector for each device that
  // NetFifo names. The object owns its connectors, because only one thread may use a connector.
  ProxiedConnections(const ChannelConnections& fifos, Watch& watch, Connectors connectors,
                     int64_t connect_timeout_ns)
      : fifos_(fifos),
        watch_(watch),
        connectors_(std::move(connectors)),
        connect_timeout_ns_(connect_timeout_ns) {}

  // Lets a rank that sends for another rank connect at any time, because the thread of the sending
  // rank must not wait for a kernel here. Called before the KernelProxy has its thread.
  Status InviteAhead(const ChannelConnections::Invited& receive);

  Status Open(const KernelOps& ops) override;
  ProxyConnection* Find(size_t connection) override;
  void OnFailure(Status status) override;

 protected:
  virtual ChannelConnections::NetFifo Fifo(size_t number) const { return fifos_.Proxied(number); }

 private:
  const ChannelConnections& fifos_;
  Watch& watch_;
  const Connectors connectors_;
  const int64_t connect_timeout_ns_;
  std::map<size_t, std::unique_ptr<ProxyConnection>> connections_;
  std::set<size_t> invited_;  // The connections whose senders know where to connect.
};

// LaneConnections are the connections by which this rank sends for other ranks: the lanes of one
// thread. The senders announce their chunks.
class LaneConnections final : public ProxiedConnections {
 public:
  // REQUIRES: fifos.pxn()->own() is not null.
  LaneConnections(const ChannelConnections& fifos, Watch& watch, Connectors connectors,
                  int64_t connect_timeout_ns, uint32_t thread);
  ~LaneConnections() override;  // Logs the traffic sent for other ranks.

  Doorbell* doorbell() override { return &inbox_->doorbell(thread_); }
  KernelOps Take() override;
  bool MayAnnounce() const override;

 private:
  // Counts the chunks taken from a lane. The lane's number in the inbox is the connection's number.
  struct Taken {
    size_t lane = 0;
    uint64_t chunks = 0;
    uint64_t bytes = 0;
  };
  ChannelConnections::NetFifo Fifo(size_t number) const override;

  const ChannelConnections& fifos_;
  const std::shared_ptr<const PxnInbox> inbox_;
  const uint32_t thread_;
  std::vector<Taken> lanes_;
};

}  // namespace tutti
