#pragma once

// The operations of ranks on hosts: an executor, and the connections, stages and shared memory that
// it works on. Tasks run on the thread that calls Run, one at a time, in the order of their
// tickets.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "operations/connections.h"
#include "operations/executor.h"
#include "operations/operations.h"
#include "operations/peer_info.h"
#include "operations/pull.h"
#include "operations/ticket_order.h"
#include "sys/fd_server.h"
#include "sys/shared_memory.h"
#include "transport/net/net.h"
#include "transport/shm/arena.h"
#include "transport/shm/registry.h"
#include "watch/watch.h"

namespace tutti {

// The arena that ranks of one machine share, as this rank has it. The destructor withdraws the
// offer.
struct SharedArena {
  SharedArena() = default;
  SharedArena(SharedArena&& other) noexcept
      : memory(std::move(other.memory)),
        arena(other.arena),
        fd_server(std::exchange(other.fd_server, nullptr)),
        offer(other.offer),
        numa(other.numa) {}
  SharedArena& operator=(SharedArena&&) = delete;
  ~SharedArena() { Withdraw(); }
  void Withdraw() {
    if (FdServer* const server = std::exchange(fd_server, nullptr)) server->Withdraw(offer);
  }

  SharedMemory memory;  // Empty where the rank is alone on its machine.
  Arena arena;
  FdServer* fd_server = nullptr;  // Offers the arena to the other ranks; null: there is no offer.
  uint64_t offer = 0;
  int numa = -1;  // the NUMA node that this rank's part is to lie on; -1: anywhere
};

class HostOperations final : public Operations {
 public:
  struct Parts {
    int rank = 0;
    std::span<const PeerInfo> peers;  // These and what is pointed to outlive the operations.
    MachineMap machines;
    SharedArena arena;
    PlanContext plan;
    std::vector<int> ring;              // The ranks in ring order.
    std::unique_ptr<NetConnector> net;  // Null when all ranks share the arena.
    std::shared_ptr<Net> network;       // The network of `net`, and this rank's device in it.
    int network_device = 0;
    // The network for one-sided operations, and this rank's device in it. Null: there is none.
    std::shared_ptr<Net> one_sided_network;
    int one_sided_device = 0;
    std::shared_ptr<RmaGroups> one_sided_groups;
    HostMemory* memory = nullptr;  // The process's memory, and the server of its descriptors.
    FdServer* fd_server = nullptr;
    Watch* watch = nullptr;
    std::unique_ptr<CostAdviser> tuner;  // Null: there is none, on any rank.
    std::shared_ptr<Profiler> profiler;  // Null: there is none. The network may tell it, too.
    WaitPolicy wait_policy;
    bool may_pull = true;  // Peers may read user buffers where they lie.
    double timeout_s = 0;  // A ticket waits so long for its turn while nobody runs.
    double connect_timeout_s = 0;
  };
  explicit HostOperations(Parts parts);

  Status CheckTasks(std::span<const IssuedTask> tasks) const override;
  Status CheckWishes(const CollectiveTask& task) const override {
    return executor_->CheckWishes(task);
  }
  uint64_t TakeTicket() override { return order_.Take(); }
  void DropTicket(uint64_t ticket) noexcept override;
  Status Run(uint64_t ticket, std::span<const IssuedTask> tasks) override;
  Status WaitForAll() override { return order_.AwaitAll(); }
  void Finish() override;

  Status CheckBuffer(const void* begin, size_t bytes, const char* what) const override;
  double PredictUs(const Task& task) const override { return executor_->PredictUs(task); }
  std::string Describe(const CollectiveTask& task) const override {
    return executor_->Describe(task);
  }
  std::string_view RankKind() const override { return "host ranks"; }
  std::string DescribeTransports() const override;
  std::string_view TransportTo(int peer) const override;
  const MachineMap& machines() const override { return machines_; }
  uint64_t MemoryBytes() const override { return arena_.memory.size(); }
  bool MapsPeerMemory() const override { return true; }
  const OneSidedSupport* one_sided_support() const override { return &one_sided_support_; }
  OneSidedNetwork one_sided_network() const override {
    return {one_sided_support_.network, one_sided_support_.network_device,
            one_sided_support_.groups};
  }

  // What is given back are the pages of the arena in which data lay. Each rank gives back its stage
  // and the FIFOs that it reads. The system makes pages again, zeroed, at their next touch. FIFOs
  // in front of a network stay, because networks have them registered.
  uint64_t SuspendableBytes() const override;
  uint64_t PersistentBytes() const override { return MemoryBytes() - SuspendableBytes(); }
  Status CheckIdle() const override;
  Status CheckNothingWaits() override;
  Status GiveBackMemory() override;
  Result<Agreement> TakeBackMemory(Deadline, const std::atomic<bool>*) override {
    return Agreement();
  }

 private:
  Status RunInTurn(std::span<const IssuedTask> tasks);
  // Returns this rank's number in the arena.
  int PlaceInArena() const;
  // Runs the sends and receives among `tasks`.
  Status RunMessages(std::span<const IssuedTask> tasks);

  const int rank_;
  const std::span<const PeerInfo> peers_;
  const MachineMap machines_;
  Watch& watch_;
  const OneSidedSupport one_sided_support_;
  const std::string network_name_;  // empty when all ranks share the arena
  TicketOrder order_;
  const std::unique_ptr<CostAdviser> tuner_;
  const std::shared_ptr<Profiler> profiler_;
  SharedArena arena_;
  std::unique_ptr<Connections> connections_;
  std::optional<StageGroup> stages_;  // Present where all ranks share the arena.
  std::optional<PullReach> pull_;     // Present where peers may read user buffers.
  std::unique_ptr<Executor> executor_;
};

}  // namespace tutti
