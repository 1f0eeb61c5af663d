#pragma once

// The connections of one rank of GpuChannels (gpu/channels.h), with a transport for each pair of
// ranks: FIFOs in one another's windows (gpu/windows.h) where both are on one host and windows can
// be had, else a FIFO at either end, in pinned memory of the host, and the network between. The
// slots of such a FIFO lie in memory of the GPU where the NIC reaches it (gpu/direct_slots.h).
//
// A pair has a connection for each direction and number. The numbers below kMostGpuChannels are the
// channels of the ring, the next ones those of trees, and the others are for messages. A window
// holds the FIFOs that come from ranks of its host, so that the memory of a GPU grows with the
// ranks of its host and not of the job:
//
//   heads        a line each: of those FIFOs in other windows that this rank fills
//   ring         a FIFO for each channel, from the previous rank of the ring; for the first rank
//                of the host in that order, from the last one, by two levels and in trees
//   messages     FIFOs from each rank of the host
//
// The connections of FIFOs toward other hosts are made when an operation first needs them, by the
// thread of the KernelProxy that drives them; a kernel may wait for them meanwhile. The FIFOs of
// the ring are pinned before, because CUDA may pin memory only when no kernel runs, and one that
// runs may wait for another rank. Those of trees are too, where AllReduces go by these unasked, and
// those for messages among few ranks; among many most are never needed.
//
// Where a message goes by way of another rank's proxy (PXN, gpu/pxn_lanes.h), its sender has a lane
// of that rank in place of a FIFO of its own, and the receiver a connection to that rank.
//
// Threads: one that launches, at a time; and the KernelProxies', which call what KernelConnections
// has.

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
  uint32_t channels = 1;          // The ring has so many.
  uint32_t message_channels = 1;  // Each pair has so many for messages in each direction.
  size_t ring_slot_bytes = 512 << 10;
  size_t tree_slot_bytes = 64 << 10;  // At most ring_slot_bytes.
  size_t message_slot_bytes = 128 << 10;
};

enum class FifoUse : uint8_t { kRing, kTree, kMessages };

class ChannelConnections {
 public:
  // Up to so many ranks, all FIFOs are pinned when the communicator is made.
  static constexpr int kFewRanks = 8;

  // Describes one direction of a connection, as this rank has it.
  struct Direction {
    int peer = -1;
    FifoUse use = FifoUse::kRing;
    uint32_t channel = 0;
    bool sends = false;
  };
  // Describes one end of a connection, for a kernel. Where a network carries it, it also has the
  // number by which the KernelProxy knows it, or the lane of the rank that sends for this one.
  struct End {
    cuda::DeviceFifo fifo;
    std::optional<size_t> proxied;
    std::shared_ptr<const PxnInbox> inbox;
    size_t lane = 0;
  };

  // Joins the ranks, which all call this. `place` says where windows lie; none: all data passes the
  // network. `routes` say which messages other ranks send. Fails alike on all ranks, but for
  // windows that do not serve.
  static Result<TriedWindows<ChannelConnections>> Create(
      const GpuPeers& peers, const ChannelShape& shape, ChannelRings rings, ChannelTrees trees,
      std::optional<WindowPlace> place, const GpuDirect& direct, const PxnRoutes& routes);

  // Returns this rank's end, which it makes where there is none yet. Within a host trees pass the
  // FIFOs of the ring. REQUIRES: peers differ from this rank; a ring's are its neighbours, in that
  // of all ranks, its host or its rail, and a tree's are those that trees() name.
  Result<End> Get(const Direction& direction);

  const ChannelRings& rings() const { return rings_; }
  const ChannelTrees& trees() const { return trees_; }
  // Returns the tables of rings() in memory of the GPU.
  const int* device_tables() const {
    return reinterpret_cast<const int*>(words_.data() + TablesAt());
  }
  // Returns whether collectives may run by two levels: ranks of each host reach one another.
  bool HasTwoLevels() const { return HasWindows() && rings_.HasTwoLevels(); }
  // Returns whether AllReduces may go by trees: they exist, and ranks of each host reach one
  // another.
  bool HasTrees() const { return trees_.size() > 0 && (HasWindows() || most_here_ == 1); }
  // Makes this rank's FIFOs of trees, where they were not made before. To be called before a kernel
  // that needs them is launched.
  Status PinTrees();
  // Has the NIC read what is sent out of a buffer of the user where it lies, if it takes that:
  // memory of the host that CUDA knows, or of this rank's GPU. Returns what is to be given to
  // TakeBack, or null where the NIC does not read it. Any thread.
  const void* Lend(std::span<std::byte> buffer);
  // REQUIRES: no kernel that sends out of it runs.
  void TakeBack(const void* token) { lent_.Remove(token); }
  // Returns whether what is sent there goes by the rank's own NIC, which knows what is lent.
  bool SendsByOwnNic(const Direction& direction) const;
  // Returns whether a kernel may have that NIC read these bytes where they lie. Any thread.
  bool IsLent(const std::byte* data, size_t bytes) const;
  // Returns how many ranks the host has that has most.
  int most_local_ranks() const { return most_here_; }
  uint64_t* given_up() const { return reinterpret_cast<uint64_t*>(words_.data()); }
  // Memory of the GPU for one line of data.
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

  // Says what the NIC does with memory of this rank's GPU, as far as FIFOs were made; empty:
  // nothing.
  std::string DescribeDirect() const;

  // Holds what a KernelProxy needs to know of a connection.
  struct NetFifo {
    NetEnd end;
    bool sends = false;
    int nic = -1;  // Sends by this device; -1: by the rank's own.
  };
  NetFifo Proxied(size_t number) const;
  // Returns the devices by which this rank sends messages itself, besides its own.
  std::set<int> OtherNics() const;
  // Returns how a message from `from` to `to`, over the network, is numbered between the rank that
  // sends it and the receiver.
  uint32_t WireNumber(int from, int to, uint32_t channel) const;
  // Returns the connections by which this rank receives what other ranks send for the senders: the
  // numbers that the KernelProxy knows them by, and their ends without their place.
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

  // Return where things are in a window. `from` counts the ranks of the host.
  size_t HereIndex(int rank) const;
  size_t RingFifosAt() const;
  size_t MessageFifosAt() const;
  size_t WindowBytes() const;
  size_t HeadAt(const Direction& direction, size_t consumer) const;
  size_t FifoAt(const Direction& direction, size_t producer) const;

  // Return where words are in words_.
  size_t EndsOfPair() const;
  // Returns its number among those of the pair in that direction.
  static uint32_t NumberOfPair(const Direction& direction) {
    return static_cast<uint32_t>(direction.use) * kMostGpuChannels + direction.channel;
  }
  size_t Number(const Direction& direction) const;
  size_t TablesAt() const;
  cuda::FifoCount* CountAt(size_t number) const;

  End InWindows(const Direction& direction) const;
  Result<End> OverNetwork(const Direction& direction);
  End EndOf(std::byte* base, std::byte* gpu_slots, const Direction& direction) const;
  // Returns the lane of the rank that sends for this one, if one does.
  Result<std::optional<End>> ThroughAnother(const Direction& direction);
  struct Pinned {
    Direction direction;
    cuda::PinnedBlock memory;          // All of the FIFO, or what announces its slots.
    std::optional<DirectSlots> slots;  // They lie in memory of the GPU.
  };
  Result<Pinned> MakeFifo(const Direction& direction) TUTTI_REQUIRES(making_mutex_);
  // Returns slots in memory of the GPU, where the NIC is to use it and does.
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
  std::vector<int> here_;  // The ranks of this host, ascending.
  int most_here_ = 1;      // The ranks of the host that has most.
  GpuWindows windows_;
  cuda::MappedMemory
      words_;  // It has given_up, scratch, the counts of each FIFO, and the tables of rings_.
  // Held while memory is pinned for a FIFO or a lane. That may wait for kernels, and these for a
  // proxy thread, which takes the other mutex and never this one.
  Mutex making_mutex_;
  mutable Mutex mutex_;
  GpuDirect direct_ TUTTI_GUARDED_BY(mutex_);  // What the NIC refuses is taken out.
  LentBuffers lent_;
  std::map<size_t, Pinned> pinned_ TUTTI_GUARDED_BY(mutex_);
  PxnRoutes routes_;               // It does not change once Create has returned.
  std::unique_ptr<PxnLanes> pxn_;  // Its lanes are pinned under making_mutex_.
  std::atomic<uint64_t> pinned_bytes_ = 0;
  std::atomic<uint64_t> direct_bytes_ = 0;
  size_t direct_message_bytes_ TUTTI_GUARDED_BY(making_mutex_) = 0;
};

// The network connections of a ChannelConnections that one KernelProxy drives.
class ProxiedConnections : public KernelConnections {
 public:
  // By the device that they connect with; -1: the rank's own.
  using Connectors = std::map<int, std::unique_ptr<NetConnector>>;
  // `fifos` and `watch` must outlive it. `connectors`, one for each device that NetFifo names, are
  // this object's own, because each of them is used by one thread.
  ProxiedConnections(const ChannelConnections& fifos, Watch& watch, Connectors connectors,
                     int64_t connect_timeout_ns)
      : fifos_(fifos),
        watch_(watch),
        connectors_(std::move(connectors)),
        connect_timeout_ns_(connect_timeout_ns) {}

  // Lets the rank that sends for another one connect whenever it has something to send, because its
  // thread must not wait for a kernel here. Called before the KernelProxy has its thread.
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
  std::set<size_t> invited_;  // Their senders were told where to connect.
};

// Those by which this rank sends for others: the lanes of one thread, which the senders announce.
class LaneConnections final : public ProxiedConnections {
 public:
  // REQUIRES: fifos.pxn()->own() is not null.
  LaneConnections(const ChannelConnections& fifos, Watch& watch, Connectors connectors,
                  int64_t connect_timeout_ns, uint32_t thread);
  ~LaneConnections() override;  // Says in the log what was sent for others.

  Doorbell* doorbell() override { return &inbox_->doorbell(thread_); }
  KernelOps Take() override;
  bool MayAnnounce() const override;

 private:
  // Counts what was taken of a lane. Its number in the inbox is the connection's.
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
